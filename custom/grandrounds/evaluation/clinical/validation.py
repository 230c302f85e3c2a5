r"""External validation of one positive group: discrimination, an operating point, calibration, net benefit and subgroups.

Curves are of counts of at least ``minimum`` cases each; smaller counts are not in the result. Subgroups are by further
columns of a manifest, such as age, sex, body site or device.

Calibration is by the logistic model :math:`\operatorname{logit} P(y = 1) = a + b \operatorname{logit} p`, Cox's ("Two
further applications of a model for binary regression", Biometrika 45, 1958). Its slope :math:`b` is one for a calibrated
model, below one for an overconfident one; the intercept is fitted with the slope fixed at one ("calibration in the
large"; Van Calster et al., "Calibration: the Achilles heel of predictive analytics", BMC Medicine 17, 2019): above zero
where risks are too low.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_fraction
from grandrounds.data.keys import is_missing
from grandrounds.evaluation.bootstrap import Cases, resampled_weights
from grandrounds.evaluation.clinical.results import (
    Calibration,
    GroupResult,
    Operating,
    Predictive,
    Recalibrated,
    Sides,
    SubgroupResult,
)
from grandrounds.evaluation.clinical.suppression import shown_counts
from grandrounds.evaluation.clinical.thresholds import (
    POSITIVE,
    FixedPoint,
    decision_curve,
    positive_scores,
    predictive_estimates,
)
from grandrounds.evaluation.confidence import at_threshold
from grandrounds.evaluation.curves.binned import BINS, CurveCounts
from grandrounds.evaluation.estimates import auc_estimates
from grandrounds.evaluation.intervals import Z, interval_of
from grandrounds.evaluation.score import Score
from grandrounds.evaluation.tables_of_cases import binned_counts
from grandrounds.ordering import natural_sorted
from grandrounds.seeding import numpy_generator

MAX_GROUPS = 12
"""A column of more texts than this is no subgroup, but a description of single images."""
NOT_KNOWN = "not known"


class Subgroup(NamedTuple):
    """The images of one value, or one range of values, of a column; ``rows`` are their indices, rising."""

    column: str
    value: str
    rows: NDArray[np.int64]


def subgroups_of(columns: Mapping[str, Sequence[str]]) -> list[Subgroup]:
    """The subgroups of each column, in the order of the columns.

    A column of numbers with more than ``MAX_GROUPS`` values is cut at its quartiles. A column with one value only, or with
    more than ``MAX_GROUPS`` texts, is left out.

    Args:
        columns: the value of each image by column; an empty text, and what people write for it, is not known.

    Example:
        >>> [(group.value, group.rows.tolist()) for group in subgroups_of({"sex": ["f", "m", "f", ""]})]
        [('f', [0, 2]), ('m', [1]), ('not known', [3])]
    """
    subgroups: list[Subgroup] = []
    for column, values in columns.items():
        named = _named(["" if is_missing(value, "source") else value for value in values])
        labels = natural_sorted({label for label in named if label != NOT_KNOWN})
        if not 1 < len(labels) <= MAX_GROUPS:
            continue
        order = [*_by_number(labels), *([NOT_KNOWN] if NOT_KNOWN in named else [])]
        texts = np.array(named, np.str_)
        subgroups += [Subgroup(column, label, np.flatnonzero(texts == label).astype(np.int64)) for label in order]
    return subgroups


def _named(values: Sequence[str]) -> list[str]:
    """The group of each image."""
    known = {value for value in values if value}
    numbers = {value: number for value in known if math.isfinite(number := _number(value))}
    if len(known) <= MAX_GROUPS or len(numbers) < len(known):
        return [value or NOT_KNOWN for value in values]
    quartiles = np.quantile([numbers[value] for value in values if value], [0.25, 0.5, 0.75])
    edges = list(dict.fromkeys(float(edge) for edge in quartiles))
    return [_range(numbers[value], edges) if value else NOT_KNOWN for value in values]


def _range(number: float, edges: Sequence[float]) -> str:
    if number <= edges[0]:
        return f"up to {edges[0]:g}"
    if number > edges[-1]:
        return f"above {edges[-1]:g}"
    place = next(place for place, edge in enumerate(edges) if number <= edge)
    return f"above {edges[place - 1]:g} to {edges[place]:g}"


def _by_number(labels: Sequence[str]) -> list[str]:
    """Ranges by their limits, all else in natural order."""
    if not any(label.startswith(("up to ", "above ")) for label in labels):
        return list(labels)
    return sorted(labels, key=lambda label: (not label.startswith("up to "), _number(label.split()[1]), len(label)))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


SMALLEST = 1e-7
"""Probabilities are kept this far from 0 and 1, where their logit is infinite."""
MAX_STEPS = 50
MAX_SLOPE = 100.0
ECE_RESAMPLES = 200
ECE_BINS = 10

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Recalibration:
    r"""A fitted correction, :math:`p' = \sigma(a + \operatorname{logit}(p) / T)`: intercept ``a``, temperature ``T``."""

    intercept: float
    temperature: float

    def apply(self, probabilities: Array) -> Array:
        """The corrected probabilities, shape ``(n,)``; their order does not change."""
        return _sigmoid(self.intercept + logit(probabilities) / self.temperature)


def logit(probabilities: Array) -> Array:
    """Log odds, of probabilities clipped to [1e-7, 1 - 1e-7]."""
    clipped = np.clip(probabilities, SMALLEST, 1 - SMALLEST)
    return np.log(clipped) - np.log1p(-clipped)


def fit_recalibration(cases: Cases) -> Recalibration | None:
    """Fit intercept and temperature by maximum likelihood; None if the classes are separable or the slope not positive."""
    positive, scores = positive_scores(cases)
    offset = logit(scores)
    if _separable(positive, offset):
        return None
    fitted = _fit(positive, np.stack([np.ones(len(scores)), offset], axis=1), np.zeros(len(scores)))
    if fitted is None or not 0 < fitted[1] <= MAX_SLOPE:
        return None
    return Recalibration(float(fitted[0]), float(1 / fitted[1]))


def calibration_of(cases: Cases, generator: np.random.Generator) -> Calibration:
    """Slope, intercept, calibration error and Brier score of a positive group, with 95 % intervals.

    The calibration error is that of the group's probability, not of the confidence, in ten bins of equal width: adaptive
    bins become one where risks are near 0 and 1, and risks that are too high and too low cancel in it. Resampling adds
    noise to it, so its interval is shifted until the draws' mean is the estimate.
    """
    return Calibration(**calibration_line(cases), **_errors(cases, generator))


def calibration_line(cases: Cases) -> dict[str, Score]:
    """``slope``, NaN where a threshold separates the classes or all probabilities are equal, and ``intercept``.

    Where a threshold separates them, the likelihood grows with the slope for ever (Albert and Anderson, Biometrika 71,
    1984); the intercept, fitted at slope one, is finite, and NaN only where there are images of one class alone. The
    intervals are Wald's with the sandwich variance over cases (Liang and Zeger, Biometrika 73, 1986).
    """
    positive, scores = positive_scores(cases)
    behind = int(min(cases.positives()[1], cases.negatives()[1]))
    offset, ones = logit(scores), np.ones((len(scores), 1))
    line = np.stack([np.ones(len(scores)), offset], axis=1)
    nothing = Score(math.nan, math.nan, math.nan, behind)
    separable = _separable(positive, offset)
    slope = nothing if separable else _wald(positive, line, np.zeros(len(scores)), cases.groups, behind, column=1)
    return {"slope": slope, "intercept": _wald(positive, ones, offset, cases.groups, behind, column=0)}


def _separable(positive: NDArray[np.bool_], scores: Array) -> bool:
    """Whether a threshold has all positive images on one side of it and all others on the other; both may touch it."""
    with_it, without = scores[positive], scores[~positive]
    if not len(with_it) or not len(without):
        return True
    return bool(without.max() <= with_it.min() or with_it.max() <= without.min())


def _errors(cases: Cases, generator: np.random.Generator) -> dict[str, Score]:
    positive, scores = positive_scores(cases)
    behind = int(min(cases.positives()[1], cases.negatives()[1]))
    value = _expected_error(scores, positive)
    squares = (scores - positive) ** 2
    draws, brier = [], []
    for weight in (weights for block in resampled_weights(cases, generator, ECE_RESAMPLES) for weights in block.T):
        rows = np.repeat(np.arange(len(scores)), weight.astype(np.int64))
        draws.append(_expected_error(scores[rows], positive[rows]))
        brier.append(squares[rows].mean())
    low, high = np.quantile(draws, [0.025, 0.975]) - np.mean(draws) + value
    score, (least, most) = float(squares.mean()), interval_of(np.array(brier))
    return {
        "ece": Score(value, min(max(float(low), 0.0), value), max(float(high), value), behind),
        "brier": Score(score, min(least, score), max(most, score), behind),
    }


def _expected_error(scores: Array, positive: NDArray[np.bool_]) -> float:
    """Mean over the images of the gap of their bin, in [0, 1]."""
    bins = np.minimum((scores * ECE_BINS).astype(np.int64), ECE_BINS - 1)
    return float(np.abs(np.bincount(bins, scores - positive)).sum() / len(scores))


def _wald(
    positive: NDArray[np.bool_], design: Array, offset: Array, groups: NDArray[np.int64], cases: int, column: int
) -> Score:
    fitted = _fit(positive, design, offset) if 0 < positive.sum() < len(positive) else None
    if fitted is None or abs(fitted[column]) > MAX_SLOPE:
        return Score(math.nan, math.nan, math.nan, cases)
    predicted = _sigmoid(design @ fitted + offset)
    bread = np.linalg.inv(design.T @ (design * (predicted * (1 - predicted))[:, None]))
    _, index = np.unique(groups, return_inverse=True)
    sums = np.zeros((index.max() + 1, design.shape[1]))
    np.add.at(sums, index, design * (positive - predicted)[:, None])
    correction = len(sums) / max(len(sums) - 1, 1)
    variance = correction * bread @ (sums.T @ sums) @ bread
    value, deviation = float(fitted[column]), math.sqrt(max(float(variance[column, column]), 0.0))
    return Score(value, value - Z * deviation, value + Z * deviation, cases)


def _fit(positive: NDArray[np.bool_], design: Array, offset: Array) -> Array | None:
    """Maximum likelihood by Newton's method with halved steps; None where there is no finite maximum."""
    coefficients = np.zeros(design.shape[1])
    best = _likelihood(positive, design @ coefficients + offset)
    for _ in range(MAX_STEPS):
        predicted = _sigmoid(design @ coefficients + offset)
        gradient = design.T @ (positive - predicted)
        curvature = design.T @ (design * (predicted * (1 - predicted))[:, None])
        if np.linalg.cond(curvature) > 1e12:
            return None
        step = np.linalg.solve(curvature, gradient)
        while (now := _likelihood(positive, design @ (coefficients + step) + offset)) < best - 1e-12 and abs(
            step
        ).max() > 1e-12:
            step = step / 2
        coefficients, gained, best = coefficients + step, now - best, now
        if abs(step).max() < 1e-9 or gained < 1e-13:
            return coefficients
    return None


def _likelihood(positive: NDArray[np.bool_], scores: Array) -> float:
    return float(-np.logaddexp(0, np.where(positive, -scores, scores)).sum())


def _sigmoid(values: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0, -values)), np.float64)


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
        cases: of the group, see :func:`~grandrounds.evaluation.clinical.thresholds.binary_cases`.
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


def subset(cases: Cases, group: Subgroup) -> Cases:
    """The cases of a subgroup's images."""
    rows = group.rows
    probabilities = None if cases.probabilities is None else cases.probabilities[rows]
    numbers = np.unique(cases.groups[rows], return_inverse=True)[1].astype(np.int64)
    return Cases(cases.labels[rows], cases.predicted[rows], numbers, probabilities, cases.classes)


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
