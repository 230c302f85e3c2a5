"""Peer pseudo-labels and the consistency of a site's predictions with those of its peers.

Bdair et al., "Semi-Supervised Federated Peer Learning for Skin Lesion Classification", MELBA 2022, Eq. 5, 7 and 8. The
text prints a sum of predictions where the code takes the mean; only the mean is a distribution that the confidence
threshold can be compared with. In the code the consistency term has no gradient; here it has one, as in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from grandrounds.protocol.task import PseudoLabels, Task

ConsistencyReduction = Literal["mean", "sum"]


def mean_prediction(local: Tensor, peers: Sequence[Tensor]) -> Tensor:
    r"""Average the predictions of the local model and its peers (Eq. 5).

    .. math:: \bar p = \frac{1}{k+1} \Big(p + \sum_{t=1}^{k} q_t\Big)

    Args:
        local: :math:`p`, the local model's probabilities (not logits), shape ``(batch, classes)``.
        peers: :math:`q_t`, one tensor of that shape per peer; an anonymised peer counts as one.

    Returns:
        Probabilities of that shape.

    Example:
        >>> local = torch.tensor([[0.5, 0.3, 0.2]])
        >>> mean_prediction(local, [torch.tensor([[0.8, 0.1, 0.1]])])
        tensor([[0.6500, 0.2000, 0.1500]])
        >>> torch.equal(mean_prediction(local, []), local)  # without peers FedPerl is FixMatch
        True
    """
    return torch.stack([local, *peers]).mean(dim=0)


def peer_consistency_loss(local: Tensor, peers: Sequence[Tensor], reduction: ConsistencyReduction = "mean") -> Tensor:
    r"""Squared distance between the local predictions and those of the peers (Eq. 8).

    .. math:: L_{con} = \frac{1}{k B Z} \sum_{t=1}^{k} \sum_{i=1}^{B} \lVert p_i - q_{t,i} \rVert^2

    with :math:`Z` the number of classes (``mean``) or one (``sum``, the squared norm of the text). Only ``local`` gets
    a gradient.

    Args:
        local: the local model's probabilities, shape ``(batch, classes)``.
        peers: the peers' probabilities on the same images, one tensor of that shape per peer.
        reduction: over the classes.

    Returns:
        Scalar, at least zero; a differentiable zero without peers or images.

    Example:
        >>> peer_consistency_loss(torch.tensor([[0.5, 0.3, 0.2]]), [torch.tensor([[0.8, 0.1, 0.1]])])  # 0.14 / 3
        tensor(0.0467)
    """
    if not peers or not len(local):
        return local[:0].sum()
    squares = (local - torch.stack(list(peers)).detach()).square()
    distances = squares.mean(dim=-1) if reduction == "mean" else squares.sum(dim=-1)
    return distances.mean()


def majority_label(local: Tensor, peers: Sequence[Tensor]) -> Tensor:
    r"""The class that most models predict (FedMatch: Jeong et al., ICLR 2021, Eq. 3, agreement-based pseudo-labels).

    .. math:: \hat y_i = \arg\max_c \Big([c = \arg\max p_i] + \sum_{t=1}^{k} [c = \arg\max q_{t,i}]\Big)

    Args:
        local: the local model's probabilities, shape ``(batch, classes)``.
        peers: the peers' probabilities on the same images.

    Returns:
        Classes, shape ``(batch,)``, int64; the lowest index where votes are tied.

    Example:
        >>> votes = [torch.tensor([[0.1, 0.9]]), torch.tensor([[0.4, 0.6]])]
        >>> majority_label(torch.tensor([[0.99, 0.01]]), votes)  # two to one, whatever the confidence
        tensor([1])
    """
    votes = torch.stack([local, *peers]).argmax(dim=-1)
    return F.one_hot(votes, local.shape[1]).sum(dim=0).argmax(dim=-1)


def unanimous(local: Tensor, peers: Sequence[Tensor]) -> Tensor:
    """Whether the local model and all peers predict the same class.

    Args:
        local: the local model's probabilities, shape ``(batch, classes)``.
        peers: the peers' probabilities on the same images.

    Returns:
        Shape ``(batch,)``, bool; always true without peers.

    Example:
        >>> local = torch.tensor([[0.9, 0.1], [0.6, 0.4]])
        >>> unanimous(local, [torch.tensor([[0.7, 0.3], [0.4, 0.6]])])
        tensor([ True, False])
    """
    votes = torch.stack([local, *peers]).argmax(dim=-1)
    return (votes == votes[0]).all(dim=0)


def peer_divergence(local: Tensor, peers: Sequence[Tensor]) -> Tensor:
    r"""Mean Kullback-Leibler divergence of the peers' predictions from the local ones (FedMatch, Eq. 2).

    .. math:: L_i = \frac{1}{k B} \sum_{t=1}^{k} \sum_{i=1}^{B} \sum_c q_{t,ic} \ln \frac{q_{t,ic}}{p_{ic}}

    Args:
        local: the local model's probabilities, shape ``(batch, classes)``, clamped to the resolution of their dtype; only
            they get a gradient.
        peers: the peers' probabilities on the same images.

    Returns:
        Scalar, in nats, at least zero; a differentiable zero without peers or images.

    Example:
        >>> peer_divergence(torch.tensor([[0.5, 0.5]]), [torch.tensor([[1.0, 0.0]])])  # ln 2
        tensor(0.6931)
    """
    if not peers or not len(local):
        return local[:0].sum()
    targets = torch.stack(list(peers)).detach()
    log_local = local.clamp_min(torch.finfo(local.dtype).eps).log()
    return (torch.xlogy(targets, targets) - targets * log_local).sum(dim=-1).mean()


class PeerPseudoLabeler:
    """Pseudo-labels from the mean prediction of local model and peers (FedPerl, Eq. 5 and 7), with consistency (Eq. 8).

    Args:
        task: what labels are; of findings sigmoids are averaged, and each finding has a label.
        peers: frozen networks, images to logits without gradients, at least one.
        consistency_weight: gamma; 0 leaves the term out, and with it the gradient of the weak pass.
        reduction: of the consistency term.
    """

    def __init__(
        self,
        task: Task,
        peers: Sequence[Callable[[Tensor], Tensor]],
        consistency_weight: float,
        reduction: ConsistencyReduction = "mean",
    ) -> None:
        self._task = task
        self._peers = peers
        self._reduction = reduction
        self._weight = consistency_weight
        self.needs_gradient = consistency_weight > 0

    def __call__(self, images: Tensor, local: Tensor, threshold: float | Tensor) -> tuple[PseudoLabels, Tensor | None]:
        """Pseudo-labels, and the weighted consistency loss."""
        predictions = [self._task.probabilities(peer(images)) for peer in self._peers]
        labels = self.labels(local.detach(), predictions, threshold)
        return labels, self._weight * self.consistency(local, predictions, labels) if self.needs_gradient else None

    def labels(self, local: Tensor, predictions: Sequence[Tensor], threshold: float | Tensor) -> PseudoLabels:
        """The labels that local model and peers agree on."""
        return self._task.pseudo_labels(mean_prediction(local, predictions), threshold)

    def consistency(self, local: Tensor, predictions: Sequence[Tensor], labels: PseudoLabels) -> Tensor:
        """The distance between the local predictions and the peers'."""
        return peer_consistency_loss(local, predictions, self._reduction)


class UnanimousPseudoLabeler(PeerPseudoLabeler):
    """FedPerl's mean prediction, accepted only where the local model and every peer predict its class."""

    def labels(self, local: Tensor, predictions: Sequence[Tensor], threshold: float | Tensor) -> PseudoLabels:
        """The labels of the mean prediction, where all models agree."""
        labels = super().labels(local, predictions, threshold)
        return labels._replace(accepted=labels.accepted & unanimous(local, predictions))


class VotingPseudoLabeler(PeerPseudoLabeler):
    """FedMatch's helpers (Jeong et al., ICLR 2021): a majority vote where the local model is confident.

    Inter-client consistency is the mean divergence of the helpers from the local predictions on these images.
    """

    def labels(self, local: Tensor, predictions: Sequence[Tensor], threshold: float | Tensor) -> PseudoLabels:
        """The majority's labels where the local model is confident."""
        return self._task.pseudo_labels(local, threshold)._replace(labels=majority_label(local, predictions))

    def consistency(self, local: Tensor, predictions: Sequence[Tensor], labels: PseudoLabels) -> Tensor:
        """The divergence of the helpers on the accepted images."""
        accepted = labels.accepted.nonzero()[:, 0]  # once: an accelerator waits to know them
        return peer_divergence(local[accepted], [prediction[accepted] for prediction in predictions])
