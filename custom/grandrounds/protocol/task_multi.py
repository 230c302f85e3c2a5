"""Several findings for each image, each a question of its own that is answered yes or no, or not known.

A cell of a manifest lists the findings that an image shows, ``effusion|mass``. An image with ``none`` shows no finding; one
with an empty cell is not labelled. With ``effusion|?mass`` it shows an effusion, and may or may not show a mass. As numbers,
a label is 1 (present), 0 (absent) or -1 for each finding of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from grandrounds.checks import require_at_least, require_fraction, require_known_label
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.task import MASKED, UNKNOWN, PseudoLabels, Question, Reduction, Task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from grandrounds.protocol.task import Floats, Ints, Names

ABSENT, PRESENT = 0, 1
NO_FINDING, SEPARATOR, UNKNOWN_MARK = "none", "|", "?"
CALLED_FROM = 0.5
"""A finding is predicted from this probability on."""


class MultiLabel(Task):
    """Detection of findings; an image may have any number of them."""

    name = "multi"
    meaning = "any of the classes, its findings"
    noun, nouns = "finding", "findings"
    activity = "detection of"
    activation = "sigmoid"
    exclusive = False
    certain_below = 0.45
    min_images = 1
    selectable = ("auc_macro", "balanced_accuracy", "f1_macro", "log_likelihood")
    default_metric = "auc_macro"
    scores = ("auc_macro", "balanced_accuracy", "f1_macro")
    references = ("chance",)
    reserved = (NO_FINDING,)
    parts_are_classes = True
    joined_remedy = "separate findings by '|'"

    def check_vocabulary(self, classes: Sequence[str]) -> None:
        """Refuse names with the marks of a cell."""
        for name in classes:
            if name == NO_FINDING or SEPARATOR in name or name.startswith(UNKNOWN_MARK):
                raise ConfigurationError(
                    f"problem.classes: a finding must not be {NO_FINDING!r}, contain {SEPARATOR!r} or begin with "
                    f"{UNKNOWN_MARK!r}, got {name!r}"
                )

    def names_in(self, label: str) -> tuple[str, ...]:
        """The findings that are present.

        Example:
            >>> MultiLabel().names_in("effusion|?mass"), MultiLabel().names_in("none"), MultiLabel().names_in("")
            (('effusion',), (), ())
        """
        names = (name.strip() for name in label.split(SEPARATOR))
        return tuple(name for name in names if name and name != NO_FINDING and not name.startswith(UNKNOWN_MARK))

    def mentioned_in(self, label: str) -> tuple[str, ...]:
        """The findings that are present or unknown, without the mark.

        Example:
            >>> MultiLabel().mentioned_in("effusion|?mass")
            ('effusion', 'mass')
        """
        return self.names_in(label.replace(UNKNOWN_MARK, ""))

    def holds(self, names: Collection[str]) -> bool:
        """Always."""
        return True

    def cell(self, names: Sequence[str]) -> str:
        """The findings, or ``none``.

        Example:
            >>> MultiLabel().cell(["effusion", "mass"]), MultiLabel().cell([])
            ('effusion|mass', 'none')
        """
        return SEPARATOR.join(names) or NO_FINDING

    def label_cell(self, label: NDArray[np.int64], classes: Sequence[str]) -> str:
        """The findings that are present."""
        return self.cell([name for name, value in zip(classes, label, strict=True) if value == 1])

    def respelled(self, label: str, names: Mapping[str, str]) -> str:
        """The findings in their other spellings, each once; marks stay. One that becomes ``none`` leaves the others.

        Example:
            >>> MultiLabel().respelled("Mass|?effusion|mass", {"Mass": "mass"})
            'mass|?effusion'
            >>> MultiLabel().respelled("mass|hernia", {"hernia": "none"}), MultiLabel().respelled("?x", {"x": "none"})
            ('mass', 'none')
        """
        entries, others = [], False
        for part in label.split(SEPARATOR):
            name = part.strip()
            mark = UNKNOWN_MARK if name.startswith(UNKNOWN_MARK) else ""
            bare = name.removeprefix(mark)
            key = names.get(bare, bare)
            other = key == NO_FINDING != bare
            others |= other
            entries += [f"{mark}{key}"] if key and not other else []
        return SEPARATOR.join(dict.fromkeys(entries)) or (NO_FINDING if others else "")

    def require_label(self, label: str, classes: Sequence[str], where: str) -> None:
        """Refuse a finding that is not in the vocabulary or is named twice, and ``none`` beside another."""
        for name in self.mentioned_in(label):
            require_known_label(name, classes, where)
        parts = [part.strip() for part in label.split(SEPARATOR)]
        distinct = len(set(self.mentioned_in(label))) == len([part for part in parts if part != NO_FINDING])
        if not distinct or (NO_FINDING in parts and self.names_in(label)):
            raise DataError(
                f"{where}: {label!r} is no list of findings; expected different names, separated by {SEPARATOR!r}, or "
                f"{NO_FINDING!r} alone"
            )

    def read_labels(self, labels: Sequence[str], classes: Sequence[str]) -> NDArray[np.int64]:
        """1 present, 0 absent, -1 unknown, shape ``(n, findings)``; findings outside the vocabulary do not count.

        Example:
            >>> MultiLabel().read_labels(["effusion|?mass", ""], ["effusion", "mass", "nodule"]).tolist()
            [[1, -1, 0], [-1, -1, -1]]
        """
        import numpy as np

        index = {name: number for number, name in enumerate(classes)}
        labels_read = np.full((len(labels), len(classes)), ABSENT, np.int64)
        for row, label in zip(labels_read, labels, strict=True):
            if not label:
                row[:] = UNKNOWN
            for names, value in ((self.mentioned_in(label), UNKNOWN), (self.names_in(label), PRESENT)):
                row[[index[name] for name in names if name in index]] = value
        return labels_read

    def known(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether it is known of one finding at least."""
        return (labels != UNKNOWN).any(axis=1)

    def class_counts(self, labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
        """Images with each finding."""
        return (labels == PRESENT).sum(axis=0)

    def expected_counts(self, labels: NDArray[np.int64], classes: int) -> NDArray[np.int64] | None:
        """None: findings are independent of each other."""
        return None

    def probabilities(self, logits: Tensor) -> Tensor:
        """Sigmoid of each finding.

        Example:
            >>> import torch
            >>> MultiLabel().probabilities(torch.zeros(1, 3))
            tensor([[0.5000, 0.5000, 0.5000]])
        """
        from grandrounds.protocol.tensors import at_least_single

        return at_least_single(logits).sigmoid()

    def loss(self, logits: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
        r"""Binary cross-entropy, mean over the findings of which it is known whether an image shows them.

        .. math:: L_s = -\frac{1}{|K|} \sum_{(i, f) \in K} \big[ w_f y_{if} \ln p_{if} + (1 - y_{if}) \ln (1 - p_{if}) \big],
            \qquad p = \sigma(z)

        Args:
            logits: :math:`z`, shape ``(batch, findings)``, floating point.
            labels: :math:`y`: 1 present, 0 absent, negative where it is not known, shape ``(batch, findings)``, int64.
            class_weights: :math:`w`, the weight of images that show the finding, shape ``(findings,)``, not negative; None
                for equal weights.

        Returns:
            Scalar, in nats; zero, with zero gradient, if nothing is known.

        Raises:
            ValueError: if the shapes do not fit together.

        Example:
            >>> import torch
            >>> logits, labels = torch.zeros(1, 3), torch.tensor([[1, 0, -1]])
            >>> MultiLabel().loss(logits, labels, torch.tensor([3.0, 1.0, 1.0]))  # (3 ln 2 + ln 2) / 2
            tensor(1.3863)
        """
        import torch
        from torch.nn import functional as F

        _require_batch(logits, labels)
        if class_weights is not None and class_weights.shape != logits.shape[1:]:
            raise ValueError(f"class_weights must have shape ({logits.shape[1]},), got {tuple(class_weights.shape)}")
        known = labels >= 0
        weights = None if class_weights is None else class_weights.to(logits)
        losses = F.binary_cross_entropy_with_logits(
            logits, labels.clamp(min=0).to(logits), pos_weight=weights, reduction="none"
        )
        return torch.where(known, losses, 0.0).sum() / known.sum().clamp(min=1)

    def smoothed_loss(self, views: Sequence[Tensor], labels: Tensor, smoothing: float = 0.0) -> Tensor:
        r"""Binary cross-entropy of findings with smoothed labels, summed over the views of a batch.

        .. math:: L_l = \sum_v \Big[ (1 - \tfrac{s}{2}) L_s(y, z^v) + \tfrac{s}{2} L_s(1 - y, z^v) \Big]

        with :math:`L_s` of :meth:`loss`.

        Example:
            >>> import torch
            >>> MultiLabel().smoothed_loss([torch.zeros(1, 2)] * 2, torch.tensor([[1, 0]]), 0.1)  # 2 ln 2
            tensor(1.3863)
        """
        import torch

        opposite = torch.where(labels < 0, labels, 1 - labels)
        sums = [
            (1 - smoothing / 2) * self.loss(logits, labels) + smoothing / 2 * self.loss(logits, opposite)
            for logits in views
        ]
        return torch.stack(sums).sum()

    def likeliest(self, logits: Tensor) -> Tensor:
        """Present where the logit is not negative, shape ``(batch, findings)``."""
        return (logits.detach() >= 0).long()

    def pseudo_labels(self, probabilities: Tensor, threshold: float | Tensor) -> PseudoLabels:
        r"""Label each finding of each image, and accept confident labels.

        .. math:: \hat y_{if} = [p_{if} \ge \tfrac{1}{2}], \qquad m_{if} = [p_{if} \ge \tau] + [p_{if} \le 1 - \tau]

        Example:
            >>> import torch
            >>> found = MultiLabel().pseudo_labels(torch.tensor([[0.95, 0.6, 0.05]]), threshold=0.9)
            >>> found.labels, found.accepted
            (tensor([[1, 1, 0]]), tensor([[ True, False,  True]]))
        """
        needed = require_fraction(threshold, "threshold") if isinstance(threshold, float | int) else threshold
        confidence = self.confidence(probabilities)
        return PseudoLabels((probabilities >= CALLED_FROM).long(), confidence >= needed, confidence)

    def pseudo_label_loss(
        self, logits: Tensor, labels: Tensor, accepted: Tensor, batch_size: int, reduction: Reduction
    ) -> Tensor:
        r"""Binary cross-entropy of the strong views with the accepted pseudo-labels of findings.

        .. math:: L_u = -\frac{1}{Z} \sum_{(i, f) : m_{if} = 1}
            \big[ \hat y_{if} \ln p_{if} + (1 - \hat y_{if}) \ln (1 - p_{if}) \big]

        with :math:`Z` the number accepted (``accepted_mean``), or all findings of the batch they were accepted from
        (``batch_mean``). A differentiable zero if nothing is accepted.

        Example:
            >>> import torch
            >>> accepted = torch.tensor([[True, False]])  # one of four findings: ln(2) / 4
            >>> MultiLabel().pseudo_label_loss(torch.zeros(1, 2), torch.tensor([[1, 1]]), accepted, 2, "batch_mean")
            tensor(0.1733)
        """
        import torch
        from torch.nn import functional as F

        _require_batch(logits, labels)
        require_at_least(batch_size, len(labels), "batch_size")
        losses = F.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none")
        total = torch.where(accepted, losses, 0.0).sum()
        learnt = accepted.sum().clamp(min=1)
        return total / (learnt if reduction == "accepted_mean" else max(batch_size * labels.shape[1], 1))

    def confidence(self, probabilities: Tensor) -> Tensor:
        """Of the likelier answer to each finding, shape ``(batch, findings)``."""
        return probabilities.maximum(1 - probabilities)

    def entropy(self, probabilities: Tensor) -> Tensor:
        """Of the two answers to each finding, shape ``(batch, findings)``."""
        import torch

        return torch.special.entr(probabilities) + torch.special.entr(1 - probabilities)

    def complete(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether it is known of all findings.

        Example:
            >>> import numpy as np
            >>> MultiLabel().complete(np.array([[1, 0], [1, -1]])).tolist()
            [True, False]
        """
        return (labels != UNKNOWN).all(axis=1)

    def image_weights(self, targets: Tensor, class_weights: Tensor) -> Tensor:
        """1 for each image."""
        return targets.new_ones(len(targets))

    def wrong_targets(self, targets: Tensor, images: Tensor, tolerance: float) -> str:
        """A finding has no more images than there are."""
        outside = (targets[-1] > images[-1] + tolerance).any() | (targets[-1] < -tolerance).any()
        return "a finding has more images than there are" if bool(outside) else ""

    def centre_and_offset(self, shares: Tensor, correction: float) -> tuple[Tensor, Tensor]:
        r"""The share, so that an average image has the logit :math:`(1 - \tau)\,\mathrm{logit}(p)` of the offset.

        Example:
            >>> import torch
            >>> [part.round(decimals=4).tolist() for part in MultiLabel().centre_and_offset(torch.tensor([0.2]), 0.0)]
            [[0.2], [-1.3863]]
        """
        import torch

        shares = shares.double()
        inside = (shares > 0) & (shares < 1)
        prior = torch.where(inside, shares, 0.5)
        offset = (1 - correction) * (prior / (1 - prior)).log()
        return shares, torch.where(shares > 0, offset, MASKED)

    def answers(self, classes: int) -> tuple[int, ...]:
        """``(findings, 2)``."""
        return classes, 2

    def answer_names(self, classes: Sequence[str]) -> list[str]:
        """The absence and the presence of each finding."""
        return [f"{name} {answer}" for name in classes for answer in ("absent", "present")]

    def entries(self, labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The known findings of the images, image by image."""
        images, findings = (labels >= 0).nonzero()
        return images, 2 * findings + labels[images, findings]

    def as_answers(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The answers of all images to each finding, with logits ``(0, logit)``.

        Example:
            >>> import torch
            >>> MultiLabel().as_answers(torch.tensor([[2.0, -1.0]]), torch.tensor([[1, -1]]))
            (tensor([[ 0.,  2.],
                    [ 0., -1.]]), tensor([1, 2]), tensor([ True, False]))
        """
        import torch

        vectors = torch.stack([torch.zeros_like(logits), logits], dim=-1).reshape(-1, 2)
        rows = 2 * torch.arange(labels.shape[1], device=labels.device) + labels.clamp(min=0)
        return vectors, rows.reshape(-1), (labels >= 0).reshape(-1)

    def decide(self, probabilities: NDArray[np.floating]) -> NDArray[np.int64]:
        """1 from a probability of ``CALLED_FROM`` on, shape ``(n, findings)``."""
        return (probabilities >= CALLED_FROM).astype("int64")

    def predicted_cells(
        self, probabilities: Floats, decided: Ints, classes: Names, thresholds: Mapping[str, float]
    ) -> list[str]:
        """The findings that are decided to be there, or that reach their own thresholds."""
        called = decided > 0
        for name, limit in thresholds.items():
            if name not in classes:
                raise ConfigurationError(f"thresholds: {name!r} is no finding of this run")
            called[:, classes.index(name)] = probabilities[:, classes.index(name)] >= limit
        return [self.cell([name for name, own in zip(classes, row, strict=True) if own]) for row in called]

    def questions(self, labels: Ints, probabilities: Floats, decided: Ints | None = None) -> list[Question]:
        """A question for each finding: 0 absent, 1 present, of the images where it is known.

        Example:
            >>> import numpy as np
            >>> labels, probabilities = np.array([[1, -1], [0, 1]]), np.array([[0.9, 0.2], [0.6, 0.4]])
            >>> [(one.labels.tolist(), one.predicted.tolist()) for one in MultiLabel().questions(labels, probabilities)]
            [([1, 0], [1, 1]), ([1], [0])]
        """
        import numpy as np

        if labels.ndim == 2 and not len(labels):
            probabilities = probabilities.reshape(labels.shape)
        if labels.ndim != 2 or labels.shape != probabilities.shape:
            raise ValueError(
                "expected labels and probabilities of shape (images, findings), "
                f"got {labels.shape} and {probabilities.shape}"
            )
        if not ((probabilities >= 0) & (probabilities <= 1)).all():
            raise ValueError("probabilities must be in [0, 1]")
        questions, decided = [], (self.decide(probabilities) if decided is None else decided).reshape(labels.shape)
        for truth, present, called in zip(labels.T, probabilities.T.astype(np.float64), decided.T, strict=True):
            rows = np.flatnonzero(truth >= 0)
            both = np.stack([1 - present[rows], present[rows]], axis=1)
            questions.append(Question(rows, truth[rows], called[rows], both, (PRESENT,)))
        return questions

    def answered(self, labels: NDArray[np.int64], probabilities: NDArray[np.floating]) -> NDArray[np.floating]:
        """The probability of each known answer, image by image."""
        import numpy as np

        return np.where(labels == PRESENT, probabilities, 1 - probabilities)[labels >= 0]

    def wrong(self, labels: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
        """The opposite of each finding; a half where it is not known.

        Example:
            >>> import numpy as np
            >>> MultiLabel().wrong(np.array([[1, 0, -1]]), 3).tolist()
            [[0.0, 1.0, 0.5]]
        """
        import numpy as np

        return np.where(labels == UNKNOWN, 0.5, 1.0 - labels)

    def prediction_header(self, classes: Sequence[str]) -> list[str]:
        """The label, the prediction and the probability of each finding."""
        return [f"{kind}_{name}" for kind in ("label", "predicted", "probability") for name in classes]

    def prediction_cells(self, label: Ints, values: Sequence[float], decided: Ints, classes: Names) -> list[str]:
        """1, 0, or nothing where it is not known, for each finding; 1 or 0 as predicted; then the probabilities."""
        return [*("" if one < 0 else str(one) for one in (*label, *decided)), *(f"{value:.9g}" for value in values)]

    def read_prediction(self, cells: Sequence[str], classes: Sequence[str]) -> tuple[Ints, list[float], Ints]:
        """The answers, the probabilities of the findings, and the predicted answers."""
        import numpy as np

        if len(cells) not in (2 * len(classes), 3 * len(classes)):  # the fewer without predicted answers
            raise ValueError(f"{len(cells)} cells after the image, expected {3 * len(classes)}")
        values = [float(cell) for cell in cells[-len(classes) :]]
        if not all(0 <= value <= 1 for value in values):
            raise ValueError("probabilities must be in [0, 1]")
        answers = np.array([float(cell or UNKNOWN) for cell in cells[: len(classes)]]).astype("int64")
        decided = [int(cell) for cell in cells[len(classes) : -len(classes)]] or self.decide(np.array(values))
        return answers, values, np.array(decided, np.int64)


def _require_batch(logits: Tensor, labels: Tensor) -> None:
    if logits.dim() != 2 or labels.shape != logits.shape:
        raise ValueError(
            f"expected logits and labels of shape (batch, findings), got {tuple(logits.shape)} and {tuple(labels.shape)}"
        )
