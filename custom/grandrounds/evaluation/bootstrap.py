r"""Scores with the number of cases behind them and an interval by bootstrap.

A bootstrap sample draws patients or lesions (the independent cases), never single images of one. A score is shown where at
least ``MIN_CASES`` independent cases carry it: those of the class for sensitivity, precision and F1, the others for
specificity, both for an area under a curve, all for a score of all classes. With fewer, the interval would cover most of
[0, 1] anyway (the exact 95 % interval of 9 of 9 is [0.66, 1]).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_at_least
from grandrounds.evaluation.auc import Areas, weighted_areas
from grandrounds.evaluation.cases import Cases
from grandrounds.evaluation.metrics import confusion_class_scores, confusion_scores, mean_of_known

MIN_CASES = 10
CONFIDENCE = 0.95
RESAMPLES = 1000
AUC_RESAMPLES = 200


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


def resampled_weights(cases: Cases, generator: np.random.Generator, resamples: int = RESAMPLES) -> NDArray[np.float32]:
    """How often each image is in each bootstrap sample of the cases, shape ``(resamples, n)``.

    A bootstrap sample draws as many cases as there are, with replacement; all images of a case come together.

    Raises:
        ValueError: if ``resamples`` is below one.
    """
    counts, index = _draws(cases, generator, resamples)
    return counts[:, index].astype(np.float32)


def resampled_confusions(
    cases: Cases, generator: np.random.Generator, resamples: int = RESAMPLES
) -> NDArray[np.float64]:
    """Confusion matrices of bootstrap samples of the cases, shape ``(resamples, classes, classes)``.

    Those of several sites may be added: each site keeps its number of cases.

    Raises:
        ValueError: if ``resamples`` is below one.
    """
    counts, index = _draws(cases, generator, resamples)
    cells = np.zeros((counts.shape[1], cases.classes**2))
    np.add.at(cells, (index, cases.labels * cases.classes + cases.predicted), 1)
    return (counts @ cells).reshape(resamples, cases.classes, cases.classes)


def interval_of(draws: NDArray[np.float64], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Percentile interval of a score's bootstrap draws; draws in which it is not defined do not count.

    Args:
        draws: shape ``(resamples,)``.
        confidence: in (0, 1).

    Returns:
        Lower and upper end; NaN if fewer than half of the draws are defined.
    """
    defined = draws[~np.isnan(draws)]
    if 2 * len(defined) < max(len(draws), 1):
        return math.nan, math.nan
    low, high = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def score_estimates(confusion: NDArray[np.int64], resampled: NDArray[np.float64], cases: int) -> dict[str, Estimate]:
    """Scores of all classes together with their intervals; counts of ``cases``, and those of their bootstrap samples."""
    values, draws = confusion_scores(confusion), confusion_scores(resampled)
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
    values, draws = confusion_class_scores(confusion), confusion_class_scores(resampled)
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
    """Unweighted means over sites; the interval covers other patients of these sites, not other sites.

    Args:
        confusions: counts by site, at least one.
        resampled: those of bootstrap samples, by site.
        cases: how many independent cases the sites have together.
    """
    of_sites = [confusion_scores(confusions[site]) for site in confusions]
    draws = [confusion_scores(resampled[site]) for site in confusions]
    return {
        name: Estimate(
            mean_of_known([float(scores[name]) for scores in of_sites]),
            *interval_of(_means(np.stack([scores[name] for scores in draws]))),
            cases,
        )
        for name in of_sites[0]
    }


def auc_estimates(
    cases: Cases, generator: np.random.Generator, resamples: int = AUC_RESAMPLES
) -> list[dict[str, Estimate]]:
    """AUROC and average precision of each class against the others, with intervals.

    Returns:
        An entry for each class, of ``auroc`` and ``average_precision``; both rest on the smaller side's cases.

    Raises:
        ValueError: if there are no probabilities.
    """
    if cases.probabilities is None:
        raise ValueError("an area needs probabilities, and only the predicted classes are known")
    weights = resampled_weights(cases, generator, resamples)
    once = np.ones((1, len(cases.labels)))
    found = []
    for number, behind in enumerate(np.minimum(cases.positives(), cases.negatives()).tolist()):
        positive, scores = cases.labels == number, cases.probabilities[:, number]
        if not behind:
            found.append(dict.fromkeys(Areas._fields, Estimate(np.nan, np.nan, np.nan, 0)))
            continue
        values, draws = weighted_areas(positive, scores, once), weighted_areas(positive, scores, weights)
        found.append(
            {
                name: Estimate(float(getattr(values, name)[0]), *interval_of(getattr(draws, name)), behind)
                for name in Areas._fields
            }
        )
    return found


def _means(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean of none is NaN
        return np.asarray(np.nanmean(draws, axis=0))


def _draws(
    cases: Cases, generator: np.random.Generator, resamples: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    require_at_least(resamples, 1, "resamples")
    names, index = np.unique(cases.groups, return_inverse=True)
    if not len(names):
        return np.zeros((resamples, 0)), index
    drawn = generator.integers(0, len(names), size=(resamples, len(names)), dtype=np.int32)
    cells = drawn + np.arange(resamples)[:, None] * len(names)
    counts = np.bincount(cells.ravel(), minlength=resamples * len(names))
    return counts.reshape(resamples, len(names)).astype(np.float64), index
