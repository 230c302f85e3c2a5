"""The losses of sites without labels; that of the others is the task's ``smoothed_loss``.

Liu et al. (FedIRM), MICCAI 2021, Eq. 1, 6 and 7. The text has plain cross-entropy at labelled sites and weights of one;
the authors' code smooths labels, sums two views, and weights the unlabelled loss by 15 and its relation term by a half.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from grandrounds.methods.fedirm.relation import Relation

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
