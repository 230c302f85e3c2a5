"""Predictions of test images by independent case, and bootstrap samples of the cases.

A case is a patient or lesion; intervals are of cases, never of single images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_at_least
from grandrounds.evaluation.confusion import Margins, confusion_matrix

if TYPE_CHECKING:
    from grandrounds.protocol.task import Floats, Ints, Names, Task

RESAMPLES = 1000
NUMBERS_AT_ONCE = 2**21
"""Numbers of bootstrap samples that are held at once."""


@dataclass(frozen=True, eq=False)
class Cases:
    """Predictions for the test images of one or more sites.

    Attributes:
        labels: true classes, int64, shape ``(n,)``.
        predicted: predicted classes, int64, shape ``(n,)``.
        groups: number of the patient or lesion that each image is of, int64, shape ``(n,)``, in [0, cases).
        probabilities: of the classes, float64, shape ``(n, classes)``; None where only the predicted class is known.
        classes: how many classes there are.
        scored: the classes with scores of their own, see :class:`~grandrounds.protocol.task.Question`; empty for all.
    """

    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    groups: NDArray[np.int64]
    probabilities: NDArray[np.float64] | None
    classes: int
    scored: tuple[int, ...] = ()

    @property
    def rows(self) -> tuple[int, ...]:
        """The classes with scores of their own, in the vocabulary's order."""
        return self.scored or tuple(range(self.classes))

    @property
    def count(self) -> int:
        """How many independent cases there are."""
        return len(np.unique(self.groups))

    def confusion(self) -> NDArray[np.int64]:
        """Counts of images, shape ``(classes, classes)``: row true class, column predicted class."""
        return confusion_matrix(self.labels, self.predicted, self.classes)

    def positives(self) -> NDArray[np.int64]:
        """How many cases have an image of each class, shape ``(classes,)``."""
        pairs = np.unique(np.stack([self.groups, self.labels], axis=1), axis=0)
        return np.bincount(pairs[:, 1], minlength=self.classes).astype(np.int64)

    def negatives(self) -> NDArray[np.int64]:
        """How many cases have an image of another class than each, shape ``(classes,)``."""
        counts = [len(np.unique(self.groups[self.labels != number])) for number in range(self.classes)]
        return np.array(counts, np.int64)

    def weights(self, counts: NDArray[np.integer]) -> Iterator[NDArray[np.float32]]:
        """How often each image is in samples of the cases, in blocks of shape ``(n, samples of the block)``.

        ``counts`` says how often each case is, shape ``(samples, cases)``.
        """
        size = _at_once(len(self.groups))
        for start in range(0, len(counts), size):
            yield counts[start : start + size].T.astype(np.float32)[self.groups]

    def margins(self, counts: NDArray[np.integer]) -> Margins:
        """Margins of the confusion matrix of each sample; ``counts`` as of :meth:`weights`."""
        whole, right, size = slice(None), np.flatnonzero(self.labels == self.predicted), _at_once(len(self.groups))
        tallied = []
        for start in range(0, len(counts), size):
            images = counts[start : start + size, self.groups]
            rows = np.arange(len(images))[:, None] * self.classes
            sides = ((self.labels, right), (self.labels, whole), (self.predicted, whole))
            cells = [((rows + side[part]).ravel(), images[:, part].ravel()) for side, part in sides]
            tallied.append([np.bincount(*cell, len(images) * self.classes) for cell in cells])
        shape = len(counts), self.classes
        correct, true, predicted = (np.concatenate(parts).reshape(shape) for parts in zip(*tallied, strict=True))
        return Margins(correct, true, predicted)


def cases_of(
    labels: NDArray[np.int64], probabilities: NDArray[np.float64], groups: Sequence[str] | None = None
) -> Cases:
    """Cases from probabilities, shape ``(n, classes)``; of equal ones the lower class is the prediction.

    Without ``groups``, the patient or lesion of each image, each image is a case.
    """
    predicted = probabilities.argmax(axis=1).astype(np.int64)
    return Cases(labels, predicted, _numbered(len(labels), groups), probabilities, probabilities.shape[1])


def cases_from_confusion(confusion: NDArray[np.int64]) -> Cases:
    """Cases from counts alone, each image a case: enough for scores of the predicted class.

    Example:
        >>> cases_from_confusion(np.array([[1, 0], [2, 0]])).labels
        array([0, 1, 1])
    """
    cells = np.repeat(np.arange(confusion.size), confusion.ravel())
    labels, predicted = np.divmod(cells, len(confusion))
    return Cases(labels, predicted, np.arange(len(cells)), None, len(confusion))


def questions_of(
    task: Task, labels: Ints, probabilities: Floats, groups: Names | None = None, decided: Ints | None = None
) -> list[Cases]:
    """The answers to each question of a task, by case; arguments as :func:`cases_of` and :meth:`Task.questions`.

    Raises:
        ValueError: if the shapes do not fit together, or a probability is out of range.

    Example:
        >>> from grandrounds.protocol.tasks import task_named
        >>> labels, probabilities = np.array([[1, -1], [0, 1]]), np.array([[0.9, 0.2], [0.6, 0.4]])
        >>> found = questions_of(task_named("multi"), labels, probabilities)
        >>> [(one.labels.tolist(), one.predicted.tolist()) for one in found]
        [([1, 0], [1, 1]), ([1], [0])]
    """
    named = _numbered(len(labels), groups)
    return [
        Cases(one.labels, one.predicted, named[one.rows], one.probabilities, one.probabilities.shape[1], one.scored)
        for one in task.questions(labels, probabilities, decided)
    ]


def joined(parts: Sequence[Cases]) -> Cases:
    """The cases of several sites together; cases of different sites are different.

    Probabilities are None if one site has none. There must be a site (:class:`ValueError`).
    """
    return joined_questions([[part] for part in parts])[0]


def joined_questions(sites: Sequence[Sequence[Cases]]) -> list[Cases]:
    """The answers of several sites to the same questions; arguments and result by question as :func:`joined`."""
    if not sites:
        raise ValueError("there are no sites")
    sizes = [1 + max(int(question.groups.max(initial=-1)) for question in questions) for questions in sites]
    starts = np.cumsum([0, *sizes[:-1]])
    return [_joined(parts, starts) for parts in zip(*sites, strict=True)]


def _joined(parts: Sequence[Cases], starts: NDArray[np.int64]) -> Cases:
    known = [part.probabilities for part in parts if part.probabilities is not None]
    return Cases(
        labels=np.concatenate([part.labels for part in parts]),
        predicted=np.concatenate([part.predicted for part in parts]),
        groups=np.concatenate([part.groups + start for part, start in zip(parts, starts, strict=True)]),
        probabilities=np.concatenate(known) if len(known) == len(parts) else None,
        classes=parts[0].classes,
        scored=parts[0].scored,
    )


def _numbered(images: int, groups: Sequence[str] | None) -> NDArray[np.int64]:
    """The number of each image's case."""
    if groups is None:
        return np.arange(images)
    return np.unique(np.array(groups, np.str_), return_inverse=True)[1].astype(np.int64)


def resampled_weights(
    cases: Cases, generator: np.random.Generator, resamples: int = RESAMPLES
) -> Iterator[NDArray[np.float32]]:
    """How often each image is in each bootstrap sample of the cases, in blocks of shape ``(n, samples of the block)``.

    A bootstrap sample draws cases with replacement, as many as there are of each rarest class: all images of a case come
    together, and the set of classes does not change.
    """
    return cases.weights(_draws(cases, generator, resamples))


def resampled_margins(cases: Cases, generator: np.random.Generator, resamples: int = RESAMPLES) -> Margins:
    """Margins of the confusion matrices of bootstrap samples of the cases, each of shape ``(resamples, classes)``.

    Those of several sites may be added: each site keeps its number of cases.
    """
    return cases.margins(_draws(cases, generator, resamples))


def _at_once(width: int) -> int:
    """Number of bootstrap samples of this length that are looked at together."""
    return max(1, NUMBERS_AT_ONCE // max(width, 1))


def _draws(cases: Cases, generator: np.random.Generator, resamples: int) -> NDArray[np.uint16]:
    """How often each case is drawn, shape ``(resamples, cases)``."""
    require_at_least(resamples, 1, "resamples")
    names, index = np.unique(cases.groups, return_inverse=True)
    counts = np.zeros((resamples, 1 + cases.groups.max(initial=-1)), np.uint16)
    for members in _strata(cases, index, len(names)):
        size = _at_once(len(members))
        for start in range(0, resamples, size):
            rows = min(size, resamples - start)
            drawn = generator.integers(0, len(members), size=(rows, len(members)), dtype=np.int32)
            cells = drawn + np.arange(rows)[:, None] * len(members)
            counted = np.bincount(cells.ravel(), minlength=rows * len(members))
            counts[start : start + rows, names[members]] = counted.reshape(rows, len(members))
    return counts


def _strata(cases: Cases, index: NDArray[np.int64], count: int) -> list[NDArray[np.int64]]:
    """The cases of each rarest class: a patient with a nevus and a melanoma is drawn among those with a melanoma."""
    rank = np.argsort(np.argsort(cases.positives(), kind="stable"))
    rarest = np.full(count, cases.classes)
    np.minimum.at(rarest, index, rank[cases.labels])
    return [np.flatnonzero(rarest == number) for number in np.unique(rarest)]
