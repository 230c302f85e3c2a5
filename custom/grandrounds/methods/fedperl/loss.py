"""What the peers add to a hospital's loss: their vote on the pseudo-labels, and closeness to their predictions.

Bdair et al., "Semi-Supervised Federated Peer Learning for Skin Lesion Classification", MELBA 2022, Eq. 5, 7 and 8. The
text prints a sum of predictions where their code takes the mean; only the mean is a distribution that the confidence
threshold can be compared with. In their code the consistency term has no gradient; here it has, as in the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

ConsistencyReduction = Literal["mean", "sum"]


def mean_prediction(local: Tensor, peers: Sequence[Tensor]) -> Tensor:
    r"""Average the predictions of the own model and its peers.

    .. math:: \bar p = \frac{1}{k+1} \Big(p + \sum_{t=1}^{k} q_t\Big)

    Args:
        local: :math:`p`, the own model's probabilities (not logits), shape ``(batch, classes)``.
        peers: :math:`q_t`, one tensor of that shape for each peer; one anonymised peer counts as one.

    Returns:
        Probabilities of that shape.

    Raises:
        ValueError: if a peer's shape differs from the local one.

    Example:
        >>> local = torch.tensor([[0.5, 0.3, 0.2]])
        >>> mean_prediction(local, [torch.tensor([[0.8, 0.1, 0.1]])])
        tensor([[0.6500, 0.2000, 0.1500]])
        >>> torch.equal(mean_prediction(local, []), local)  # without peers FedPerl is FixMatch
        True
    """
    _require_same_shape(local, peers)
    return torch.stack([local, *peers]).mean(dim=0)


def consistency_loss(local: Tensor, peers: Sequence[Tensor], reduction: ConsistencyReduction = "mean") -> Tensor:
    r"""Squared distance of the own predictions from those of the peers.

    .. math:: L_{con} = \frac{1}{k B Z} \sum_{t=1}^{k} \sum_{i=1}^{B} \lVert p_i - q_{t,i} \rVert^2

    with :math:`Z` the number of classes (``mean``) or one (``sum``, the squared norm of the text). Only ``local`` gets
    a gradient.

    Args:
        local: the own model's probabilities, shape ``(batch, classes)``.
        peers: the peers' probabilities on the same images, one tensor of that shape for each.
        reduction: whether the squares are averaged or summed over the classes.

    Returns:
        Scalar, at least zero; zero, and still differentiable, without peers or images.

    Raises:
        ValueError: if a peer's shape differs from the local one, or the reduction is unknown.

    Example:
        >>> consistency_loss(torch.tensor([[0.5, 0.3, 0.2]]), [torch.tensor([[0.8, 0.1, 0.1]])])  # 0.14 / 3
        tensor(0.0467)
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be mean or sum, got {reduction!r}")
    _require_same_shape(local, peers)
    if not peers or not len(local):
        return local[:0].sum()
    squares = (local - torch.stack(list(peers)).detach()).square()
    distances = squares.mean(dim=-1) if reduction == "mean" else squares.sum(dim=-1)
    return distances.mean()


def majority_label(local: Tensor, peers: Sequence[Tensor]) -> Tensor:
    r"""The class that most models predict (FedMatch: Jeong et al., ICLR 2021, Eq. 3, agreement-based pseudo-labels).

    .. math:: \hat y_i = \arg\max_c \Big([c = \arg\max p_i] + \sum_{t=1}^{k} [c = \arg\max q_{t,i}]\Big)

    Args:
        local: the own model's probabilities, shape ``(batch, classes)``.
        peers: the peers' probabilities on the same images.

    Returns:
        Classes, shape ``(batch,)``, int64; of classes with equally many votes the lowest index.

    Raises:
        ValueError: if a peer's shape differs from the local one.

    Example:
        >>> votes = [torch.tensor([[0.1, 0.9]]), torch.tensor([[0.4, 0.6]])]
        >>> majority_label(torch.tensor([[0.99, 0.01]]), votes)  # two to one, however sure the one is
        tensor([1])
    """
    _require_same_shape(local, peers)
    votes = torch.stack([local, *peers]).argmax(dim=-1)
    return F.one_hot(votes, local.shape[1]).sum(dim=0).argmax(dim=-1)


def peer_divergence(local: Tensor, peers: Sequence[Tensor]) -> Tensor:
    r"""Mean Kullback-Leibler divergence of the peers from the own predictions (FedMatch, Eq. 2).

    .. math:: L_i = \frac{1}{k B} \sum_{t=1}^{k} \sum_{i=1}^{B} \sum_c q_{t,ic} \ln \frac{q_{t,ic}}{p_{ic}}

    Args:
        local: the own model's probabilities, shape ``(batch, classes)``; only it gets a gradient. Probabilities below the
            resolution of their dtype count as that.
        peers: the peers' probabilities on the same images.

    Returns:
        Scalar, in nats, at least zero; zero, and still differentiable, without peers or images.

    Raises:
        ValueError: if a peer's shape differs from the local one.

    Example:
        >>> peer_divergence(torch.tensor([[0.5, 0.5]]), [torch.tensor([[1.0, 0.0]])])  # ln 2
        tensor(0.6931)
    """
    _require_same_shape(local, peers)
    if not peers or not len(local):
        return local[:0].sum()
    theirs = torch.stack(list(peers)).detach()
    own = local.clamp_min(torch.finfo(local.dtype).eps).log()
    return (torch.xlogy(theirs, theirs) - theirs * own).sum(dim=-1).mean()


def _require_same_shape(local: Tensor, peers: Sequence[Tensor]) -> None:
    if local.dim() != 2:
        raise ValueError(f"local must have shape (batch, classes), got {tuple(local.shape)}")
    for number, peer in enumerate(peers):
        if peer.shape != local.shape:
            raise ValueError(
                f"peer {number} must have the shape of local, {tuple(local.shape)}, got {tuple(peer.shape)}"
            )
