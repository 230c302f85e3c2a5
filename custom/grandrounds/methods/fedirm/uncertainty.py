"""Which predictions on unlabelled images are certain: Monte Carlo dropout.

Gal & Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016; Liu et al. (FedIRM), MICCAI 2021, Eq. 4. The entropy
is that of the mean probability. The authors' code takes the mean of the logits, in which disagreement cancels, and a
threshold that no entropy reaches.

With dropout before the last layer only, draws differ in that layer alone: ``head_draws`` makes all of them from the
features of one pass, which is exact for such a network and costs next to nothing. ``full_draws`` passes the whole network
again for each, for dropout within it. The first lets more through at the same threshold, because its draws differ less.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from grandrounds.checks import require_at_least
from grandrounds.errors import ConfigurationError
from grandrounds.models.compute import at_least_single
from grandrounds.models.norm import normalises_by_batch, statistics_untouched

DRAWS = 8
THRESHOLD = math.log(2)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def predictive_entropy(draws: Tensor) -> Tensor:
    r"""Entropy of the mean of several predictions (Eq. 4).

    .. math:: w_i = -\sum_c \bar q_{ic} \ln \bar q_{ic}, \qquad \bar q_i = \frac{1}{T} \sum_t q_{t,i}

    Args:
        draws: :math:`q`, probabilities (not logits), shape ``(draws, batch, classes)``, at least one draw.

    Returns:
        In nats, shape ``(batch,)``, from 0 (certain) to the logarithm of the number of classes.

    Raises:
        ValueError: if the shape is another, or there is no draw.

    Example:
        >>> predictive_entropy(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))  # two certain draws that disagree: ln 2
        tensor([0.6931])
        >>> predictive_entropy(torch.tensor([[[1.0, 0.0]]]))
        tensor([0.])
    """
    if draws.dim() != 3 or not len(draws):
        raise ValueError(
            f"draws must have shape (draws, batch, classes) with a draw at least, got {tuple(draws.shape)}"
        )
    entropies: Tensor = torch.special.entr(draws.mean(dim=0))
    return entropies.sum(dim=1)


def certain(draws: Tensor, threshold: float = THRESHOLD) -> Tensor:
    r"""Choose the samples whose prediction is certain: :math:`w_i < h`.

    Args:
        draws: probabilities, shape ``(draws, batch, classes)``.
        threshold: :math:`h`, in nats, at least zero. One of ln 2 passes five to seven classes from a probability of
            about 0.83; an entropy of exactly the threshold does not pass.

    Returns:
        Shape ``(batch,)``, bool.

    Raises:
        ValueError: if the threshold is negative or the shape is another.

    Example:
        >>> certain(torch.tensor([[[0.9, 0.1, 0.0], [0.5, 0.5, 0.0]]]))
        tensor([ True, False])
    """
    require_at_least(threshold, 0, "threshold")
    return predictive_entropy(draws) < threshold


@torch.no_grad()
def head_draws(head: nn.Module, features: Tensor, draws: int = DRAWS) -> Tensor:
    """Predict several times with other dropout before the last layer, from features that are computed once.

    All draws are one pass of the head, which treats each sample by itself. The backbone is not
    called, so its running statistics stay as the one pass has left them.

    Args:
        head: in training mode, with dropout.
        features: what goes into the head, shape ``(batch, features)``.
        draws: how often, at least once.

    Returns:
        Probabilities, shape ``(draws, batch, classes)``, without a graph.

    Raises:
        ConfigurationError: if the head has no dropout, or a batch norm.
        ValueError: if it is not in training mode, the features have another shape, or ``draws`` is below one.
    """
    _require_dropout(head, "head", "set the model's dropout, or use mc_dropout=full with dropout in the layers")
    require_at_least(draws, 1, "draws")
    if normalises_by_batch(head):
        raise ConfigurationError("the head has a batch norm, so that draws in one pass would mix; use mc_dropout=full")
    if features.dim() != 2:
        raise ValueError(f"features must have shape (batch, features), got {tuple(features.shape)}")
    logits: Tensor = head(features.repeat(draws, 1))
    return torch.softmax(at_least_single(logits), dim=1).reshape(draws, len(features), logits.shape[1])


@torch.no_grad()
def full_draws(network: nn.Module, images: Tensor, logits: Tensor, draws: int = DRAWS) -> Tensor:
    """Predict several times with other dropout everywhere.

    The pass that was made for the loss is a draw like any other and counts as the first. The further ones normalise by the
    batch, as it did, but leave the running statistics alone: a step updates them once, whatever the number of draws.

    Args:
        network: in training mode, with dropout.
        images: the batch.
        logits: what the network has just said of it in training mode, shape ``(batch, classes)``.
        draws: how many, at least one.

    Returns:
        Probabilities, shape ``(draws, batch, classes)``, without a graph.

    Raises:
        ConfigurationError: if the network has no dropout.
        ValueError: if it is not in training mode, or ``draws`` is below one.
    """
    _require_dropout(network, "network", "set the model's dropout")
    require_at_least(draws, 1, "draws")
    with statistics_untouched(network):
        passes = [logits, *(network(images) for _ in range(draws - 1))]
    return torch.softmax(at_least_single(torch.stack(passes)), dim=2)


def _require_dropout(network: nn.Module, name: str, remedy: str) -> None:
    if not network.training:
        raise ValueError(f"the {name} must be in training mode: in evaluation mode there is no dropout to draw")
    if not any(_dropout_probability(module) > 0 for module in network.modules()):
        raise ConfigurationError(f"the {name} has no dropout, so that all draws would be the same: {remedy}")


def _dropout_probability(module: nn.Module) -> float:
    # torchvision's DenseNet drops within its layers by a function, not a module, at the rate it names so.
    return float(module.p if isinstance(module, DROPOUTS) else getattr(module, "drop_rate", 0.0))
