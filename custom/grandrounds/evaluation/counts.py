"""A site's predictions counted by class, from which scores over all sites are computed while predictions stay at the sites.

For each class of each question there are three counts of images: correct (of the class and predicted as it), missed, and
false (of another class and predicted as it), and the number of patients behind each. A site's table leaves whole, or
stays if a count is of 1 to ``minimum - 1`` patients: the number of images and the accuracy, which leave beside it, could
give a single hidden count away. A report that shows some classes only marks the others as ``HIDDEN``.

The server adds the counts of a class over the sites that show it. The patients of two counts are added as well, so a patient
with images in both is counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

IMAGES, PATIENTS = "images", "patients"
"""Names of the arrays in a message."""
HIDDEN = -1
MOST_COUNTED = 10**9
"""That a count, or a number of images, of one site may say; sums of sites stay far from the end of int64."""
COUNT_COLUMNS = 3
MARGIN_BINS = 16_384
"""Of equal width between 0 and 1, in which unlabelled images are counted."""
UNITS = ("image", "lesion", "patient")
"""What a case is. A site reports its position here as the metric ``unit``."""


class SiteCounts(NamedTuple):
    """Counts of a site, int64 of shape ``(questions, classes, 3)``: correct, missed, false; ``HIDDEN`` where suppressed.

    Correct and missed images of a class are hidden together.
    """

    images: NDArray[np.int64]
    patients: NDArray[np.int64]

    @property
    def hidden(self) -> NDArray[np.bool_]:
        """The classes of each question with a hidden count, shape ``(questions, classes)``."""
        return np.asarray((self.images == HIDDEN).any(axis=2))


def has_small_counts(counts: SiteCounts, minimum: int) -> bool:
    """Whether a count is of 1 to ``minimum - 1`` patients, or hidden already."""
    return bool((counts.hidden.any()) or ((counts.patients > 0) & (counts.patients < minimum)).any())


def counts_shape(answers: Sequence[int]) -> tuple[int, int, int]:
    """The shape of each array of :class:`SiteCounts`, from that of a task's answers.

    Example:
        >>> counts_shape((7,)), counts_shape((4, 2))
        ((1, 7, 3), (4, 2, 3))
    """
    return int(np.prod(answers)) // answers[-1], answers[-1], COUNT_COLUMNS


def check_counts(images: NDArray[np.int64], patients: NDArray[np.int64], shape: tuple[int, ...]) -> SiteCounts:
    """Counts that another party has sent, of a shape of :func:`counts_shape`.

    Raises:
        ValueError: if they are misshapen, above ``MOST_COUNTED``, or images and patients contradict each other.
    """
    for name, array in ((IMAGES, images), (PATIENTS, patients)):
        if array.shape != shape or array.dtype != np.int64:
            raise ValueError(f"{name} must be int64 of shape {shape}, got {array.dtype} {array.shape}")
    hidden = images == HIDDEN
    if (np.minimum(images, patients) < HIDDEN).any() or not np.array_equal(hidden, patients == HIDDEN):
        raise ValueError(f"counts must not be negative, and hidden ones be {HIDDEN} in both arrays")
    if (images > MOST_COUNTED).any():
        raise ValueError(f"a count must be at most {MOST_COUNTED:g}, got {images.max():g}")
    if not np.array_equal(hidden[..., 0], hidden[..., 1]):
        raise ValueError("correct and missed images of a class must be hidden together")
    if (patients > images).any() or not np.array_equal(images > 0, patients > 0):
        raise ValueError("there must be at least one image of each patient, and no image without a patient")
    return SiteCounts(images, patients)


def counts_to_json(counts: SiteCounts) -> dict[str, list[list[list[int]]]]:
    """Plain values."""
    return {IMAGES: counts.images.tolist(), PATIENTS: counts.patients.tolist()}


def counts_from_json(content: Mapping[str, Any], shape: tuple[int, ...]) -> SiteCounts:
    """Counts from plain values; errors as :func:`check_counts`."""
    return check_counts(np.array(content[IMAGES], np.int64), np.array(content[PATIENTS], np.int64), shape)
