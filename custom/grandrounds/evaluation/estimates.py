r"""Scores with the number of cases behind them and an interval, or the words "too few".

A sensitivity of 1.00 from three patients is no finding. A score is shown where at least ``MIN_CASES`` independent cases
(patients or lesions) carry it: those of the class for sensitivity, precision and F1, the others for specificity, both for an
area under a curve, all for a score of all classes. With fewer, the interval would cover most of [0, 1] anyway (the exact
95 % interval of 9 of 9 is [0.66, 1]).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MIN_CASES = 10
CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A score, its interval and what it rests on.

    Attributes:
        value: the score, NaN where it is not defined.
        low: lower end of the 95 % interval, NaN where there is none.
        high: upper end.
        cases: independent cases that carry it.
    """

    value: float
    low: float
    high: float
    cases: int

    @property
    def enough(self) -> bool:
        """Whether the score may be shown."""
        return self.cases >= MIN_CASES

    def to_json(self) -> dict[str, float | int | None]:
        """Plain values: null for what is not defined, and nothing but the count where there are too few cases."""
        shown = [None if math.isnan(part) or not self.enough else round(part, 6) for part in self[:3]]
        return {**dict(zip(("value", "low", "high"), shown, strict=True)), "cases": self.cases}


def count_scores(confusions: NDArray[np.number]) -> dict[str, NDArray[np.float64]]:
    r"""Scores of all classes together, of many confusion matrices at once.

    The definitions are those of :func:`~grandrounds.evaluation.metrics.metrics_from_confusion`; beside them is
    ``precision_macro``, likewise over the classes that occur, and ``accuracy_one_vs_rest``, the mean over classes of how
    often the question "is it this class?" is answered rightly: :math:`1 - 2 e / C` with error rate :math:`e`.

    Args:
        confusions: counts, shape ``(..., classes, classes)``: row true class, column predicted class.

    Returns:
        Arrays of shape ``(...)``; NaN for a matrix without counts.

    Example:
        >>> float(count_scores(np.array([[3, 1], [0, 4]]))["balanced_accuracy"])
        0.875
    """
    total = confusions.sum(axis=(-2, -1))
    of_class = class_count_scores(confusions)
    true = confusions.sum(axis=-1)
    share = _ratio(true, total[..., None])
    known = {name: np.where(true > 0, of_class[name], 0) for name in ("precision", "sensitivity", "f1")}
    occurring = (true > 0).sum(axis=-1)
    accuracy = _ratio(np.trace(confusions, axis1=-2, axis2=-1), total)
    classes = confusions.shape[-1]
    return {
        "accuracy": accuracy,
        "accuracy_one_vs_rest": 1 - 2 * (1 - accuracy) / classes,
        "balanced_accuracy": _ratio(known["sensitivity"].sum(axis=-1), occurring),
        "precision_weighted": (known["precision"] * share).sum(axis=-1),
        "recall_weighted": (known["sensitivity"] * share).sum(axis=-1),
        "f1_weighted": (known["f1"] * share).sum(axis=-1),
        "precision_macro": _ratio(known["precision"].sum(axis=-1), occurring),
        "f1_macro": _ratio(known["f1"].sum(axis=-1), occurring),
    }


def class_count_scores(confusions: NDArray[np.number]) -> dict[str, NDArray[np.float64]]:
    """Scores of each class against the others, of many confusion matrices at once.

    Args:
        confusions: counts, shape ``(..., classes, classes)``: row true class, column predicted class.

    Returns:
        ``precision`` (zero for a class that occurs and is never predicted), ``sensitivity``, ``f1`` and ``specificity``,
        shape ``(..., classes)``; NaN without samples of the class, for specificity without others.

    Example:
        >>> class_count_scores(np.array([[3, 1], [0, 4]]))["specificity"]
        array([1.  , 0.75])
    """
    correct = np.diagonal(confusions, axis1=-2, axis2=-1)
    true, predicted = confusions.sum(axis=-1), confusions.sum(axis=-2)
    total = true.sum(axis=-1, keepdims=True)
    occurs = true > 0
    precision = np.where(occurs, np.nan_to_num(_ratio(correct, predicted)), np.nan)
    return {
        "precision": precision,
        "sensitivity": _ratio(correct, true),
        "f1": np.where(occurs, _ratio(2 * correct, true + predicted), np.nan),
        "specificity": _ratio(total - true - predicted + correct, total - true),
    }


def interval_of(draws: NDArray[np.float64], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Percentile interval of a score's bootstrap draws; draws in which it is not defined do not count.

    Args:
        draws: shape ``(resamples,)``.
        confidence: in (0, 1).

    Returns:
        Lower and upper end; NaN if it is defined in fewer than half of the draws.
    """
    defined = draws[~np.isnan(draws)]
    if 2 * len(defined) < max(len(draws), 1):
        return math.nan, math.nan
    low, high = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def score_estimates(confusion: NDArray[np.int64], resampled: NDArray[np.float64], cases: int) -> dict[str, Estimate]:
    """Scores of all classes together with their intervals.

    Args:
        confusion: counts, shape ``(classes, classes)``.
        resampled: those of bootstrap samples, shape ``(resamples, classes, classes)``.
        cases: how many independent cases are behind the counts.
    """
    values, draws = count_scores(confusion), count_scores(resampled)
    return {name: Estimate(float(value), *interval_of(draws[name]), cases) for name, value in values.items()}


def class_estimates(
    confusion: NDArray[np.int64],
    resampled: NDArray[np.float64],
    positives: NDArray[np.int64],
    negatives: NDArray[np.int64],
) -> list[dict[str, Estimate]]:
    """Scores of each class with their intervals.

    Args:
        confusion: counts, shape ``(classes, classes)``.
        resampled: those of bootstrap samples, shape ``(resamples, classes, classes)``.
        positives: independent cases of each class, shape ``(classes,)``.
        negatives: independent cases of other classes, shape ``(classes,)``.
    """
    values, draws = class_count_scores(confusion), class_count_scores(resampled)
    return [
        {
            name: Estimate(
                float(values[name][number]),
                *interval_of(draws[name][:, number]),
                int((negatives if name == "specificity" else positives)[number]),
            )
            for name in values
        }
        for number in range(len(confusion))
    ]


def mean_estimate(
    confusions: Mapping[str, NDArray[np.int64]], resampled: Mapping[str, NDArray[np.float64]], cases: int
) -> dict[str, Estimate]:
    """Unweighted means over places, for these places: the interval is of their patients, not of other hospitals.

    Args:
        confusions: counts by place, at least one.
        resampled: those of bootstrap samples, by place.
        cases: how many independent cases the places have together.
    """
    of_places = [count_scores(confusions[place]) for place in confusions]
    draws = [count_scores(resampled[place]) for place in confusions]
    return {
        name: Estimate(
            mean_of_known([float(scores[name]) for scores in of_places]),
            *interval_of(_means(np.stack([scores[name] for scores in draws]))),
            cases,
        )
        for name in of_places[0]
    }


def mean_of_known(values: Sequence[float]) -> float:
    """The mean of the values that are not NaN; NaN where there is none."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def _means(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean of none is NaN
        return np.asarray(np.nanmean(draws, axis=0))


def _ratio(numerator: NDArray[np.number], denominator: NDArray[np.number]) -> NDArray[np.float64]:
    top, bottom = np.broadcast_arrays(np.asarray(numerator, np.float64), np.asarray(denominator, np.float64))
    ratio = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=ratio, where=bottom > 0)
    return ratio
