"""Summary statistics of a site's data, released as scalars that the site's privacy gate knows by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from grandrounds.data.site import Part, SiteData
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.executor import SiteExecutor
from grandrounds.methods.statistics.summaries import class_counts, intensity_shares, size_counts
from grandrounds.option_annotations import METHOD, Min
from grandrounds.options import Options
from grandrounds.protocol.messages import Payload, Result

HISTOGRAM_BINS = 16
"""Bins of the intensity histogram."""
STATISTICS_PARTS: tuple[Part, ...] = ("labelled", "val", "test")


@dataclass(frozen=True)
class StatisticsOptions(Options):
    """What a site reports of its data; its own ``privacy.min_support`` applies if it is higher than ``min_count``."""

    min_count: Annotated[int, "minimum number of patients per value", Min(1), METHOD] = 10


class StatisticsExecutor(SiteExecutor):
    """Reports a site's images per class, their original sizes, and their intensities. It trains nothing.

    The metrics are ``images.PART.CLASS`` (images; the class by its index), ``images.unlabelled``, ``size.PIXELS`` (images of
    all parts, by the lower end of their shorter side) and ``intensity.CHANNEL.BIN`` (share of the training images' pixels).
    """

    needs_labels = False
    models: ClassVar[tuple[str, ...]] = ("own",)
    statistics: StatisticsOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"model": "own", **options})

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Compute the statistics; values with too few patients are missing, and no number of samples is reported."""
        min_count = max(self.statistics.min_count, context.data.min_support)
        counts = _counts(context.data, min_count)
        return Result(metrics={**counts, **_histograms(context.data, min_count)})


def _counts(data: SiteData, min_count: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in STATISTICS_PARTS:
        rows = data.rows(part)
        counts = class_counts(data.labels[rows], _groups(data, rows), len(data.classes), min_count)
        found |= {f"images.{part}.{number}": float(count) for number, count in counts.items()}
    rows = data.rows("unlabelled")
    if len(set(_groups(data, rows))) >= min_count:
        found["images.unlabelled"] = float(len(rows))
    return found


def _histograms(data: SiteData, min_count: int) -> dict[str, float]:
    shares = intensity_shares(data.images, data.rows("train"), data.groups, HISTOGRAM_BINS, min_count)
    sizes = size_counts(data.cache.shapes, min_count)
    return {f"size.{edge}": float(count) for edge, count in sizes.items()} | {
        f"intensity.{channel}.{number}": float(share)
        for (channel, number), share in np.ndenumerate(shares)
        if not np.isnan(share)
    }


def _groups(data: SiteData, rows: np.ndarray) -> list[str]:
    return [data.groups[row] for row in rows]
