"""Class relation matrices: the softened mean prediction of a model for each class.

Liu et al., "Federated Semi-supervised Medical Image Classification via Inter-client Relation Matching" (FedIRM), MICCAI
2021, Eq. 2, 3 and 5, and the mean over sites of section 2.3. The text takes logits in Eq. 2 and probabilities in Eq. 5;
softened probabilities are almost uniform and can never match, so logits are the default for both, as in the authors' code.
The row of an absent class is masked here; in the code it is uniform and pulls the mean towards itself.

Of findings, of which an image may have several, each is a question with two classes: its two rows are the softened mean of
``(0, logit)`` over the images without it and over those with it, so that a row of finding f is ``[1 - p, p]``.

The losses of sites without labels are Eq. 1, 6 and 7; that of the others is the task's ``smoothed_loss``. The text has
plain cross-entropy at labelled sites and weights of one; the authors' code smooths labels, sums two views, and weights
the unlabelled loss by 15 and its relation term by a half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from grandrounds.checks import require_probabilities
from grandrounds.protocol.task import Task

TEMPERATURE = 2.0
MIN_SUPPORT = 5
NOT_RELEASED = -1

RelationSource = Literal["logits", "probabilities"]
RelationAverage = Literal["samples", "batches", "exact"]


class Relation(NamedTuple):
    """A class relation matrix.

    Attributes:
        matrix: row c is the softened mean prediction for class c, shape ``(classes, classes)``; rows sum to one. Of findings
            rows 2f and 2f + 1 are of the images without and with finding f, shape ``(2 findings, 2)``.
        support: the number behind each row, shape ``(rows,)``: samples of a batch, patients of a site's round, sites of a
            mean. A row with zero is uniform and excluded from losses; ``WITHHELD`` (-1) marks a row that its site does not
            release, whether too few patients have the class or none.
    """

    matrix: Tensor
    support: Tensor

    @property
    def known(self) -> Tensor:
        """The rows with support, shape ``(rows,)``, bool."""
        return self.support > 0


def relation_matrix(
    vectors: Tensor,
    labels: Tensor,
    temperature: float = TEMPERATURE,
    keep: Tensor | None = None,
    rows: int | None = None,
) -> Relation:
    r"""Soften the mean prediction of each class.

    .. math:: v_c = \frac{1}{N_c} \sum_{i : m_i, y_i = c} z_i, \qquad M_c = \mathrm{softmax}(v_c / \tau)

    Args:
        vectors: :math:`z`, logits (or probabilities, as Eq. 5 prints), shape ``(batch, classes)``.
        labels: :math:`y`, true or pseudo-labels, shape ``(batch,)``, int64.
        temperature: :math:`\tau`, above zero.
        keep: :math:`m`, the samples to use, shape ``(batch,)``, bool; None for all.
        rows: of the matrix; None for as many as classes.

    Returns:
        At least in single precision. Rows of absent classes have no gradient.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, 0.0], [4.0, 0.0, -2.0], [0.0, 2.0, 0.0]])
        >>> relation_matrix(logits, torch.tensor([0, 0, 1]))  # of class 0 the softmax of (1.5, 0, -0.5)
        Relation(matrix=tensor([[0.7361, 0.1643, 0.0996],
                [0.2119, 0.5761, 0.2119],
                [0.3333, 0.3333, 0.3333]]), support=tensor([2, 1, 0]))
    """
    sums, support = _class_sums(vectors, labels, keep, rows)
    return Relation(_soften(sums, support, temperature), support)


def pseudo_relation(
    task: Task, logits: Tensor, keep: Tensor, temperature: float = TEMPERATURE, source: RelationSource = "logits"
) -> Relation:
    r"""The relation matrix of an unlabelled batch, from its certain pseudo-labels (Eq. 5).

    Args:
        task: what labels are.
        logits: of the local model, shape ``(batch, classes)``; the pseudo-label is the likeliest.
        keep: the certain predictions, bool, of the shape of labels.
        temperature: :math:`\tau`, above zero.
        source: the vectors to average: ``logits`` (authors' code), or ``probabilities`` (as printed).

    Example:
        >>> from grandrounds.protocol.tasks import SINGLE
        >>> pseudo_relation(SINGLE, torch.tensor([[3.0, 0.0], [0.0, 5.0]]), torch.tensor([True, False])).support
        tensor([1, 0])
    """
    rows, _ = task.relation_shape(logits.shape[1])
    vectors, labels, _ = task.as_answers(logits, task.likeliest(logits))
    if source == "probabilities":
        vectors = torch.softmax(vectors.to(_wide(vectors)), dim=-1)
    return relation_matrix(vectors, labels, temperature, keep.reshape(-1), rows)


class RelationAccumulator:
    r"""The relation matrix of a labelled site, from the logits of its batches.

    Args:
        task: what labels are.
        classes: number of classes, at least two.
        temperature: :math:`\tau`, above zero.
        average: ``samples`` and ``exact`` soften the mean of all logits of a class (Eq. 2 and 3); ``batches`` is the mean of
            the batches' matrices (authors' code), in which an absent class is a uniform row.

    Example:
        >>> from grandrounds.protocol.tasks import SINGLE
        >>> accumulator = RelationAccumulator(SINGLE, classes=2)
        >>> accumulator.add(torch.tensor([[4.0, 0.0]]), torch.tensor([0]))
        >>> accumulator.add(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
        >>> accumulator.relation()  # of class 0 the softmax of (1, 0)
        Relation(matrix=tensor([[0.7311, 0.2689],
                [0.5000, 0.5000]]), support=tensor([2, 0]))
    """

    def __init__(
        self, task: Task, classes: int, temperature: float = TEMPERATURE, average: RelationAverage = "samples"
    ) -> None:
        self._task = task
        self._temperature = temperature
        self._average = average
        self._total = torch.zeros(task.relation_shape(classes), dtype=torch.float64)
        self._support = torch.zeros(len(self._total), dtype=torch.int64)
        self._batches = 0

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch: logits ``(batch, classes)``, and labels."""
        vectors, labels, known = self._task.as_answers(logits.detach().double(), labels)
        sums, support = _class_sums(vectors, labels, known, len(self._total))
        if self._average == "batches":
            sums = _soften(sums, support, self._temperature)
        self._total = self._total.to(sums.device) + sums
        self._support = self._support.to(sums.device) + support
        self._batches += 1

    def relation(self) -> Relation:
        """The matrix of all batches so far, in single precision."""
        if self._average == "batches" and self._batches:
            return Relation((self._total / self._batches).float(), self._support)
        return Relation(_soften(self._total, self._support, self._temperature).float(), self._support)


def withhold_rows(relation: Relation, min_support: int = MIN_SUPPORT) -> Relation:
    """Withhold the rows with too few patients before a matrix leaves its site.

    The row of a class with one patient is this patient's prediction. Rows of absent classes are withheld, too: otherwise a
    withheld row would reveal that the class has a few patients.

    Returns:
        The relation of one site with withheld rows uniform and of support ``WITHHELD``: they are never known or counted.

    Example:
        >>> withhold_rows(Relation(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([1, 20])))
        Relation(matrix=tensor([[0.5000, 0.5000],
                [0.3000, 0.7000]]), support=tensor([-1, 20]))
    """
    released = relation.support >= min_support
    matrix = torch.where(released[:, None], relation.matrix, 1 / relation.matrix.shape[1])
    return Relation(matrix, torch.where(released, relation.support, NOT_RELEASED))


def mean_relation(relations: Sequence[Relation], min_support: int = MIN_SUPPORT) -> Relation:
    r"""Average the labelled sites' matrices, each row over the sites with enough support (section 2.3).

    .. math:: M_c = \frac{1}{|S_c|} \sum_{l \in S_c} M_c^l, \qquad S_c = \{l : N_c^l \ge n\}

    Args:
        relations: one per labelled site, at least one, of one shape and with equal weights.
        min_support: :math:`n`; 0 counts all rows, the uniform ones of absent classes, too (paper and code), except withheld
            ones.

    Returns:
        On the CPU, in single precision, with ``support`` :math:`|S_c|`; independent of the order of the sites.

    Example:
        >>> first = Relation(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([20, 20]))
        >>> second = Relation(torch.tensor([[0.7, 0.3], [0.5, 0.5]]), torch.tensor([20, 1]))
        >>> mean_relation([first, second])
        Relation(matrix=tensor([[0.8000, 0.2000],
                [0.3000, 0.7000]]), support=tensor([2, 1]))
    """
    matrices = torch.stack([relation.matrix.detach().double().cpu() for relation in relations])
    counted = torch.stack([relation.support.cpu() >= min_support for relation in relations])
    # A floating-point sum depends on its order; sorting makes it independent of that of the sites.
    total = torch.where(counted[:, :, None], matrices, 0.0).sort(dim=0).values.sum(dim=0)
    return relation_of_sum(total, counted.sum(dim=0))


def relation_of_sum(total: Tensor, sites: Tensor) -> Relation:
    """The mean of matrices from their sum over the sites that know each row.

    Args:
        total: shape ``(rows, columns)``.
        sites: their number for each row, shape ``(rows,)``; a row of none is uniform.
    """
    mean = torch.where(sites[:, None] > 0, total / sites.clamp(min=1)[:, None], 1 / total.shape[1])
    return Relation(mean.float(), sites)


def relation_distance(first: Relation, second: Relation) -> Tensor:
    r"""Mean absolute difference of two matrices over the rows that are known in both.

    Returns:
        Scalar in [0, 2 / classes], without a graph; NaN if no row is known in both.

    Example:
        >>> relation = Relation(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([1, 0]))
        >>> relation_distance(relation, Relation(torch.full((2, 2), 0.5), torch.tensor([1, 1])))
        tensor(0.4000)
    """
    both = first.known & second.known.to(first.support.device)
    return (first.matrix.detach() - second.matrix.detach().to(first.matrix)).abs()[both].mean()


def require_relation(relation: Relation, shape: tuple[int, int], name: str) -> None:
    """Check a received matrix; ``shape`` is :meth:`Task.relation_shape`, ``name`` its name in errors.

    Raises:
        ValueError: if matrix or support have another shape, a row is not a distribution, or a support is neither
            finite and at least zero nor ``WITHHELD``.
    """
    matrix, support = relation
    rows, columns = shape
    if matrix.shape != (rows, columns):
        raise ValueError(f"{name} must have shape ({rows}, {columns}), a row for each class, got {tuple(matrix.shape)}")
    if support.shape != (rows,):
        raise ValueError(f"the support of {name} must have shape ({rows},), got {tuple(support.shape)}")
    require_probabilities(matrix, name)
    bad = ~torch.isfinite(support) | ((support < 0) & (support != NOT_RELEASED))
    if bad.any():
        row = int(bad.nonzero()[0])
        raise ValueError(
            f"the support of {name} must be 0 or more, or {NOT_RELEASED} for a withheld row, "
            f"got {support[row].item()} for class {row}"
        )


def _class_sums(
    vectors: Tensor, labels: Tensor, keep: Tensor | None = None, rows: int | None = None
) -> tuple[Tensor, Tensor]:
    """Sums of the kept vectors of each class, shape ``(rows, classes)``, and their number."""
    classes = vectors.shape[1] if rows is None else rows
    kept = torch.ones_like(labels, dtype=torch.bool) if keep is None else keep
    wide = torch.where(kept[:, None], vectors.to(_wide(vectors)), 0.0)
    # Not a product with one-hot labels: autocast would round it to half precision.
    sums = wide.new_zeros(classes, vectors.shape[1]).index_add(0, labels, wide)
    return sums, labels.new_zeros(classes).index_add(0, labels, kept.to(labels.dtype))


def _soften(sums: Tensor, support: Tensor, temperature: float) -> Tensor:
    return torch.softmax(sums / support.clamp(min=1)[:, None] / temperature, dim=1)


def _wide(tensor: Tensor) -> torch.dtype:
    """At least single precision, for means and logarithms."""
    return torch.promote_types(tensor.dtype, torch.float32)


RampKind = Literal["squared", "printed"]

# The logarithm of a row that has underflowed, as in half precision, would be infinite.
FLOOR = 1e-8


def consistency_loss(student: Tensor, teacher: Tensor, batch_size: int | None = None) -> Tensor:
    r"""Squared distance between the predictions on two views of the same images (Eq. 1, as a mean).

    .. math:: L_c = \frac{1}{B} \sum_i \lVert p_i - p_{t,i} \rVert^2

    Of findings :math:`p` has the probability of each.

    Args:
        student: :math:`p`, probabilities with gradient, shape ``(batch, classes)``.
        teacher: :math:`p_t`, probabilities of that shape; they get no gradient.
        batch_size: :math:`B`, at least the number of images, which None is. The code divides a short batch by the full
            size, 48.

    Returns:
        Scalar, at least zero; a differentiable zero for an empty batch.

    Example:
        >>> student, teacher = torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([[0.6, 0.3, 0.1]])
        >>> consistency_loss(student, teacher)
        tensor(0.0200)
    """
    divisor = len(student) if batch_size is None else batch_size
    return (student - teacher.detach()).square().sum() / max(divisor, 1)


def relation_matching_loss(target: Relation, local: Relation) -> Tensor:
    r"""Symmetric divergence between a batch's relation matrix and that of the labelled sites (Eq. 6).

    .. math::
        L_{IRM} = \frac{1}{C} \sum_{c} \big[ \mathrm{KL}(M_c \Vert s_c) + \mathrm{KL}(s_c \Vert M_c) \big]
                = \frac{1}{C} \sum_{c, j} (M_{cj} - s_{cj}) (\ln M_{cj} - \ln s_{cj})

    over the rows that are known in both. The divisor is always :math:`C`: a row that a batch lacks has no gradient, as in
    the code, where it is uniform and constant.

    Args:
        target: :math:`M`, of the labelled sites; it gets no gradient.
        local: :math:`s`, of a batch, for the same classes.

    Returns:
        Scalar, at least zero, in nats; a differentiable zero if no row is known in both.

    Example:
        >>> target = Relation(torch.tensor([[0.8, 0.2], [0.2, 0.8]]), torch.tensor([2, 2]))
        >>> local = Relation(torch.full((2, 2), 0.5), torch.tensor([3, 0]))
        >>> relation_matching_loss(target, local)  # 0.3 ln 4, over two classes
        tensor(0.2079)
        >>> relation_matching_loss(target, target)
        tensor(0.)
    """
    expected = target.matrix.detach().to(local.matrix).clamp(min=FLOOR)
    given = local.matrix.clamp(min=FLOOR)
    divergences = ((expected - given) * (expected.log() - given.log())).sum(dim=1)
    known = target.known.to(local.support.device) & local.known
    return torch.where(known, divergences, 0.0).sum() / len(known)


def ramp_up(elapsed: float, length: float = 30.0, kind: RampKind = "squared") -> float:
    r"""The weight of the unlabelled loss in a round (section 3.1).

    .. math:: \lambda = \exp\big(-5 (1 - \min(\omega, \Omega) / \Omega)^2\big)

    Args:
        elapsed: :math:`\omega`, previous rounds (with several local epochs: epochs), at least zero.
        length: :math:`\Omega`, after which the weight is one, at least zero.
        kind: ``squared`` as above (Tarvainen & Valpola, NeurIPS 2017, and the authors' code), or as ``printed``, without the
            square, but limited to one: as printed it would be 148 in round 60.

    Returns:
        In (0, 1].

    Example:
        >>> [round(ramp_up(elapsed), 4) for elapsed in (0, 10, 20, 30, 60)]
        [0.0067, 0.1084, 0.5738, 1.0, 1.0]
    """
    if elapsed >= length:
        return 1.0
    missing = 1 - elapsed / length
    return math.exp(-5 * (missing**2 if kind == "squared" else missing))


def unlabelled_loss(
    consistency: Tensor, matching: Tensor, ramp: float, scale: float = 1.0, relation_weight: float = 1.0
) -> Tensor:
    r"""The loss of a site without labels (Eq. 7).

    .. math:: L_u = \lambda \, \kappa \, (L_c + \rho \, L_{IRM})

    Args:
        consistency: :math:`L_c`, scalar.
        matching: :math:`L_{IRM}`, scalar.
        ramp: :math:`\lambda`, the round's weight, in [0, 1].
        scale: :math:`\kappa`, at least zero; 1 in the text, 15 in the code.
        relation_weight: :math:`\rho`, at least zero; 1 in the text, 0.5 in the code, 0 is Fed-Consistency.

    Example:
        >>> unlabelled_loss(torch.tensor(0.02), torch.tensor(0.6), ramp=0.5)
        tensor(0.3100)
    """
    return ramp * scale * (consistency + relation_weight * matching)
