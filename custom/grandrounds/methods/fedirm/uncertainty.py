"""Pseudo-labels at sites without labels: Monte Carlo dropout and the mean teacher.

Gal & Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016; Liu et al. (FedIRM), MICCAI 2021, Eq. 4. The entropy is
that of the mean probability; the authors' code takes the mean of the logits, in which disagreement cancels. With dropout
before the last layer only, all draws are made from the features of one pass (:func:`head_draws`), which is exact and almost
free; :func:`full_draws` passes the whole network again for each. Tarvainen & Valpola, "Mean teachers are better role
models", NeurIPS 2017: the text compares two passes of one network, the authors' code has a mean teacher.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from grandrounds.errors import ConfigurationError
from grandrounds.models.norm import normalises_by_batch, statistics_untouched
from grandrounds.protocol.task import Task

ALPHA = 0.99
DRAWS = 8
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)

Network = TypeVar("Network", bound=nn.Module)


def predictive_entropy(task: Task, draws: Tensor) -> Tensor:
    r"""Predictive entropy: the entropy of the mean of several predictions (Eq. 4).

    .. math:: w_i = -\sum_c \bar q_{ic} \ln \bar q_{ic}, \qquad \bar q_i = \frac{1}{T} \sum_t q_{t,i}

    Args:
        task: what labels are; findings have two answers each.
        draws: :math:`q`, probabilities (not logits), shape ``(draws, batch, classes)``, at least one draw.

    Returns:
        Shape ``(batch,)``, in nats, from 0 (certain) to the logarithm of the number of classes; of findings shape ``(batch,
        findings)``, up to ln 2.

    Example:
        >>> from grandrounds.protocol.tasks import SINGLE
        >>> predictive_entropy(SINGLE, torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))  # two draws that disagree: ln 2
        tensor([0.6931])
        >>> predictive_entropy(SINGLE, torch.tensor([[[1.0, 0.0]]]))
        tensor([0.])
    """
    return task.entropy(draws.mean(dim=0))


def certain(task: Task, draws: Tensor, threshold: float | None = None) -> Tensor:
    r"""Select the samples, or the findings of samples, whose prediction is certain: :math:`w_i < h`.

    Args:
        task: what labels are.
        draws: probabilities, shape ``(draws, batch, classes)``.
        threshold: :math:`h`, in nats, at least zero. With five to seven classes ln 2 corresponds to a probability of
            about 0.83.

    Returns:
        Shape ``(batch,)``, or ``(batch, findings)``, bool.

    Example:
        >>> from grandrounds.protocol.tasks import SINGLE
        >>> certain(SINGLE, torch.tensor([[[0.9, 0.1, 0.0], [0.5, 0.5, 0.0]]]))
        tensor([ True, False])
    """
    return predictive_entropy(task, draws) < (task.certain_below if threshold is None else threshold)


@torch.no_grad()
def head_draws(task: Task, head: nn.Module, features: Tensor, draws: int = DRAWS) -> Tensor:
    """Draw predictions with dropout before the last layer, from features that are computed once.

    Args:
        task: what labels are.
        head: in training mode, with dropout.
        features: the head's input, shape ``(batch, features)``.
        draws: at least one.

    Returns:
        Probabilities, shape ``(draws, batch, classes)``, without a graph.

    Raises:
        ConfigurationError: if the head has no dropout, or a batch norm.
        ValueError: if it is not in training mode, or the shape is another.
    """
    _require_dropout(head, "head", "set the model's dropout, or use mc_dropout=full with dropout in the layers")
    if normalises_by_batch(head):
        raise ConfigurationError(
            "the head has a batch norm, which would mix the draws of one pass; use mc_dropout=full"
        )
    if features.dim() != 2:
        raise ValueError(f"features must have shape (batch, features), got {tuple(features.shape)}")
    logits: Tensor = head(features.repeat(draws, 1))
    return task.probabilities(logits).reshape(draws, len(features), logits.shape[1])


@torch.no_grad()
def full_draws(task: Task, network: nn.Module, images: Tensor, logits: Tensor, draws: int = DRAWS) -> Tensor:
    """Draw predictions with dropout everywhere.

    The pass made for the loss is the first draw. The others normalise by the batch, too, but do not update the running
    statistics.

    Args:
        task: what labels are.
        network: in training mode, with dropout.
        images: the batch.
        logits: of the pass made for the loss, shape ``(batch, classes)``.
        draws: at least one.

    Returns:
        Probabilities, shape ``(draws, batch, classes)``, without a graph.

    Raises:
        ConfigurationError: if the network has no dropout.
        ValueError: if it is not in training mode.
    """
    _require_dropout(network, "network", "set the model's dropout")
    with statistics_untouched(network):
        passes = [logits, *(network(images) for _ in range(draws - 1))]
    return task.probabilities(torch.stack(passes))


def ema_alpha(step: int, limit: float = ALPHA) -> float:
    r"""The decay of the teacher in a step: first a plain mean of the students, then an exponential one.

    .. math:: \alpha_k = \min\big(1 - 1 / (k + 1), \alpha\big)

    Args:
        step: :math:`k`, the site's previous steps, at least zero. In step 0 the teacher becomes the student.
        limit: :math:`\alpha`, in [0, 1].

    Example:
        >>> [ema_alpha(step) for step in (0, 1, 9, 99, 500)]
        [0.0, 0.5, 0.9, 0.99, 0.99]
    """
    return min(1 - 1 / (step + 1), limit)


def make_teacher(student: Network) -> Network:
    """A copy of the student without gradients, in the same mode: in training mode its dropout is active."""
    return copy.deepcopy(student).requires_grad_(False)


@torch.no_grad()
def update_teacher(teacher: nn.Module, student: nn.Module, alpha: float) -> None:
    r"""Move the teacher towards the student, in place.

    .. math:: \theta' \leftarrow \alpha \, \theta' + (1 - \alpha) \, \theta

    Only parameters move: in training mode the teacher normalises by the batch and reads no running statistics.

    Args:
        teacher: see :func:`make_teacher`.
        student: after a training step.
        alpha: :math:`\alpha`, in [0, 1]; 0 copies the student to the bit, 1 keeps the teacher.

    Example:
        >>> student = nn.Linear(1, 1)
        >>> teacher = make_teacher(student)
        >>> _ = teacher.weight.fill_(1.0), student.weight.data.fill_(3.0)
        >>> update_teacher(teacher, student, alpha=0.75)
        >>> teacher.weight.item()
        1.5
    """
    for parameter, source in zip(teacher.parameters(), student.parameters(), strict=True):
        parameter.lerp_(source, 1 - alpha)


def _require_dropout(network: nn.Module, name: str, remedy: str) -> None:
    if not network.training:
        raise ValueError(f"the {name} must be in training mode: in evaluation mode there is no dropout to draw")
    if not any(_dropout_probability(module) > 0 for module in network.modules()):
        raise ConfigurationError(f"the {name} has no dropout, so that all draws would be equal: {remedy}")


def _dropout_probability(module: nn.Module) -> float:
    # torchvision's DenseNet applies dropout within its layers by a function, at the rate ``drop_rate``.
    return float(module.p if isinstance(module, DROPOUTS) else getattr(module, "drop_rate", 0.0))
