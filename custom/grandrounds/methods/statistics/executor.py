"""A site's figures, as scalars: the site's gate knows them, and a figure that is withheld is not there."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np

from grandrounds.data.site import Part, SiteData
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.executor import SiteExecutor
from grandrounds.methods.statistics.figures import class_counts, intensity_shares, size_counts
from grandrounds.methods.statistics.options import StatisticsOptions
from grandrounds.options import take_options
from grandrounds.protocol.messages import Payload, Result

COUNTED: tuple[Part, ...] = ("labelled", "val", "test")


class StatisticsExecutor(SiteExecutor):
    """Tells how many images of each class a site has, how large they were, and how bright they are. It trains nothing.

    The figures are ``images.PART.CLASS`` (images; the class by its index), ``images.unlabelled``, ``size.PIXELS`` (images
    whose shorter side had at least so many pixels, of all parts) and ``intensity.CHANNEL.BIN`` (share of the pixels of the
    training images).

    Args:
        options: those of :class:`~grandrounds.methods.statistics.options.StatisticsOptions` and of
            :class:`~grandrounds.federation.site.executor.SiteExecutor`.
    """

    needs_labels = False
    models: ClassVar[tuple[str, ...]] = ("own",)
    option_groups: ClassVar[tuple[type, ...]] = (StatisticsOptions,)

    def __init__(self, **options: Any) -> None:
        self.statistics, others = take_options(StatisticsOptions, options)
        super().__init__(**{"model": "own", **others})

    def options(self) -> dict[str, Any]:
        """What is told."""
        return asdict(self.statistics)

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Look at the images and tell the figures; the number of samples is none of them."""
        least = max(self.statistics.min_count, context.data.min_support)
        return Result(metrics={**_counts(context.data, least), **_looks(context.data, least, self.statistics.bins)})


def _counts(data: SiteData, least: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in COUNTED:
        rows = data.rows(part)
        counts = class_counts(data.labels[rows], _groups(data, rows), len(data.classes), least)
        found |= {f"images.{part}.{number}": float(count) for number, count in counts.items()}
    rows = data.rows("unlabelled")
    if len(set(_groups(data, rows))) >= least:
        found["images.unlabelled"] = float(len(rows))
    return found


def _looks(data: SiteData, least: int, bins: int) -> dict[str, float]:
    shares = intensity_shares(data.images, data.rows("train"), data.groups, bins, least)
    sizes = size_counts(data.shapes, least)
    return {f"size.{edge}": float(count) for edge, count in sizes.items()} | {
        f"intensity.{channel}.{number}": float(share)
        for (channel, number), share in np.ndenumerate(shares)
        if not np.isnan(share)
    }


def _groups(data: SiteData, rows: np.ndarray) -> list[str]:
    return [data.groups[row] for row in rows]
