"""What was found about one positive group at a place: typed values, as a report shows them and a file has them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from grandrounds.evaluation.clinical.thresholds import DecisionCurve, FixedPoint
from grandrounds.evaluation.curves.binned import CurveCounts
from grandrounds.evaluation.score import Score, ScoreSheet


@dataclass(frozen=True)
class Sides:
    """Numbers of the positive group and of all others; None where one must not be shown."""

    positive: int | None
    other: int | None


@dataclass(frozen=True)
class Predictive:
    """Positive and negative predictive value at a prevalence."""

    prevalence: float
    ppv: Score
    npv: Score


@dataclass(frozen=True)
class Operating:
    """What a threshold that was fixed elsewhere does here, and predictive values at several prevalences."""

    fixed: FixedPoint
    sensitivity: Score
    specificity: Score
    at_prevalence: tuple[Predictive, ...]


@dataclass(frozen=True)
class Calibration:
    """Slope and intercept of the calibration line, expected error of the group's probability, and Brier score."""

    slope: Score
    intercept: Score
    ece: Score
    brier: Score

    @property
    def finding(self) -> str:
        """Whether risks are too extreme or too moderate, too high or too low, in a sentence."""
        return " ".join(self._findings()) or (
            "No miscalibration is shown: the intervals of slope and intercept include 1 and 0."
        )

    def _findings(self) -> Iterator[str]:
        if math.isnan(self.slope.value):
            yield "The slope is not defined: a threshold separates the classes, or all risks are equal."
        elif self.slope.high < 1:
            yield "Risks are too extreme (slope below 1)."
        elif self.slope.low > 1:
            yield "Risks are too moderate (slope above 1)."
        if self.intercept.high < 0:
            yield "Risks are too high on average (intercept below 0)."
        elif self.intercept.low > 0:
            yield "Risks are too low on average (intercept above 0)."


@dataclass(frozen=True)
class Recalibrated:
    """A recalibration fitted on a ``share`` of the cases, and the calibration of the others before and after it."""

    share: float
    fitted_images: int
    tested_images: int
    intercept: float
    temperature: float
    before: Calibration
    after: Calibration


@dataclass(frozen=True, eq=False)
class Adapted:
    """A model that was adapted to a place, tested on the images whose labels were not used.

    Attributes:
        how: in words.
        fitted: number of images whose labels were used; None where it must not be shown.
        before: scores over all classes of the other images with the model as it is, without counts by class.
        after: the same with the adapted one.
    """

    how: str
    fitted: int | None
    before: ScoreSheet
    after: ScoreSheet


@dataclass(frozen=True, eq=False)
class GroupResult:
    """All results of one positive group; None where there are too few cases, or nothing was asked for.

    Attributes:
        positive: name of the group.
        classes: of the model that are in it.
        images: positive and other ones.
        cases: with a positive image, and with another.
        prevalence: share of positive images.
        auroc: area under the ROC curve.
        operating: at the fixed threshold.
        calibration: of the group's probability.
        decision: net benefit.
        roc: binned counts, for the ROC curve.
        reliability: the same in fewer bins.
        recalibration: where one was asked for and could be fitted.
    """

    positive: str
    classes: tuple[str, ...]
    images: Sides
    cases: Sides
    prevalence: float
    auroc: Score | None = None
    operating: Operating | None = None
    calibration: Calibration | None = None
    decision: DecisionCurve | None = None
    roc: CurveCounts | None = None
    reliability: CurveCounts | None = None
    recalibration: Recalibrated | None = None


@dataclass(frozen=True)
class SubgroupResult:
    """A subgroup of the images by a column of the manifest: positive and other images, and scores; None if one-sided."""

    column: str
    value: str
    positive: int | None
    other: int | None
    auroc: Score | None = None
    sensitivity: Score | None = None
    specificity: Score | None = None
