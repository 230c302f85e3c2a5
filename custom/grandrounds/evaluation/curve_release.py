"""A site's curves as a file that may leave it: counts of several patients each, checked again by whoever reads it.

A site keeps its predictions. What a report needs of them for curves of all sites is in ``curves_MODEL.json``: for each
class, and for the confidence of the predictions, the counts of :mod:`grandrounds.evaluation.site_curves`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from grandrounds.errors import DataError
from grandrounds.evaluation.cases import Cases
from grandrounds.evaluation.site_curves import LEAST, SiteCurve, reliability_curve, site_curve, summed_curves
from grandrounds.files import write_json


class SiteCurves(NamedTuple):
    """What a site, or several together, tell of their curves.

    Attributes:
        classes: ROC counts by class; those with too few cases are not there.
        reliability: right and wrong predictions by confidence; None with too few of either.
    """

    classes: Mapping[str, SiteCurve]
    reliability: SiteCurve | None


def curves_of(cases: Cases, classes: Sequence[str], least: int = LEAST) -> SiteCurves:
    """What a site may tell of its predictions.

    Args:
        cases: with probabilities.
        classes: the vocabulary.
        least: fewest cases that a count other than zero may stand for.

    Raises:
        ValueError: if ``least`` is below one.
    """
    found = {name: site_curve(cases, number, least) for number, name in enumerate(classes)}
    known = {name: curve for name, curve in found.items() if curve is not None}
    return SiteCurves(known, reliability_curve(cases, least))


def curves_together(sites: Sequence[SiteCurves], classes: Sequence[str]) -> SiteCurves:
    """The counts of several sites together; of each class those of the sites that tell of it."""
    of_class = {name: [one.classes[name] for one in sites if name in one.classes] for name in classes}
    sureness = [one.reliability for one in sites if one.reliability is not None]
    return SiteCurves(
        {name: summed_curves(curves) for name, curves in of_class.items() if curves},
        summed_curves(sureness) if sureness else None,
    )


def write_curves(path: Path, curves: SiteCurves, least: int = LEAST) -> None:
    """Write what a site tells, with the least number of cases behind a count."""
    content = {
        "least": least,
        "classes": {name: _plain(curve) for name, curve in curves.classes.items()},
        "reliability": _plain(curves.reliability) if curves.reliability else None,
    }
    write_json(path, content)


def read_curves(path: Path, classes: Sequence[str]) -> SiteCurves:
    """Read what a site tells.

    Args:
        path: the site's file.
        classes: the run's vocabulary.

    Raises:
        DataError: if the file is damaged, of another vocabulary, or a count stands for fewer cases than the file says.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        unknown = [name for name in content["classes"] if name not in classes]
        if unknown:
            raise DataError(f"{path} is of another vocabulary than its run: {unknown[0]!r} is no class of it")
        least = int(content["least"])
        found = {name: _curve(entry, least) for name, entry in content["classes"].items()}
        told = content["reliability"]
        return SiteCurves(found, _curve(told, least) if told else None)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is no file of a site's curves ({error}); ask the site for it again") from error


def _plain(curve: SiteCurve) -> dict[str, list[float]]:
    return {"edges": curve.edges.tolist(), "positives": curve.positives.tolist(), "negatives": curve.negatives.tolist()}


def _curve(entry: Mapping[str, Any], least: int) -> SiteCurve:
    curve = SiteCurve(*(np.asarray(entry[name], np.float64) for name in SiteCurve._fields))
    ranges = len(curve.edges) - 1
    if ranges < 1 or curve.positives.shape != (ranges,) or curve.negatives.shape != (ranges,):
        raise ValueError("there must be a boundary more than counts")
    if curve.edges[0] != 0 or curve.edges[-1] != 1 or not (np.diff(curve.edges) > 0).all():
        raise ValueError("boundaries must rise from 0 to 1")
    counts = np.concatenate([curve.positives, curve.negatives])
    if not np.isfinite(counts).all() or ((counts != 0) & (counts < max(least, 1))).any():
        raise ValueError(f"a count must be 0 or at least {max(least, 1)}")
    return curve
