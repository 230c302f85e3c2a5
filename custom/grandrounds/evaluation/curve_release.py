"""What a site tells of its curves: counts of several patients each, checked again by whoever reads them.

A site keeps its predictions. What a report needs of them for curves of all sites is, for each class and for the confidence
of the predictions, the counts of :mod:`grandrounds.evaluation.site_curves`. As a file they are ``curves_MODEL.json``.

A class that is left out must not be had by subtraction: where the classes that are told leave fewer than the least number
of cases for the others together, one more is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from grandrounds.errors import DataError
from grandrounds.evaluation.cases import Cases
from grandrounds.evaluation.site_curves import (
    LEAST,
    SiteCurve,
    merged_curve,
    reliability_curve,
    site_curve,
    summed_curves,
)
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
    return SiteCurves(_without_small_rest(found, least), reliability_curve(cases, least))


def coarser_curves(told: SiteCurves, least: int) -> SiteCurves:
    """The same with ``least`` cases or more behind each count, and of fewer classes where that is needed."""
    found = {name: merged_curve(curve, least) for name, curve in told.classes.items()}
    sureness = merged_curve(told.reliability, least) if told.reliability else None
    return SiteCurves(_without_small_rest(found, least), sureness)


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


def require_support(curve: SiteCurve, least: int) -> SiteCurve:
    """Check a curve that somebody else has counted.

    Raises:
        ValueError: if boundaries and counts do not fit together, or a count stands for fewer than ``least`` cases.
    """
    ranges = len(curve.edges) - 1
    if ranges < 1 or curve.positives.shape != (ranges,) or curve.negatives.shape != (ranges,):
        raise ValueError("there must be a boundary more than counts")
    if curve.edges[0] != 0 or curve.edges[-1] != 1 or not (np.diff(curve.edges) > 0).all():
        raise ValueError("boundaries must rise from 0 to 1")
    counts = np.concatenate([curve.positives, curve.negatives])
    if not np.isfinite(counts).all() or ((counts != 0) & (counts < max(least, 1))).any():
        raise ValueError(f"a count must be 0 or at least {max(least, 1)}")
    if not (curve.positives.any() and curve.negatives.any()):
        raise ValueError("a curve must have cases on both sides")
    return curve


def _plain(curve: SiteCurve) -> dict[str, list[float]]:
    return {"edges": curve.edges.tolist(), "positives": curve.positives.tolist(), "negatives": curve.negatives.tolist()}


def _curve(entry: Mapping[str, Any], least: int) -> SiteCurve:
    return require_support(SiteCurve(*(np.asarray(entry[name], np.float64) for name in SiteCurve._fields)), least)


def _without_small_rest(found: Mapping[str, SiteCurve | None], least: int) -> dict[str, SiteCurve]:
    """The classes that may be told: the smallest is left out while the others would give away a rest of few cases."""
    told = {name: curve for name, curve in found.items() if curve is not None}
    while any(0 < rest < least for rest in _rests(told)):
        del told[min(told, key=lambda name: told[name].positives.sum())]
    return told


def _rests(told: Mapping[str, SiteCurve]) -> list[float]:
    """What each class's curve, less all classes' cases, says of the cases of those that are not told."""
    of_told = sum(float(curve.positives.sum()) for curve in told.values())
    return [float(curve.positives.sum() + curve.negatives.sum()) - of_told for curve in told.values()]
