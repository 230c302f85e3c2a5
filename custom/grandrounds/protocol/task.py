"""What the label of an image is: a class, several findings, a grade; the one place where tasks differ.

A method, a table or a score asks the task of its problem (``problem.kind``) and never which task it is. To add one, derive
from :class:`Task` or from a task that exists, and register an instance with
:func:`~grandrounds.protocol.tasks.register_task`; ``problem.task`` is its name.

Labels of ``n`` images are an int64 array whose first dimension is ``n``; what follows and what a number means is the task's
own business, but -1 is unknown in all of them. Networks give one logit for each name of the vocabulary.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from grandrounds.errors import ConfigurationError

if TYPE_CHECKING:  # commands that only read labels need no torch
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    Ints = NDArray[np.int64]
    Floats = NDArray[np.floating[Any]]
    Names = Sequence[str]

UNKNOWN = -1
"""In an array of labels: not known."""
MASKED = -100.0
"""The logit of a name without a labelled image; its probability is 0 in single precision."""
Reduction = Literal["accepted_mean", "batch_mean"]
"""What a loss of accepted pseudo-labels is divided by: their number, or that of all labels of the batch."""


class Question(NamedTuple):
    """One classification among K classes that some images have an answer to; every score is of a question.

    One class per image is one question, whose classes are the vocabulary. Findings are a question each, with the classes
    0 absent and 1 present. The ``scored`` classes of all questions, one after the other, are the vocabulary in its order: so
    a table by class or finding has a row for each ``(question, scored class)``.

    Attributes:
        rows: of the images given to :meth:`Task.questions`: those whose answer is known, ascending, int64, shape ``(n,)``.
        labels: the answers, int64 in [0, K), shape ``(n,)``.
        predicted: the decisions, int64 in [0, K), shape ``(n,)``.
        probabilities: float64, shape ``(n, K)``; rows sum to one.
        scored: the classes with scores of their own (sensitivity, precision, F1, areas, curves); means over the classes of a
            question (``f1_macro``, ``auc_macro``) are over these. Accuracy and balanced accuracy are over all K.
    """

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    scored: tuple[int, ...]


class PseudoLabels(NamedTuple):
    """Pseudo-labels of a batch, and which of them are accepted.

    Attributes:
        labels: as the task's labels are, int64: of classes ``(batch,)``, of findings ``(batch, findings)``.
        accepted: whether the confidence reaches the threshold, bool, of that shape.
        confidence: probability of the label, in [0, 1], of that shape.
    """

    labels: Tensor
    accepted: Tensor
    confidence: Tensor


class Task(ABC):
    """How labels of a kind are read, learnt, decided and questioned. Instances have no state.

    Attributes:
        name: the value of ``problem.task``.
        meaning: what it is, in a few words.
        noun: what a name of the vocabulary is, for prose; ``nouns`` are several.
        activity: what a model does, for prose: ``<activity> 3 <nouns>``.
        activation: turns logits into probabilities, as libraries call it: ``softmax`` or ``sigmoid``.
        exclusive: whether the classes exclude each other: a label is an index, and the probabilities of an image sum to one.
        reserved: cells that name no class.
        parts_are_classes: whether a part that several joined names share (``effusion;mass``) is a class, too.
        joined_remedy: what to do about a name that is made of others.
        certain_below: entropy of an answer in nats below which it counts as certain, unless a method asks for another.
        min_images: images of each class that a question must have to count in means over questions.
        selectable: metrics by which a model can be selected; higher is better.
        default_metric: the one that selects where none is asked for, and the first score of a report.
        scores: the metrics of the printed table, in order.
        references: trivial predictors that scores are compared with: ``majority``, ``chance``.
    """

    name: ClassVar[str]
    meaning: ClassVar[str]
    noun: ClassVar[str]
    nouns: ClassVar[str]
    activity: ClassVar[str]
    activation: ClassVar[str]
    exclusive: ClassVar[bool]
    reserved: ClassVar[tuple[str, ...]]
    parts_are_classes: ClassVar[bool]
    joined_remedy: ClassVar[str]
    certain_below: ClassVar[float]
    min_images: ClassVar[int]
    selectable: ClassVar[tuple[str, ...]]
    default_metric: ClassVar[str]
    scores: ClassVar[tuple[str, ...]]
    references: ClassVar[tuple[str, ...]]

    @property
    def second_metric(self) -> str:
        """The score beside the first one of a report."""
        return next(score for score in self.scores if score != self.default_metric)

    # The vocabulary and the cells of a manifest.

    def check_vocabulary(self, classes: Sequence[str]) -> None:
        """Refuse names that a label cell could not hold.

        Raises:
            ConfigurationError: naming the class.
        """

    def require_exclusive(self, needed_by: str, remedy: str = "") -> None:
        """Refuse what compares classes with each other, unless they exclude each other.

        Args:
            needed_by: the method or option, for the error.
            remedy: what to do; the jobs that can, if empty.

        Raises:
            ConfigurationError: naming the task, what needs exclusive classes, and the remedy.
        """
        if not self.exclusive:
            otherwise = remedy or "the jobs for it are local, local_fixmatch, fedavg, ssfl, fedperl, fedirm and ridge"
            raise ConfigurationError(f"problem.task={self.name} is not supported by {needed_by}; {otherwise}")

    @abstractmethod
    def names_in(self, label: str) -> tuple[str, ...]:
        """The names that a cell states to be true of the image; none for an empty cell."""

    @abstractmethod
    def mentioned_in(self, label: str) -> tuple[str, ...]:
        """All names that a cell has, certain or not; none for an empty cell."""

    @abstractmethod
    def holds(self, names: Collection[str]) -> bool:
        """Whether an image can have all of these names."""

    @abstractmethod
    def cell(self, names: Sequence[str]) -> str:
        """The cell of an image that has these names and no others."""

    @abstractmethod
    def label_cell(self, label: NDArray[np.int64], classes: Sequence[str]) -> str:
        """The cell of an image's label as it is read; empty where it is not known."""

    @abstractmethod
    def respelled(self, label: str, names: Mapping[str, str]) -> str:
        """The cell with other spellings of its names, by the spellings that it has; an empty one takes the name out."""

    @abstractmethod
    def require_label(self, label: str, classes: Sequence[str], where: str) -> None:
        """Check a cell that is not empty.

        Raises:
            DataError: if a name is not in the vocabulary or the cell is malformed; ``where`` and the name are stated.
        """

    @abstractmethod
    def read_labels(self, labels: Sequence[str], classes: Sequence[str]) -> NDArray[np.int64]:
        """Cells as numbers, ``UNKNOWN`` where nothing is known; a class outside the vocabulary is unknown."""

    # Labels as numbers.

    @abstractmethod
    def known(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether anything is known of each image, shape ``(n,)``."""

    @abstractmethod
    def class_counts(self, labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
        """Number of images of each name of the vocabulary, shape ``(classes,)``; unknown ones are left out."""

    @abstractmethod
    def expected_counts(self, labels: NDArray[np.int64], classes: int) -> NDArray[np.int64] | None:
        """Images of each class, to whose shares predictions can be scaled; None where classes do not share an image."""

    # Learning.

    @abstractmethod
    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities in single precision at least, of the logits' shape ``(..., classes)``."""

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
        """The supervised loss of a batch: a scalar in nats, a differentiable zero if nothing is known.

        Args:
            logits: shape ``(batch, classes)``.
            labels: of the batch, int64.
            class_weights: of images by class, shape ``(classes,)``, not negative; None for equal weights.
        """

    @abstractmethod
    def smoothed_loss(self, views: Sequence[Tensor], labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The loss with smoothed labels, without weights, summed over views of the same images.

        Args:
            views: logits of each view, shape ``(batch, classes)``.
            labels: of the batch, int64.
            smoothing: in [0, 1].
        """

    @abstractmethod
    def likeliest(self, logits: Tensor) -> Tensor:
        """The most likely labels by logits of shape ``(batch, classes)``, int64, without gradient."""

    @abstractmethod
    def pseudo_labels(self, probabilities: Tensor, threshold: float | Tensor) -> PseudoLabels:
        """Label each image, and accept confident labels.

        Args:
            probabilities: of weak views, shape ``(batch, classes)``.
            threshold: of the confidence, in [0, 1]; a confidence of exactly the threshold is accepted. One for each class,
                shape ``(classes,)``, where classes are exclusive.

        Raises:
            ValueError: if the threshold or a probability is out of range.
        """

    @abstractmethod
    def pseudo_label_loss(
        self, logits: Tensor, labels: Tensor, accepted: Tensor, batch_size: int, reduction: Reduction
    ) -> Tensor:
        """The loss of accepted pseudo-labels: a scalar in nats.

        Args:
            logits: of strong views, at least of the images with an accepted pseudo-label, shape ``(images, classes)``.
            labels: their pseudo-labels.
            accepted: which of these are learnt, bool.
            batch_size: unlabelled images of the batch, with an accepted label or not.
            reduction: the divisor.

        Raises:
            ValueError: if the shapes do not fit together, or there are more images than the batch has.
        """

    @abstractmethod
    def confidence(self, probabilities: Tensor) -> Tensor:
        """The probability of the likeliest answer: probabilities ``(batch, classes)`` to the shape of labels."""

    @abstractmethod
    def entropy(self, probabilities: Tensor) -> Tensor:
        """The entropy of each answer in nats: probabilities ``(batch, classes)`` to the shape of labels."""

    # Labels as numbers that a regression predicts: a column for each name of the vocabulary, 1 where it is true, else 0.

    @abstractmethod
    def complete(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether all columns of each image are known, shape ``(n,)``."""

    @abstractmethod
    def image_weights(self, targets: Tensor, class_weights: Tensor) -> Tensor:
        """What images weigh.

        Args:
            targets: shape ``(n, classes)``.
            class_weights: of images by class, shape ``(classes,)``; all are 1 where classes share images.

        Returns:
            Shape ``(n,)``.
        """

    @abstractmethod
    def wrong_targets(self, targets: Tensor, images: Tensor, tolerance: float) -> str:
        """What shows that weighted sums over images cannot be of labels; empty if nothing does.

        Args:
            targets: sums of products of features and targets, shape ``(features + 1, classes)``, the last of a one.
            images: sums of the features, shape ``(features + 1,)``.
            tolerance: by which sums may differ.
        """

    @abstractmethod
    def centre_and_offset(self, shares: Tensor, correction: float) -> tuple[Tensor, Tensor]:
        r"""What turns scores near 0 and 1 into logits ``T (score - centre) + offset``, beside the temperature T.

        Args:
            shares: weighted share of images of each name, in [0, 1], shape ``(classes,)``.
            correction: :math:`\tau`; 1 makes all names equally likely beforehand, 0 leaves them as they are.

        Returns:
            Centre and offset, float64, each of shape ``(classes,)``; ``MASKED`` is the offset of a name without images.
        """

    # Questions.

    @abstractmethod
    def answers(self, classes: int) -> tuple[int, ...]:
        """The shape of arrays with an entry for each class of each question: ``(classes,)``, or ``(findings, 2)``."""

    def relation_shape(self, classes: int) -> tuple[int, int]:
        """The shape of a class relation matrix: a row for each entry of :meth:`answers`, a column for each class."""
        answers = self.answers(classes)
        return math.prod(answers), answers[-1]

    @abstractmethod
    def answer_names(self, classes: Sequence[str]) -> list[str]:
        """The names of the entries of :meth:`answers`."""

    @abstractmethod
    def entries(self, labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The known answers of images: which image, and which entry of :meth:`answers`, each of shape ``(known,)``."""

    @abstractmethod
    def as_answers(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits and labels of a batch as those of single answers.

        Returns:
            Logits of each answer's question, shape ``(answers, K)``; the entry of :meth:`answers`, counted in its order,
            that the label says; and whether it is known.
        """

    @abstractmethod
    def decide(self, probabilities: NDArray[np.floating]) -> NDArray[np.int64]:
        """The labels that a model predicts, from probabilities of shape ``(n, classes)``."""

    @abstractmethod
    def predicted_cells(
        self, probabilities: Floats, decided: Ints, classes: Names, thresholds: Mapping[str, float]
    ) -> list[str]:
        """The label cells that a model predicts.

        Args:
            probabilities: shape ``(n, classes)``.
            decided: the predicted labels.
            classes: the vocabulary.
            thresholds: from which probability on to call a name that is decided by itself, in place of the decision.

        Raises:
            ConfigurationError: if a threshold's name is no such name.
        """

    @abstractmethod
    def questions(self, labels: Ints, probabilities: Floats, decided: Ints | None = None) -> list[Question]:
        """The classifications that the labels of images amount to; always the same number for the same vocabulary.

        Args:
            labels: of ``n`` images.
            probabilities: shape ``(n, classes)``.
            decided: the predicted labels, as :meth:`decide` gives them; None for those of the probabilities.

        Raises:
            ValueError: if the shapes do not fit together, or a probability is out of range.
        """

    @abstractmethod
    def answered(self, labels: NDArray[np.int64], probabilities: NDArray[np.floating]) -> NDArray[np.floating]:
        """The probability that the model gave to each known answer, image by image, in the dtype of ``probabilities``."""

    @abstractmethod
    def wrong(self, labels: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
        """Probabilities that are certain of a wrong answer for each image, and undecided where nothing is known.

        Args:
            labels: of ``n`` images.
            classes: names of the vocabulary.

        Returns:
            Shape ``(n, classes)``.
        """

    # A table of predictions.

    @abstractmethod
    def prediction_header(self, classes: Sequence[str]) -> list[str]:
        """The columns after the image's name."""

    @abstractmethod
    def prediction_cells(self, label: Ints, values: Sequence[float], decided: Ints, classes: Names) -> list[str]:
        """A row after the image's name.

        Args:
            label: of one image: an entry of the array of labels.
            values: its probabilities.
            decided: what is predicted, as ``label``.
            classes: the vocabulary.
        """

    @abstractmethod
    def read_prediction(self, cells: Sequence[str], classes: Sequence[str]) -> tuple[Ints, list[float], Ints]:
        """What :meth:`prediction_cells` has written: the label of one image, its probabilities, and what is predicted.

        Raises:
            ValueError: if a cell is missing or wrong.
        """

    def metrics(self, own: Sequence[str]) -> tuple[str, ...]:
        """The metrics by which a model can be selected; ``own`` are those of plug-ins, which are of exclusive classes."""
        return (*self.selectable, *own) if self.exclusive else self.selectable
