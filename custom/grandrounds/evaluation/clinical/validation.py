"""External validation of one positive group: discrimination, an operating point, calibration and net benefit.

The result is plain values. Curves are of counts of at least ``minimum`` cases each; smaller counts are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.checks import require_fraction
from grandrounds.evaluation.bootstrap import Cases
from grandrounds.evaluation.clinical.binary import POSITIVE_GROUP, positive_scores, predictive_estimates
from grandrounds.evaluation.clinical.decision import decision_curve
from grandrounds.evaluation.clinical.operating import FixedPoint
from grandrounds.evaluation.clinical.recalibration import calibration_estimates, fit_recalibration
from grandrounds.evaluation.clinical.subgroups import Subgroup
from grandrounds.evaluation.clinical.suppression import shown_counts
from grandrounds.evaluation.curves import binned_counts
from grandrounds.evaluation.estimates import auc_estimates
from grandrounds.evaluation.score import Score
from grandrounds.evaluation.selective import at_threshold
from grandrounds.seeding import numpy_generator

CALIBRATION_BINS = 10


@dataclass(frozen=True)
class Request:
    """What is asked of the positive group.

    Attributes:
        name: of the group.
        point: the operating point, if one could be fixed.
        prevalences: at which predictive values are wanted, in (0, 1).
        share: of the cases on which a recalibration is fitted; 0 fits none.
        minimum: the smallest count that may be shown.
    """

    name: str
    point: FixedPoint | None
    prevalences: Sequence[float] = ()
    share: float = 0.0
    minimum: int = 1


def validate_group(cases: Cases, request: Request) -> dict[str, Any]:
    """All results of one positive group.

    Args:
        cases: of the group, see :func:`~grandrounds.evaluation.clinical.binary.binary_cases`.
        request: what is asked.

    Returns:
        ``positive`` (the name), ``images``, ``cases`` (each positive and other), ``prevalence``, ``auroc``, ``operating``
        (None without a point), ``calibration``, ``decision``, ``roc``, ``reliability`` and ``recalibration``.
    """
    require_fraction(request.share, "share")
    positive, _ = positive_scores(cases)
    counts = {"positive": int(positive.sum()), "other": int((~positive).sum())}
    groups = {"positive": int(cases.positives()[POSITIVE_GROUP]), "other": int(cases.negatives()[POSITIVE_GROUP])}
    found: dict[str, Any] = {
        "positive": request.name,
        "images": shown_counts(counts, request.minimum),
        "cases": shown_counts(groups, request.minimum),
        "prevalence": counts["positive"] / max(len(positive), 1),
        "auroc": None,
        "operating": None,
        "calibration": None,
        "decision": None,
        "roc": None,
        "reliability": None,
        "recalibration": None,
    }
    if not min(groups.values()):
        return found
    area = auc_estimates(cases)[POSITIVE_GROUP]["auroc"]
    found["auroc"] = area.to_json()
    if area.enough:
        calibration = calibration_estimates(cases, numpy_generator("external", "calibration"))
        found["calibration"] = _plain(calibration)
        found["decision"] = decision_curve(cases, numpy_generator("external", "decision")).to_json()
        found |= _curves(cases, request.minimum)
    if request.point is not None:
        found["operating"] = _at_point(cases, request)
    if request.share and area.enough:
        found["recalibration"] = _recalibrated(cases, request.share)
    return found


def score_subgroups(cases: Cases, groups: Sequence[Subgroup], request: Request) -> list[dict[str, Any]]:
    """Counts, AUROC, and sensitivity and specificity at the operating point, of each subgroup of the test images.

    Counts of positive images of a column's subgroups are a table whose sums are known, and so are those of the others.
    """
    found: list[dict[str, Any]] = []
    for column in dict.fromkeys(group.column for group in groups):
        parts = {group.value: subset(cases, group) for group in groups if group.column == column}
        sides = {
            side: shown_counts({v: int((part.labels == number).sum()) for v, part in parts.items()}, request.minimum)
            for side, number in (("positive", POSITIVE_GROUP), ("other", 0))
        }
        for value, part in parts.items():
            counts = {side: shown[value] for side, shown in sides.items()}
            found.append({"column": column, "value": value, **counts, **_of_subgroup(part, request)})
    return found


def subset(cases: Cases, group: Subgroup) -> Cases:
    """The cases of a subgroup's images."""
    rows = group.rows
    probabilities = None if cases.probabilities is None else cases.probabilities[rows]
    numbers = np.unique(cases.groups[rows], return_inverse=True)[1].astype(np.int64)
    return Cases(cases.labels[rows], cases.predicted[rows], numbers, probabilities, cases.classes)


def _of_subgroup(part: Cases, request: Request) -> dict[str, Any]:
    if not min(part.positives()[POSITIVE_GROUP], part.negatives()[POSITIVE_GROUP]):
        return {"auroc": None, "sensitivity": None, "specificity": None}
    found = {"auroc": auc_estimates(part)[POSITIVE_GROUP]["auroc"].to_json()}
    if request.point is None:
        return {**found, "sensitivity": None, "specificity": None}
    test = at_threshold(part, POSITIVE_GROUP, request.point.threshold)
    return {**found, **{name: test[name].to_json() for name in ("sensitivity", "specificity")}}


def _at_point(cases: Cases, request: Request) -> dict[str, Any]:
    point = request.point
    if point is None:
        raise ValueError("there is no operating point")
    test = at_threshold(cases, POSITIVE_GROUP, point.threshold)
    sensitivity, specificity = test["sensitivity"], test["specificity"]
    values = []
    for prevalence in request.prevalences if sensitivity.enough and specificity.enough else ():
        ppv, npv = predictive_estimates(sensitivity, specificity, prevalence)
        values.append({"prevalence": prevalence, "ppv": ppv.to_json(), "npv": npv.to_json()})
    return {
        "fixed": point.to_json(),
        "sensitivity": sensitivity.to_json(),
        "specificity": specificity.to_json(),
        "at_prevalence": values,
    }


def _curves(cases: Cases, minimum: int) -> dict[str, Any]:
    """Binned counts for the ROC curve, and for reliability in fewer bins; None where the bins cannot be filled."""
    positive, scores = positive_scores(cases)
    found: dict[str, Any] = {}
    for name, bins in (("roc", 50), ("reliability", CALIBRATION_BINS)):
        counts = binned_counts(cases, scores, positive, minimum, bins)
        found[name] = counts and {field: values.tolist() for field, values in counts._asdict().items()}
    return found


def _recalibrated(cases: Cases, share: float) -> dict[str, Any] | None:
    """Fit on a random share of the positive and of the other cases; all else is on the rest, before and after."""
    generator = numpy_generator("external", "recalibration")
    with_positive = np.unique(cases.groups[cases.labels == POSITIVE_GROUP])
    drawn = [
        generator.permutation(names)[: max(round(share * len(names)), 1)]
        for names in (with_positive, np.setdiff1d(cases.groups, with_positive))
    ]
    fitted_on = np.isin(cases.groups, np.concatenate(drawn))
    fit, rest = (
        subset(cases, Subgroup("", "", np.flatnonzero(mask).astype(np.int64))) for mask in (fitted_on, ~fitted_on)
    )
    if min(fit.positives().min(), rest.positives().min()) < 1:
        return None
    correction = fit_recalibration(fit)
    if correction is None:
        return None
    inside = correction.apply(positive_scores(rest)[1])
    after = Cases(rest.labels, (inside >= 0.5).astype(np.int64), rest.groups, np.stack([1 - inside, inside], axis=1), 2)
    estimates = {
        name: _plain(calibration_estimates(part, numpy_generator("external", "recalibration", "interval")))
        for name, part in (("before", rest), ("after", after))
    }
    return {
        "share": share,
        "fitted_images": len(fit.labels),
        "tested_images": len(rest.labels),
        "intercept": correction.intercept,
        "temperature": correction.temperature,
        **estimates,
    }


def _plain(estimates: Mapping[str, Score]) -> dict[str, Any]:
    return {name: estimate.to_json() for name, estimate in estimates.items()}
