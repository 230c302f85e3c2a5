"""One class for each image: a label is the class's index in the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from grandrounds.checks import require_at_least, require_fraction, require_known_label, require_probabilities
from grandrounds.errors import ConfigurationError
from grandrounds.protocol.task import MASKED, UNKNOWN, PseudoLabels, Question, Reduction, Task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from grandrounds.protocol.task import Floats, Ints, Names


class SingleLabel(Task):
    """Classification: the classes exclude each other, and the most probable one is the prediction."""

    name = "single"
    meaning = "each image has one class"
    noun, nouns = "class", "classes"
    activity = "classification of images into"
    activation = "softmax"
    exclusive = True
    certain_below = math.log(2)
    min_images = 0
    selectable = (
        "accuracy",
        "auc_macro",
        "balanced_accuracy",
        "f1_macro",
        "f1_weighted",
        "log_likelihood",
        "precision_weighted",
        "recall_weighted",
    )
    default_metric = "balanced_accuracy"
    scores = ("accuracy", "balanced_accuracy", "f1_weighted")
    references = ("majority", "chance")
    reserved = ()
    parts_are_classes = False
    joined_remedy = "where an image may have several, list it in a table, separate findings by '|' and give task multi"

    def names_in(self, label: str) -> tuple[str, ...]:
        """The class."""
        return (label,) if label else ()

    def mentioned_in(self, label: str) -> tuple[str, ...]:
        """The class."""
        return self.names_in(label)

    def holds(self, names: Collection[str]) -> bool:
        """Only if they are one name."""
        return len({*names}) <= 1

    def cell(self, names: Sequence[str]) -> str:
        """The one class."""
        (name,) = names
        return name

    def label_cell(self, label: NDArray[np.int64], classes: Sequence[str]) -> str:
        """The class."""
        return classes[int(label)] if 0 <= label < len(classes) else ""

    def respelled(self, label: str, names: Mapping[str, str]) -> str:
        """The class in its other spelling."""
        return names.get(label, label)

    def require_label(self, label: str, classes: Sequence[str], where: str) -> None:
        """Refuse a class outside the vocabulary."""
        require_known_label(label, classes, where)

    def read_labels(self, labels: Sequence[str], classes: Sequence[str]) -> NDArray[np.int64]:
        """Indices of the classes, shape ``(n,)``."""
        import numpy as np

        index = {name: number for number, name in enumerate(classes)}
        return np.array([index.get(label, UNKNOWN) for label in labels], np.int64)

    def known(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the class is known."""
        return labels != UNKNOWN

    def class_counts(self, labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
        """Images of each class."""
        import numpy as np

        return np.bincount(labels[labels >= 0], minlength=classes).astype("int64")

    def expected_counts(self, labels: NDArray[np.int64], classes: int) -> NDArray[np.int64] | None:
        """Images of each class."""
        return self.class_counts(labels, classes)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Softmax over the last dimension.

        Example:
            >>> import torch
            >>> SingleLabel().probabilities(torch.zeros(1, 2))
            tensor([[0.5000, 0.5000]])
        """
        from grandrounds.protocol.tensors import at_least_single

        return at_least_single(logits).softmax(dim=-1)

    def loss(self, logits: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
        r"""Weighted mean of the cross-entropy.

        .. math:: L_s = \sum_i w_{y_i} \, \mathrm{CE}(y_i, f(x_i)) \big/ \sum_i w_{y_i}

        Args:
            logits: shape ``(batch, classes)``, floating point.
            labels: class indices, shape ``(batch,)``, int64.
            class_weights: :math:`w`, shape ``(classes,)``, not negative; None for equal weights.

        Returns:
            Scalar, in nats; zero, with zero gradient, if the batch is empty or its weights are all zero.

        Raises:
            ValueError: if the shapes do not fit together.

        Example:
            >>> import torch
            >>> SingleLabel().loss(torch.zeros(2, 3), torch.tensor([0, 2]), torch.tensor([0.5, 2.0, 1.0]))  # ln 3
            tensor(1.0986)
        """
        from torch.nn import functional as F

        _require_batch(logits, labels)
        weights = logits.new_ones(logits.shape[1]) if class_weights is None else class_weights.to(logits)
        if weights.shape != logits.shape[1:]:
            raise ValueError(f"class_weights must have shape ({logits.shape[1]},), got {tuple(weights.shape)}")
        total = F.cross_entropy(logits, labels, weight=weights, reduction="sum")
        # With weights of zero the sum is zero, too: any positive divisor avoids 0/0.
        divisor = weights[labels].sum()
        return total / divisor.where(divisor > 0, divisor.new_ones(()))

    def smoothed_loss(self, views: Sequence[Tensor], labels: Tensor, smoothing: float = 0.0) -> Tensor:
        r"""Cross-entropy with smoothed labels, summed over the views of a batch.

        .. math:: L_l = \sum_v \frac{1}{B} \sum_i \Big[ (1 - s)(-\ln p^v_{i y_i}) + \frac{s}{C} \sum_c -\ln p^v_{ic} \Big]

        Example:
            >>> import torch
            >>> logits, labels = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0])
            >>> [SingleLabel().smoothed_loss([logits], labels, smoothing) for smoothing in (0, 0.1)]
            [tensor(0.2395), tensor(0.3729)]
        """
        import torch
        from torch.nn import functional as F

        for number, logits in enumerate(views):
            _require_batch(logits, labels, f" in view {number}")
        sums = [F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing) for logits in views]
        return torch.stack(sums).sum() / max(len(labels), 1)

    def likeliest(self, logits: Tensor) -> Tensor:
        """The class with the highest logit, shape ``(batch,)``; the lower index where two are equal."""
        return logits.detach().argmax(dim=-1)

    def pseudo_labels(self, probabilities: Tensor, threshold: float | Tensor) -> PseudoLabels:
        r"""Label each image with its most probable class, and accept confident labels.

        .. math:: \hat y_i = \arg\max_c p_{ic}, \qquad m_i = [\max_c p_{ic} \ge \tau]

        Sohn et al., "FixMatch", NeurIPS 2020. The lower index is the label where two are equal.

        Raises:
            ValueError: if the threshold is not in [0, 1], or a row is not a distribution.

        Example:
            >>> import torch
            >>> SingleLabel().pseudo_labels(torch.tensor([[0.65, 0.20, 0.15], [0.3, 0.5, 0.2]]), threshold=0.6).accepted
            tensor([ True, False])
        """
        require_probabilities(probabilities, "probabilities")
        confidence, labels = probabilities.max(dim=1)
        needed = require_fraction(threshold, "threshold") if isinstance(threshold, float | int) else threshold[labels]
        return PseudoLabels(labels, confidence >= needed, confidence)

    def pseudo_label_loss(
        self, logits: Tensor, labels: Tensor, accepted: Tensor, batch_size: int, reduction: Reduction
    ) -> Tensor:
        r"""Cross-entropy of the strong views with the accepted pseudo-labels.

        .. math:: L_u = \frac{1}{Z} \sum_{i : m_i = 1} \mathrm{CE}(\hat y_i, f(\mathcal{A}(x_i)))

        with :math:`Z` the number accepted (``accepted_mean``, FedPerl) or the size of the batch they were accepted from
        (``batch_mean``, FixMatch, NeurIPS 2020, Eq. 4). A differentiable zero if nothing is accepted.

        Example:
            >>> import torch
            >>> labels, accepted = torch.tensor([0, 1]), torch.tensor([True, True])
            >>> SingleLabel().pseudo_label_loss(torch.zeros(2, 3), labels, accepted, 4, "batch_mean")  # ln(3) / 2
            tensor(0.5493)
        """
        from torch.nn import functional as F

        _require_batch(logits, labels)
        require_at_least(batch_size, len(labels), "batch_size")
        total = F.cross_entropy(logits, labels.where(accepted, UNKNOWN), ignore_index=UNKNOWN, reduction="sum")
        return total / (accepted.sum().clamp(min=1) if reduction == "accepted_mean" else max(batch_size, 1))

    def confidence(self, probabilities: Tensor) -> Tensor:
        """Of the most probable class, shape ``(batch,)``."""
        return probabilities.amax(dim=1)

    def entropy(self, probabilities: Tensor) -> Tensor:
        """Of the distribution over the classes, shape ``(batch,)``."""
        import torch

        return torch.special.entr(probabilities).sum(dim=1)

    def complete(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the class is known."""
        return self.known(labels)

    def image_weights(self, targets: Tensor, class_weights: Tensor) -> Tensor:
        """The weight of the image's class."""
        return targets @ class_weights

    def wrong_targets(self, targets: Tensor, images: Tensor, tolerance: float) -> str:
        """The columns of an image add up to 1."""
        apart = bool(((targets.sum(dim=1) - images).abs() > tolerance).any())
        return "the sums of its classes do not add up to those of all images" if apart else ""

    def centre_and_offset(self, shares: Tensor, correction: float) -> tuple[Tensor, Tensor]:
        r"""No centre, and the offset :math:`-\tau \log p_c` of logit adjustment.

        Source: Menon et al., "Long-tail learning via logit adjustment", ICLR 2021.

        Example:
            >>> import torch
            >>> SingleLabel().centre_and_offset(torch.tensor([0.5, 0.5, 0.0]), 1.0)[1].round(decimals=4)
            tensor([   0.6931,    0.6931, -100.0000], dtype=torch.float64)
        """
        import torch

        shares = shares.double()
        offset = torch.where(shares > 0, -correction * shares.clamp(min=1e-300).log(), MASKED)
        return torch.zeros_like(shares), offset

    def answers(self, classes: int) -> tuple[int, ...]:
        """``(classes,)``."""
        return (classes,)

    def answer_names(self, classes: Sequence[str]) -> list[str]:
        """The classes."""
        return list(classes)

    def entries(self, labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The images of known class, and the class."""
        (rows,) = (labels >= 0).nonzero()
        return rows, labels[rows]

    def as_answers(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Each image is one answer."""
        return logits, labels, labels >= 0

    def decide(self, probabilities: NDArray[np.floating]) -> NDArray[np.int64]:
        """The most probable class, shape ``(n,)``; of equal ones the lower index."""
        return probabilities.argmax(axis=1).astype("int64")

    def predicted_cells(
        self, probabilities: Floats, decided: Ints, classes: Names, thresholds: Mapping[str, float]
    ) -> list[str]:
        """The predicted class; no threshold can move it."""
        for name in thresholds:
            raise ConfigurationError(f"thresholds: {name!r} cannot have one, because an image has one {self.noun}")
        return [classes[number] for number in decided]

    def questions(self, labels: Ints, probabilities: Floats, decided: Ints | None = None) -> list[Question]:
        """One question, whose classes are the vocabulary.

        Example:
            >>> import numpy as np
            >>> SingleLabel().questions(np.array([1, -1]), np.array([[0.4, 0.6], [0.9, 0.1]]))[0].rows
            array([0])
        """
        if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1]:
            raise ValueError(
                "expected labels (images,) and probabilities (images, classes), "
                f"got {labels.shape} and {probabilities.shape}"
            )
        require_probabilities(probabilities, "probabilities")
        rows, known = self.entries(labels)
        inside, scored = probabilities[rows], tuple(range(probabilities.shape[1]))
        predicted = self.decide(inside) if decided is None else decided[rows]
        return [Question(rows, known, predicted, inside.astype("float64"), scored)]

    def answered(self, labels: NDArray[np.int64], probabilities: NDArray[np.floating]) -> NDArray[np.floating]:
        """The probability of each known class."""
        return probabilities[self.entries(labels)]

    def wrong(self, labels: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
        """The class after the known one; all alike where none is known.

        Example:
            >>> import numpy as np
            >>> SingleLabel().wrong(np.array([1, -1]), 2).tolist()
            [[1.0, 0.0], [0.5, 0.5]]
        """
        import numpy as np

        probabilities = np.full((len(labels), classes), 1 / classes)
        rows, known = self.entries(labels)
        probabilities[rows] = np.eye(classes)[(known + 1) % classes]
        return probabilities

    def prediction_header(self, classes: Sequence[str]) -> list[str]:
        """The class, the predicted class, and a probability for each class."""
        return ["label", "predicted", *(f"probability_{name}" for name in classes)]

    def prediction_cells(self, label: Ints, values: Sequence[float], decided: Ints, classes: Names) -> list[str]:
        """The class (empty where it is not known), the predicted class, and the probabilities."""
        return [self.label_cell(label, classes), classes[int(decided)], *(f"{value:.9g}" for value in values)]

    def read_prediction(self, cells: Sequence[str], classes: Sequence[str]) -> tuple[Ints, list[float], Ints]:
        """The index of the class, the probabilities, whose sum must be one within a thousandth, and the predicted class."""
        if len(cells) != len(classes) + 2:
            raise ValueError(f"{len(cells)} cells after the image, expected {len(classes) + 2}")
        if cells[0] and cells[0] not in classes:
            raise ValueError(f"label {cells[0]!r} is not one of the classes {', '.join(classes)}")
        if cells[1] not in classes:
            raise ValueError(f"predicted {cells[1]!r} is not one of the classes {', '.join(classes)}")
        values = [float(cell) for cell in cells[2:]]
        if not abs(sum(values) - 1) <= 1e-3 or min(values) < 0:
            raise ValueError("a row of probabilities does not sum to one")
        label, decided = self.read_labels(cells[:2], classes)
        return label, values, decided


def _require_batch(logits: Tensor, labels: Tensor, place: str = "") -> None:
    if logits.dim() != 2 or labels.shape != logits.shape[:1]:
        raise ValueError(
            f"expected logits (batch, classes) and labels (batch,), got {tuple(logits.shape)}{place} and "
            f"{tuple(labels.shape)}"
        )
