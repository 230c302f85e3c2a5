"""Tables of a site's predictions: counts by class, binned curves, and what sites add up of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_at_least
from grandrounds.evaluation.bootstrap import Cases
from grandrounds.evaluation.counts import IMAGES, PATIENTS, UNITS, SiteCounts
from grandrounds.evaluation.curves.binned import (
    BINS,
    MINIMUM,
    Array,
    CurveCounts,
    SiteCurves,
    merge_bins,
    reportable_curves,
)
from grandrounds.evaluation.intervals import area_variance
from grandrounds.evaluation.metrics import LINEAR_SCORES
from grandrounds.evaluation.score_sums import AREAS, EDGES, HISTOGRAM_BINS, HISTOGRAMS, TOTALS, score_shapes
from grandrounds.evaluation.site_record import SiteRecord


def site_counts(questions: Sequence[Cases]) -> SiteCounts:
    """Count the predictions of a site.

    Example:
        >>> from grandrounds.evaluation.bootstrap import cases_from_confusion
        >>> site_counts([cases_from_confusion(np.array([[30, 12], [11, 15]]))]).images.tolist()
        [[[30, 12, 11], [15, 11, 12]]]
    """
    tables = [[_masks(cases, number) for number in range(cases.classes)] for cases in questions]
    images = [[[int(mask.sum()) for mask in row] for row in table] for table in tables]
    patients = [
        [[len(np.unique(cases.groups[mask])) for mask in row] for row in table]
        for cases, table in zip(questions, tables, strict=True)
    ]
    return SiteCounts(np.array(images, np.int64), np.array(patients, np.int64))


def _masks(cases: Cases, number: int) -> tuple[NDArray[np.bool_], ...]:
    """Which images of a class are correct and missed, and which others are taken for it."""
    true, called = cases.labels == number, cases.predicted == number
    return true & called, true & ~called, ~true & called


def site_curves(questions: Sequence[Cases], names: Sequence[str], minimum: int = MINIMUM) -> SiteCurves:
    """The counts that may leave a site, each zero or of ``minimum`` patients; without probabilities there are none.

    Classes of one question exclude each other, so counts of some could give away the others; those of different questions
    do not. The reliability is that of a single question.
    """
    vocabulary = iter(names)
    classes: dict[str, CurveCounts] = {}
    for cases in questions:
        if cases.probabilities is None:
            return SiteCurves({}, None)
        scores = cases.probabilities
        curves = {
            name: binned_counts(cases, scores[:, row], cases.labels == row, minimum)
            for row, name in zip(cases.rows, vocabulary, strict=False)
        }
        classes |= reportable_curves(curves, minimum)
    if len(questions) > 1:
        return SiteCurves(classes, None)
    confidence, correct = scores.max(axis=1), scores.argmax(axis=1) == cases.labels
    return SiteCurves(classes, binned_counts(cases, confidence, correct, minimum))


def binned_counts(
    cases: Cases, scores: Array, positive: NDArray[np.bool_], minimum: int = MINIMUM, bins: int = BINS
) -> CurveCounts | None:
    """Count patients by their highest score, in [0, 1], among positive images, and among the others.

    Returns:
        None with fewer than ``minimum`` patients on a side.

    Raises:
        ValueError: if ``minimum`` or ``bins``, their number before merging, is below one.
    """
    require_at_least(minimum, 1, "minimum")
    require_at_least(bins, 1, "bins")
    edges = np.linspace(0, 1, bins + 1)
    sides = [_highest(cases, scores, positive == side) for side in (True, False)]
    counts = [np.histogram(np.clip(side, 0, 1), edges)[0].astype(np.float64) for side in sides]
    return merge_bins(CurveCounts(edges, *counts), minimum)


def _highest(cases: Cases, scores: Array, chosen: NDArray[np.bool_]) -> Array:
    """The highest score of each case among its chosen images."""
    highest = np.full(int(cases.groups.max(initial=-1)) + 1, -1.0)
    np.maximum.at(highest, cases.groups[chosen], scores[chosen])
    return highest[highest >= 0]


def summable_scores(record: SiteRecord, questions: Sequence[Cases]) -> dict[str, NDArray[Any]]:
    """A site's part of the sums; zeros without images.

    Args:
        record: of the site.
        questions: the predictions with their probabilities, for each question of the task.

    Returns:
        By name, of :func:`score_shapes`: counts int64; ``totals`` float64: images, for each of ``UNITS`` 1 if a case is one,
        and the sums of ``LINEAR_SCORES`` over images; ``areas`` float64, of
        :func:`within_sums`.
    """
    shapes = score_shapes(record.task, len(record.names))
    if not record.images:
        return {
            name: np.zeros(shape, np.float64 if name in (TOTALS, AREAS) else np.int64) for name, shape in shapes.items()
        }
    counts = site_counts(questions)
    units = [float(record.unit == unit) for unit in UNITS]
    sums = [record.images * record.exact.get(name, 0.0) for name in LINEAR_SCORES]
    histograms = [_histograms(cases, row) for cases in questions for row in cases.rows]
    return {
        IMAGES: counts.images,
        PATIENTS: counts.patients,
        TOTALS: np.array([record.images, *units, *sums], np.float64),
        HISTOGRAMS: np.stack(histograms),
        AREAS: within_sums(questions),
    }


def _histograms(cases: Cases, row: int) -> NDArray[np.int64]:
    """Images by side and bin of a class's probability, shape ``(3, bins)``."""
    assert cases.probabilities is not None
    bins, positive = np.digitize(cases.probabilities[:, row], EDGES), cases.labels == row
    sides = (positive & ~positive.all(), ~positive, positive & positive.all())
    return np.stack([np.bincount(bins[side], minlength=HISTOGRAM_BINS) for side in sides])


def histogram_areas(histograms: NDArray[np.floating]) -> NDArray[np.float64]:
    """The area under the ROC curve of each class; two images in one bin count half. NaN without images on a side.

    Args:
        histograms: images with the class and without it by bin, shape ``(classes, 2, bins)``.

    Example:
        >>> histogram_areas(np.array([[[0, 1, 1], [2, 1, 0]]])).round(4)  # 3 + 2.5 of 6 pairs
        array([0.9167])
    """
    positives, negatives = np.asarray(histograms, np.float64).transpose(1, 0, 2)
    below = np.cumsum(negatives, axis=1) - negatives / 2
    pairs = positives.sum(axis=1) * negatives.sum(axis=1)
    return np.divide((positives * below).sum(axis=1), pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)


def within_sums(questions: Sequence[Cases]) -> NDArray[np.float64]:
    """A site's part of the sums, shape ``(names, 5)``: the columns of ``AREA_COLUMNS`` for each name of the vocabulary."""
    return np.array([_within_row(cases, row) for cases in questions for row in cases.rows], np.float64)


def _within_row(cases: Cases, row: int) -> list[float]:
    assert cases.probabilities is not None
    positive = cases.labels == row
    behind = len(np.unique(cases.groups[positive]))
    if not behind or positive.all():
        return [0.0, 0.0, 0.0, 0.0, float(behind)]
    area, variance, _ = area_variance(positive, cases.probabilities[:, row], cases.groups)
    # The spread of a single case is not known: that of a proportion is the largest that it can have.
    alone = sum(len(np.unique(cases.groups[side])) == 1 for side in (positive, ~positive))
    variance += area * (1 - area) * alone
    return [behind, behind * area, behind**2 * variance, 1.0, 0.0]
