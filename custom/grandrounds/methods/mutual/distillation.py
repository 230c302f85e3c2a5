r"""The first step of Adam, over and over: what RHFL's alignment does.

RHFL's code (Fang & Ye, CVPR 2022) makes a new optimiser for every public batch. The first step of Adam (Kingma & Ba, ICLR
2015), whose averages are then the gradient and its square, is :math:`-\eta \, g / (|g| + \epsilon)`: descent by the sign of
the gradient, whatever its scale. So the weights of the clients matter in RHFL by their proportions only.

Learning from soft labels on the public images: MDH-FL's alignment, and what FedMD and FedDF do in its place.

MDH-FL (arXiv 2308.00155, Eq. 1-3) and RHFL (Fang & Ye, CVPR 2022) move every model towards the predictions of the others:
the mean over the others of KL(theirs || own). It differs from KL(mean of theirs || own) by a term without the own
parameters, so the mean is all that a site has to know. FedMD: Li & Wang, "FedMD: Heterogenous Federated Learning via Model
Distillation", 2019. FedDF: Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from grandrounds.checks import require_at_least


@torch.no_grad()
def fresh_adam_step(parameters: Iterable[Tensor], learning_rate: float = 1e-3, epsilon: float = 1e-8) -> None:
    r"""Move parameters as a new Adam would in its first step, in place and without its state.

    .. math:: \theta \leftarrow \theta - \eta \frac{g}{|g| + \epsilon}

    Args:
        parameters: with their gradients; those without (frozen, or no part of the loss) stay.
        learning_rate: :math:`\eta`, at least zero.
        epsilon: :math:`\epsilon`, above zero; where the gradient is zero nothing moves.

    Raises:
        ValueError: if an option is out of range.
    """
    require_at_least(learning_rate, 0, "learning_rate")
    if not epsilon > 0:
        raise ValueError(f"epsilon must be positive, got {epsilon}")
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.addcdiv_(parameter.grad, parameter.grad.abs() + epsilon, value=-learning_rate)


Averaging = Literal["logits", "probabilities"]


def alignment_loss(logits: Tensor, target: Tensor) -> Tensor:
    r"""Divergence of the own predictions from the mean of the others' (MDH-FL, Eq. 3, up to a constant).

    .. math:: L = \frac{1}{B} \sum_{i, c} m_{ic} \ln \frac{m_{ic}}{p_{ic}}, \qquad
        \frac{\partial L}{\partial z} = (p - m) / B

    The others are the target and get no gradient; there is no temperature. The gradient is that of the mean over the others
    of the divergences from each of them: the two differ by the mean divergence of the others from their mean.

    Args:
        logits: the own model's, shape ``(batch, classes)``.
        target: :math:`m`, probabilities of that shape; zeros are allowed.

    Returns:
        Scalar, in nats, at least zero; zero, and still differentiable, for an empty batch.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> own = torch.tensor([[0.5, 0.5]]).log()
        >>> alignment_loss(own, torch.tensor([[1.0, 0.0]]))  # ln 2
        tensor(0.6931)
        >>> alignment_loss(own, own.softmax(dim=1))  # they agree
        tensor(0.)
    """
    _require_same_shape(logits, target)
    wanted = target.detach()
    divergences = torch.xlogy(wanted, wanted) - wanted * logits.log_softmax(dim=1)
    return divergences.sum() / max(len(logits), 1)


def digest_loss(logits: Tensor, target: Tensor) -> Tensor:
    r"""Mean absolute error of the own scores from the mean of all sites' scores (FedMD, "digest").

    .. math:: L = \frac{1}{B C} \sum_{i, c} | z_{ic} - \bar z_{ic} |

    Args:
        logits: the own model's, shape ``(batch, classes)``.
        target: :math:`\bar z`, mean of the logits of all sites, the own included; no gradient.

    Returns:
        Scalar, at least zero; zero, and still differentiable, for an empty batch.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> digest_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.5]]))
        tensor(0.7500)
    """
    _require_same_shape(logits, target)
    return (logits - target.detach()).abs().sum() / max(logits.numel(), 1)


def ensemble_target(teachers: Sequence[Tensor], averaging: Averaging = "logits") -> Tensor:
    r"""Soft labels of all sites' models together, to which FedDF distils each of its students.

    .. math:: t = \mathrm{softmax}\Big(\frac{1}{P} \sum_j z_j\Big) \quad\text{or}\quad
        t = \frac{1}{P} \sum_j \mathrm{softmax}(z_j)

    The students' loss is :func:`alignment_loss`. With ``probabilities`` its gradient is that of FedDF's mean over the
    teachers of the divergences from each.

    Args:
        teachers: logits of each model, every one of shape ``(batch, classes)``.
        averaging: what is averaged; ``logits`` is FedDF's text, ``probabilities`` the default of its code.

    Returns:
        Probabilities, shape ``(batch, classes)``, without gradient.

    Raises:
        ValueError: if there is no teacher, their shapes differ, or ``averaging`` is unknown.

    Example:
        >>> ensemble_target([torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.2, 0.8]]).log()])
        tensor([[0.5000, 0.5000]])
    """
    if averaging not in get_args(Averaging):
        raise ValueError(f"averaging must be logits or probabilities, got {averaging!r}")
    if not teachers:
        raise ValueError("an ensemble needs at least one teacher, got none")
    for teacher in teachers:
        _require_same_shape(teachers[0], teacher)
    scores = torch.stack([teacher.detach() for teacher in teachers])
    if averaging == "logits":
        return scores.mean(dim=0).softmax(dim=-1)
    return scores.softmax(dim=-1).mean(dim=0)


def _require_same_shape(logits: Tensor, target: Tensor) -> None:
    if logits.dim() != 2 or target.shape != logits.shape:
        raise ValueError(
            f"logits and target must both have shape (batch, classes), got {tuple(logits.shape)} and {tuple(target.shape)}"
        )
