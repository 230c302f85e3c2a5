r"""External validation of one positive group: discrimination, an operating point, calibration, net benefit and subgroups.

Curves are of counts of at least ``minimum`` cases each; smaller counts are not in the result. Subgroups are by further
columns of a manifest, such as age, sex, body site or device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_fraction
from grandrounds.evaluation.bootstrap import Cases
from grandrounds.evaluation.clinical.binary import POSITIVE, positive_scores
from grandrounds.evaluation.clinical.recalibration import calibration_of, fit_recalibration
from grandrounds.evaluation.clinical.results import (
    GroupResult,
    Operating,
    Predictive,
    Recalibrated,
    Sides,
    SubgroupResult,
)
from grandrounds.evaluation.clinical.subgroups import Subgroup, subset
from grandrounds.evaluation.clinical.suppression import shown_counts
from grandrounds.evaluation.clinical.thresholds import FixedPoint, decision_curve, predictive_estimates
from grandrounds.evaluation.confidence import at_threshold
from grandrounds.evaluation.curves.binned import BINS, CurveCounts
from grandrounds.evaluation.estimates import auc_estimates
from grandrounds.evaluation.tables_of_cases import binned_counts
from grandrounds.seeding import numpy_generator

CALIBRATION_BINS = 10


@dataclass(frozen=True)
class Request:
    """What is asked of the positive group.

    Attributes:
        point: the operating point, if one could be fixed.
        prevalences: at which predictive values are wanted, in (0, 1).
        share: of the cases on which a recalibration is fitted; 0 fits none.
        minimum: the smallest count that may be shown.
    """

    point: FixedPoint | None
    prevalences: Sequence[float] = ()
    share: float = 0.0
    minimum: int = 1


def validate_group(cases: Cases, request: Request, name: str, classes: tuple[str, ...]) -> GroupResult:
    """All results of one positive group.

    Args:
        cases: of the group, see :func:`~grandrounds.evaluation.clinical.binary.binary_cases`.
        request: what is asked.
        name: of the group.
        classes: of the model that are in it.
    """
    require_fraction(request.share, "share")
    sides = np.bincount(cases.labels, minlength=2)[::-1]
    behind = [int(cases.positives()[POSITIVE]), int(cases.negatives()[POSITIVE])]
    known = min(behind) > 0
    area = auc_estimates(cases)[POSITIVE]["auroc"] if known else None
    enough = area is not None and area.enough
    return GroupResult(
        name,
        classes,
        _sides(sides.tolist(), request.minimum),
        _sides(behind, request.minimum),
        float(sides[0] / max(sides.sum(), 1)),
        area,
        _at_point(cases, request.point, request.prevalences) if known and request.point else None,
        calibration_of(cases, numpy_generator("external", "calibration")) if enough else None,
        decision_curve(cases, numpy_generator("external", "decision")) if enough else None,
        _curve(cases, request.minimum, BINS) if enough else None,
        _curve(cases, request.minimum, CALIBRATION_BINS) if enough else None,
        _recalibrated(cases, request.share) if enough and request.share else None,
    )


def score_subgroups(cases: Cases, groups: Sequence[Subgroup], request: Request) -> tuple[SubgroupResult, ...]:
    """Counts, AUROC, and sensitivity and specificity at the operating point, of each subgroup of the test images.

    Counts of positive images of a column's subgroups are a table whose sums are known, and so are those of the others.
    """
    results: list[SubgroupResult] = []
    for column in dict.fromkeys(group.column for group in groups):
        parts = {group.value: subset(cases, group) for group in groups if group.column == column}
        positive, other = (
            shown_counts({v: int((part.labels == side).sum()) for v, part in parts.items()}, request.minimum)
            for side in (POSITIVE, 1 - POSITIVE)
        )
        results += [
            _of_subgroup(part, SubgroupResult(column, value, positive[value], other[value]), request.point)
            for value, part in parts.items()
        ]
    return tuple(results)


def _sides(counts: Sequence[int], minimum: int) -> Sides:
    shown = shown_counts(dict(zip(("positive", "other"), counts, strict=True)), minimum)
    return Sides(shown["positive"], shown["other"])


def _of_subgroup(part: Cases, counted: SubgroupResult, point: FixedPoint | None) -> SubgroupResult:
    if not min(part.positives()[POSITIVE], part.negatives()[POSITIVE]):
        return counted
    scored = replace(counted, auroc=auc_estimates(part)[POSITIVE]["auroc"])
    if point is None:
        return scored
    test = at_threshold(part, POSITIVE, point.threshold)
    return replace(scored, sensitivity=test["sensitivity"], specificity=test["specificity"])


def _at_point(cases: Cases, point: FixedPoint, prevalences: Sequence[float]) -> Operating:
    test = at_threshold(cases, POSITIVE, point.threshold)
    sensitivity, specificity = test["sensitivity"], test["specificity"]
    known = prevalences if sensitivity.enough and specificity.enough else ()
    values = tuple(Predictive(one, *predictive_estimates(sensitivity, specificity, one)) for one in known)
    return Operating(point, sensitivity, specificity, values)


def _curve(cases: Cases, minimum: int, bins: int) -> CurveCounts | None:
    """Binned counts; None where the bins cannot be filled."""
    positive, scores = positive_scores(cases)
    return binned_counts(cases, scores, positive, minimum, bins)


def _rows(mask: NDArray[np.bool_]) -> Subgroup:
    return Subgroup("", "", np.flatnonzero(mask).astype(np.int64))


def _recalibrated(cases: Cases, share: float) -> Recalibrated | None:
    """Fit on a random share of the positive and of the other cases; all else is on the rest, before and after."""
    generator = numpy_generator("external", "recalibration")
    with_positive = np.unique(cases.groups[cases.labels == POSITIVE])
    drawn = [
        generator.permutation(names)[: max(round(share * len(names)), 1)]
        for names in (with_positive, np.setdiff1d(cases.groups, with_positive))
    ]
    fitted_on = np.isin(cases.groups, np.concatenate(drawn))
    fit, rest = subset(cases, _rows(fitted_on)), subset(cases, _rows(~fitted_on))
    if min(fit.positives().min(), rest.positives().min()) < 1:
        return None
    correction = fit_recalibration(fit)
    if correction is None:
        return None
    inside = correction.apply(positive_scores(rest)[1])
    after = Cases(rest.labels, (inside >= 0.5).astype(np.int64), rest.groups, np.stack([1 - inside, inside], axis=1), 2)
    before, corrected = (
        calibration_of(part, numpy_generator("external", "recalibration", "interval")) for part in (rest, after)
    )
    images = len(fit.labels), len(rest.labels)
    return Recalibrated(share, *images, correction.intercept, correction.temperature, before, corrected)
