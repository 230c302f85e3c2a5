"""Peers' say in a site's pseudo-labels: how labels are agreed on, and what closeness to the peers is asked for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from grandrounds.methods.fedperl.loss import (
    ConsistencyReduction,
    consistency_loss,
    majority_label,
    mean_prediction,
    peer_divergence,
)
from grandrounds.methods.fixmatch.loss import PseudoLabels, pseudo_labels
from grandrounds.models.precision import at_least_single


class PeerGuide:
    """Averages the peers' predictions with the own ones (FedPerl, Eq. 5 and 7) and asks to stay close (Eq. 8).

    Args:
        peers: frozen networks in evaluation mode, at least one.
        consistency_weight: gamma; 0 leaves the term out, and with it the gradient of the weak pass.
        reduction: of the consistency term.
    """

    def __init__(
        self, peers: Sequence[nn.Module], consistency_weight: float, reduction: ConsistencyReduction = "mean"
    ) -> None:
        self._peers = peers
        self._reduction = reduction
        self.weight = consistency_weight
        self.needs_gradient = consistency_weight > 0

    def __call__(self, images: Tensor, local: Tensor, threshold: float) -> tuple[PseudoLabels, Tensor | None]:
        """Pseudo-labels, and the weighted loss of disagreement."""
        with torch.no_grad():
            predictions = [torch.softmax(at_least_single(peer(images)), dim=1) for peer in self._peers]
            labels = self.labels(local.detach(), predictions, threshold)
        disagreement = self.disagreement(local, predictions, labels) if self.needs_gradient else None
        return labels, None if disagreement is None else self.weight * disagreement

    def labels(self, local: Tensor, predictions: Sequence[Tensor], threshold: float) -> PseudoLabels:
        """The labels that own model and peers come to."""
        return pseudo_labels(mean_prediction(local, predictions), threshold)

    def disagreement(self, local: Tensor, predictions: Sequence[Tensor], labels: PseudoLabels) -> Tensor:
        """How far the own predictions are from the peers'."""
        return consistency_loss(local, predictions, self._reduction)


class VotingGuide(PeerGuide):
    """FedMatch's helpers (Jeong et al., ICLR 2021): where the own model is confident, all models vote for the label.

    The inter-client consistency is the mean divergence of the helpers from the own predictions on these images.
    """

    def labels(self, local: Tensor, predictions: Sequence[Tensor], threshold: float) -> PseudoLabels:
        """The majority's labels where the own model is confident."""
        own = pseudo_labels(local, threshold)
        return own._replace(labels=majority_label(local, predictions))

    def disagreement(self, local: Tensor, predictions: Sequence[Tensor], labels: PseudoLabels) -> Tensor:
        """Divergence of the helpers on the accepted images."""
        kept = labels.accepted
        return peer_divergence(local[kept], [prediction[kept] for prediction in predictions])
