"""What sites with and without labels minimise.

Liu et al. (FedIRM), MICCAI 2021, Eq. 1, 6 and 7. The text has plain cross-entropy at labelled sites and weights of one;
the authors' code smooths labels, adds up two views, and weighs the unlabelled loss by 15 and its relation term by a half.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from grandrounds.checks import require_at_least, require_fraction
from grandrounds.methods.fedirm.relation import Relation

# The logarithm of a row that has underflowed, as it does in half precision, would be infinite.
FLOOR = 1e-8


def labelled_loss(views: Sequence[Tensor], labels: Tensor, smoothing: float = 0.0) -> Tensor:
    r"""Cross-entropy with smoothed labels, added up over the views of a batch.

    .. math:: L_l = \sum_v \frac{1}{B} \sum_i \Big[ (1 - s)(-\ln p^v_{i y_i}) + \frac{s}{C} \sum_c -\ln p^v_{ic} \Big]

    Args:
        views: logits of each view, every one of shape ``(batch, classes)``; one view in the text, two in the code.
        labels: class indices, shape ``(batch,)``, int64.
        smoothing: :math:`s`, in [0, 1]; 0 in the text, 0.1 in the code.

    Returns:
        Scalar, in nats; zero, and still differentiable, for an empty batch.

    Raises:
        ValueError: if there is no view, a shape does not fit, or ``smoothing`` is out of range.

    Example:
        >>> logits, labels = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0])
        >>> labelled_loss([logits], labels), labelled_loss([logits], labels, smoothing=0.1)
        (tensor(0.2395), tensor(0.3729))
    """
    require_fraction(smoothing, "smoothing")
    if not views:
        raise ValueError("the labelled loss needs at least one view, got none")
    for number, logits in enumerate(views):
        if logits.dim() != 2 or logits.shape[:1] != labels.shape:
            raise ValueError(
                f"expected logits (batch, classes) and labels (batch,), got {tuple(logits.shape)} in view {number} "
                f"and {tuple(labels.shape)}"
            )
    sums = [F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing) for logits in views]
    return torch.stack(sums).sum() / max(len(labels), 1)


def consistency_loss(student: Tensor, teacher: Tensor, batch_size: int | None = None) -> Tensor:
    r"""Squared distance of the predictions on two views of the same images (Eq. 1, as a mean).

    .. math:: L_c = \frac{1}{B} \sum_i \lVert p_i - p_{t,i} \rVert^2

    Args:
        student: :math:`p`, probabilities with gradient, shape ``(batch, classes)``.
        teacher: :math:`p_t`, probabilities of that shape; they get no gradient.
        batch_size: :math:`B`; None is the number of images. The code divides a short batch by the full size, 48.

    Returns:
        Scalar, at least zero; zero, and still differentiable, for an empty batch.

    Raises:
        ValueError: if the shapes differ, or ``batch_size`` is below the number of images.

    Example:
        >>> student, teacher = torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([[0.6, 0.3, 0.1]])
        >>> consistency_loss(student, teacher)
        tensor(0.0200)
    """
    if student.dim() != 2 or teacher.shape != student.shape:
        raise ValueError(
            "student and teacher must both have shape (batch, classes), "
            f"got {tuple(student.shape)} and {tuple(teacher.shape)}"
        )
    divisor = len(student) if batch_size is None else batch_size
    require_at_least(divisor, len(student), "batch_size")
    return (student - teacher.detach()).square().sum() / max(divisor, 1)


def relation_matching_loss(target: Relation, own: Relation) -> Tensor:
    r"""Symmetric divergence of the own relation matrix from that of the labelled sites (Eq. 6).

    .. math::
        L_{IRM} = \frac{1}{C} \sum_{c} \big[ \mathrm{KL}(M_c \Vert s_c) + \mathrm{KL}(s_c \Vert M_c) \big]
                = \frac{1}{C} \sum_{c, j} (M_{cj} - s_{cj}) (\ln M_{cj} - \ln s_{cj})

    over the rows that both know. The divisor is :math:`C` whatever their number, so a row that a batch lacks has the
    gradient that it has in the code, where it is uniform and constant: none.

    Args:
        target: :math:`M`, of the labelled sites; it gets no gradient.
        own: :math:`s`, of a batch.

    Returns:
        Scalar, at least zero, in nats; zero, and still differentiable, where no row is known to both.

    Raises:
        ValueError: if the two are for different numbers of classes.

    Example:
        >>> target = Relation(torch.tensor([[0.8, 0.2], [0.2, 0.8]]), torch.tensor([2, 2]))
        >>> own = Relation(torch.full((2, 2), 0.5), torch.tensor([3, 0]))
        >>> relation_matching_loss(target, own)  # 0.3 ln 4, over two classes
        tensor(0.2079)
        >>> relation_matching_loss(target, target)
        tensor(0.)
    """
    if target.matrix.shape != own.matrix.shape:
        raise ValueError(
            "both relation matrices must be for the same classes, "
            f"got {tuple(target.matrix.shape)} and {tuple(own.matrix.shape)}"
        )
    wanted = target.matrix.detach().to(own.matrix).clamp(min=FLOOR)
    given = own.matrix.clamp(min=FLOOR)
    divergences = ((wanted - given) * (wanted.log() - given.log())).sum(dim=1)
    known = target.known.to(own.support.device) & own.known
    return torch.where(known, divergences, 0.0).sum() / len(known)


def unlabelled_loss(
    consistency: Tensor, matching: Tensor, ramp: float, scale: float = 1.0, relation_weight: float = 1.0
) -> Tensor:
    r"""The objective of a site without labels (Eq. 7).

    .. math:: L_u = \lambda \, \kappa \, (L_c + \rho \, L_{IRM})

    Args:
        consistency: :math:`L_c`, scalar.
        matching: :math:`L_{IRM}`, scalar.
        ramp: :math:`\lambda`, the round's weight, in [0, 1].
        scale: :math:`\kappa`, at least zero; 1 in the text, 15 in the code.
        relation_weight: :math:`\rho`, at least zero; 1 in the text, 0.5 in the code, 0 is Fed-Consistency.

    Returns:
        Scalar.

    Raises:
        ValueError: if a weight is out of range.

    Example:
        >>> unlabelled_loss(torch.tensor(0.02), torch.tensor(0.6), ramp=0.5)
        tensor(0.3100)
    """
    require_fraction(ramp, "ramp")
    require_at_least(scale, 0, "scale")
    require_at_least(relation_weight, 0, "relation_weight")
    return ramp * scale * (consistency + relation_weight * matching)
