r"""A named positive group against all other classes, and predictive values at a stated prevalence."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_fraction
from grandrounds.evaluation.bootstrap import Cases
from grandrounds.evaluation.intervals import Z
from grandrounds.evaluation.score import Score

POSITIVE = 1
"""Index of the positive group in the cases of :func:`binary_cases`."""


def binary_cases(cases: Cases, positive: Sequence[int]) -> Cases:
    """The same images with two classes: 0 all others, 1 the positive group, whose probability is a sum.

    Args:
        cases: with probabilities of the model's classes.
        positive: indices of the group's classes.

    Raises:
        ValueError: if there are no probabilities, or the group has no class or all of them.
    """
    if cases.probabilities is None:
        raise ValueError("a positive group needs probabilities, and only the predicted classes are known")
    chosen = sorted(set(positive))
    if not 0 < len(chosen) < cases.classes:
        raise ValueError(f"the positive group must have some of {cases.classes} classes and not all, got {len(chosen)}")
    inside = cases.probabilities[:, chosen].sum(axis=1).clip(0, 1)
    probabilities = np.stack([1 - inside, inside], axis=1)
    true, predicted = np.isin(cases.labels, chosen), inside >= 0.5
    return Cases(true.astype(np.int64), predicted.astype(np.int64), cases.groups, probabilities, 2)


def positive_scores(cases: Cases) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Whether each image is positive, and its probability, of the cases that :func:`binary_cases` gives."""
    if cases.probabilities is None or cases.classes != 2:
        raise ValueError("expected the cases of a positive group, with probabilities")
    return cases.labels == POSITIVE, cases.probabilities[:, POSITIVE]


def predictive_values(sensitivity: float, specificity: float, prevalence: float) -> tuple[float, float]:
    r"""Positive and negative predictive value by Bayes' rule; NaN where nothing would be called so.

    .. math:: \mathrm{PPV} = \frac{s \pi}{s \pi + (1 - c)(1 - \pi)}, \qquad
        \mathrm{NPV} = \frac{c (1 - \pi)}{c (1 - \pi) + (1 - s) \pi}

    with sensitivity :math:`s`, specificity :math:`c` and prevalence :math:`\pi`, all in [0, 1].

    Example:
        >>> predictive_values(0.5, 0.5, 0.2)
        (0.2, 0.8)
    """
    for name, value in (("sensitivity", sensitivity), ("specificity", specificity), ("prevalence", prevalence)):
        require_fraction(value, name)
    called = sensitivity * prevalence + (1 - specificity) * (1 - prevalence)
    cleared = specificity * (1 - prevalence) + (1 - sensitivity) * prevalence
    return (
        sensitivity * prevalence / called if called > 0 else math.nan,
        specificity * (1 - prevalence) / cleared if cleared > 0 else math.nan,
    )


def predictive_estimates(sensitivity: Score, specificity: Score, prevalence: float) -> tuple[Score, Score]:
    """Positive and negative predictive value at a stated prevalence in (0, 1), with 95 % intervals.

    The intervals are the logit intervals of Mercaldo, Lau and Zhou ("Confidence intervals for predictive values with an
    emphasis to case-control studies", Statistics in Medicine 26, 2007), with cases in place of images. Where sensitivity or
    specificity rests on less than one case on a side, they are the adjusted ones, widened to contain the plain estimate.
    """
    require_fraction(prevalence, "prevalence")
    values = predictive_values(sensitivity.value, specificity.value, prevalence)
    sides = [(score.value, score.cases or 0) for score in (sensitivity, specificity)]
    adjusts = any(min(share, 1 - share) * cases < 1 for share, cases in sides)
    (s, n1), (c, n0) = (_adjusted(*side) if adjusts else side for side in sides)
    behind = min(cases for _, cases in sides)
    odds = prevalence / (1 - prevalence)
    ppv = _logit_interval(s / (1 - c) * odds, math.sqrt((1 - s) / s / n1 + c / (1 - c) / n0))
    npv = _logit_interval(c / (1 - s) / odds, math.sqrt((1 - c) / c / n0 + s / (1 - s) / n1))
    return _containing(values[0], ppv, behind), _containing(values[1], npv, behind)


def _adjusted(share: float, cases: int) -> tuple[float, float]:
    """A proportion and its number of cases with two successes and two failures added (about)."""
    number = cases + Z**2
    return (share * cases + Z**2 / 2) / number, number


def _logit_interval(odds: float, deviation: float) -> tuple[float, float]:
    low, high = (odds * math.exp(sign * Z * deviation) for sign in (-1, 1))
    return low / (1 + low), high / (1 + high)


def _containing(value: float, interval: tuple[float, float], cases: int) -> Score:
    if math.isnan(value):
        return Score(math.nan, math.nan, math.nan, cases)
    return Score(value, min(interval[0], value), max(interval[1], value), cases)
