"""Peers' say in a site's pseudo-labels: the mean prediction, and consistency with it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from grandrounds.methods.fedperl.loss import ConsistencyReduction, consistency_loss, mean_prediction


class PeerGuide:
    """Averages the peers' predictions with the own ones (FedPerl, Eq. 5 and 7) and asks to stay close (Eq. 8).

    Args:
        peers: frozen networks in evaluation mode, at least one.
        consistency_weight: gamma; 0 leaves the term out, and with it the gradient of the weak pass.
        reduction: of the consistency term.
    """

    def __init__(self, peers: Sequence[nn.Module], consistency_weight: float, reduction: ConsistencyReduction) -> None:
        self._peers = peers
        self._weight = consistency_weight
        self._reduction = reduction
        self.needs_gradient = consistency_weight > 0

    def __call__(self, images: Tensor, local: Tensor) -> tuple[Tensor, Tensor | None]:
        """The mean prediction, and the weighted consistency loss."""
        with torch.no_grad():
            predictions = [torch.softmax(peer(images).float(), dim=1) for peer in self._peers]
        target = mean_prediction(local.detach(), predictions)
        if not self.needs_gradient:
            return target, None
        return target, self._weight * consistency_loss(local, predictions, self._reduction)
