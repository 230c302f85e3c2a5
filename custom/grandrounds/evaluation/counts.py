"""A site's predictions counted by class, from which scores over all sites are computed while predictions stay at the sites.

For each class there are three counts of images: correct (of the class and predicted as it), missed, and false (of another
class and predicted as it), and the number of patients behind each. What leaves a site is suppressed: a count of 1 to
``minimum - 1`` patients is hidden, and so are the smallest others that would give it away by subtraction (complementary
suppression). The sums of rows and columns count as known, because the numbers of images and the accuracy leave beside the
counts.

The server adds the counts of a class over the sites that show it. The patients of two counts are added as well, so a patient
with images in both is counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.bootstrap import Cases
from grandrounds.evaluation.clinical.suppression import suppressed
from grandrounds.evaluation.estimates import ClassCounts

IMAGES, PATIENTS = "images", "patients"
"""Names of the arrays in a message."""
HIDDEN = -1
COLUMNS = 3


class SiteCounts(NamedTuple):
    """Counts of a site, each int64 of shape ``(classes, 3)``: correct, missed, false; ``HIDDEN`` where suppressed.

    Correct and missed images of a class are hidden together. Counts of findings have shape ``(findings, 2, 3)``, with the
    classes absent and present for each.
    """

    images: NDArray[np.int64]
    patients: NDArray[np.int64]


def site_counts(cases: Cases, minimum: int = 0) -> SiteCounts:
    """Count the predictions of a site, and suppress what is of fewer than ``minimum`` patients.

    Example:
        >>> from grandrounds.evaluation.bootstrap import cases_from_confusion
        >>> site_counts(cases_from_confusion(np.array([[30, 12], [11, 15]])), 10).images.tolist()
        [[30, 12, 11], [15, 11, 12]]
    """
    tables = []
    for number in range(cases.classes):
        true, called = cases.labels == number, cases.predicted == number
        tables.append((true & called, true & ~called, ~true & called))
    images = [[int(mask.sum()) for mask in row] for row in tables]
    patients = [[len(np.unique(cases.groups[mask])) for mask in row] for row in tables]
    return suppress_counts(SiteCounts(np.array(images, np.int64), np.array(patients, np.int64)), minimum)


def finding_counts(findings: Sequence[Cases], minimum: int = 0) -> SiteCounts:
    """Count and suppress the answers to the question of each finding, see :func:`site_counts`."""
    return _stacked([site_counts(cases, minimum) for cases in findings])


def _stacked(parts: Sequence[SiteCounts]) -> SiteCounts:
    return SiteCounts(*(np.stack(arrays) for arrays in zip(*parts, strict=True)))


def suppress_counts(counts: SiteCounts, minimum: int) -> SiteCounts:
    """The same without counts of 1 to ``minimum - 1`` patients, and without what would give them away."""
    if counts.images.ndim > 2:
        return _stacked([suppress_counts(SiteCounts(*part), minimum) for part in zip(*counts, strict=True)])
    patients = counts.patients.clip(min=0)
    hidden = counts.patients == HIDDEN
    hidden[:, :2] |= _hidden_classes(patients[:, :2], hidden[:, 0], minimum)[:, None]
    hidden[:, 2] |= suppressed(patients[None, :, 2], minimum)[0]
    if 0 < patients[hidden[:, 2], 2].sum() < minimum:
        hidden[:, 2] = True
    return SiteCounts(np.where(hidden, HIDDEN, counts.images), np.where(hidden, HIDDEN, counts.patients))


def _hidden_classes(patients: NDArray[np.int64], before: NDArray[np.bool_], minimum: int) -> NDArray[np.bool_]:
    """The classes whose correct and missed images are hidden; ``patients`` has shape ``(classes, 2)``.

    The sums of both columns are known, so what they hide must be two counts at least, and of ``minimum`` patients together.
    """
    hidden = before | ((patients > 0) & (patients < minimum)).any(axis=1)
    while True:
        wanting = [
            column
            for column in patients.T
            if column[hidden].any() and (column[hidden].sum() < minimum or (column[hidden] > 0).sum() < 2)
        ]
        others = [np.flatnonzero(~hidden & (column > 0)) for column in wanting]
        rows = next((rows for rows in others if len(rows)), None)
        if minimum < 2 or not wanting:
            return hidden
        if rows is None:  # nothing is left to hide behind but which classes are empty
            return np.ones_like(hidden)
        hidden[rows[patients[rows].sum(axis=1).argmin()]] = True


def counts_of_shape(classes: int, multi: bool) -> tuple[int, ...]:
    """The shape of each array of :class:`SiteCounts`; ``multi`` is of findings."""
    return (classes, 2, COLUMNS) if multi else (classes, COLUMNS)


def check_counts(
    images: NDArray[np.int64], patients: NDArray[np.int64], classes: int, multi: bool = False
) -> SiteCounts:
    """Counts that another party has sent, of classes or of findings (``multi``).

    Raises:
        ValueError: if they are misshapen, or images and patients contradict each other.
    """
    shape = counts_of_shape(classes, multi)
    for name, array in ((IMAGES, images), (PATIENTS, patients)):
        if array.shape != shape or array.dtype != np.int64:
            raise ValueError(f"{name} must be int64 of shape {shape}, got {array.dtype} {array.shape}")
    hidden = images == HIDDEN
    if (images < HIDDEN).any() or not np.array_equal(hidden, patients == HIDDEN):
        raise ValueError(f"counts must not be negative, and hidden ones be {HIDDEN} in both arrays")
    if not np.array_equal(hidden[..., 0], hidden[..., 1]):
        raise ValueError("correct and missed images of a class must be hidden together")
    if (patients > images).any() or not np.array_equal(images > 0, patients > 0):
        raise ValueError("there must be at least one image of each patient, and no image without a patient")
    return SiteCounts(images, patients)


def pooled_counts(sites: Sequence[SiteCounts], images: float, right: float) -> ClassCounts:
    """The counts of several sites together.

    Args:
        sites: at least one.
        images: of all sites, hidden ones included.
        right: correct predictions among them.

    Returns:
        Counts of each class over the sites that show it; not a number, with ``HIDDEN`` cases, where none does. ``false`` is
        known only where every site shows all of the class.
    """
    shown = np.stack([one.images for one in sites])
    patients = np.stack([one.patients for one in sites]).clip(min=0).sum(axis=0)
    totals = np.where(shown == HIDDEN, 0, shown).sum(axis=0).astype(np.float64)
    totals[(shown[:, :, 0] == HIDDEN).all(axis=0), :2] = np.nan
    totals[(shown == HIDDEN).any(axis=(0, 2)), 2] = np.nan
    correct, missed, false = totals.T
    unknown = (shown[:, :, 0] == HIDDEN).all(axis=0)
    positives = np.where(unknown, HIDDEN, patients[:, 0] + patients[:, 1])
    cases = int(positives.clip(min=0).sum()) if not unknown.all() else HIDDEN
    negatives = np.maximum(cases - positives.clip(min=0), 0)
    # Images of a patient are taken to agree: no fewer independent images than patients can be behind a count.
    true, called, union = (patients[:, columns].sum(axis=1) for columns in ([0, 1], [0, 2], [0, 1, 2]))
    ratio = max(cases, 0) / max(float(np.nansum(correct + missed)), 1.0)
    sizes = {
        "sensitivity": true,
        "specificity": negatives,
        "precision": called,
        "f1": union,
        "accuracy": images * ratio,
    }
    return ClassCounts(
        correct,
        missed,
        false,
        images,
        right,
        positives,
        negatives,
        cases,
        {name: np.asarray(size, np.float64) for name, size in sizes.items()},
    )


def counts_to_json(counts: SiteCounts) -> dict[str, list[list[int]]]:
    """Plain values."""
    return {IMAGES: counts.images.tolist(), PATIENTS: counts.patients.tolist()}


def counts_from_json(content: Mapping[str, Any], classes: int, multi: bool = False) -> SiteCounts:
    """Counts from plain values; errors as :func:`check_counts`."""
    images, patients = (np.array(content[name], np.int64) for name in (IMAGES, PATIENTS))
    return check_counts(images, patients, classes, multi)
