"""An iteration of Fed-Align as one would write it from the paper, for comparison: slow, plain, without the project's maths.

Every ordered pair of hospitals is a loss of its own: both its embeddings are made for it, and its gradient is added to
the others' before the encoder's one step. Losses are logarithms of sigmoids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

EPSILON = 1e-300


def textbook_iteration(
    encoder: nn.Module,
    head: nn.Module,
    discriminator: nn.Module,
    optimizers: Mapping[str, torch.optim.Optimizer],
    images: Tensor,
    labels: Tensor,
    batches: Sequence[Tensor],
    others: Sequence[nn.Module],
    noise: Tensor,
) -> None:
    """Train in place: classification, a discriminator step per other hospital, one encoder step from all pairs.

    Args:
        encoder: of the hospital.
        head: of the same network.
        discriminator: of the hospital.
        optimizers: by role.
        images: a batch.
        labels: its classes.
        batches: noisy embeddings of each other hospital.
        others: their discriminators.
        noise: that is added to the hospital's own embeddings where it is the target.
    """
    _step(optimizers["classification"], _cross_entropy(head(encoder(images)), labels))
    for theirs in batches:
        with torch.no_grad():
            own = encoder(images)
        wrong = 1 - discriminator(theirs).sigmoid()
        loss = -(discriminator(own).sigmoid() + EPSILON).log().mean() - (wrong + EPSILON).log().mean()
        _step(optimizers["discriminator"], loss)
    optimizers["adversarial"].zero_grad()
    for _ in others:
        (-(discriminator(encoder(images)).sigmoid() + EPSILON).log().mean()).backward()
    for theirs in others:
        (-(theirs(encoder(images) + noise).sigmoid() + EPSILON).log().mean()).backward()
    optimizers["adversarial"].step()


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    probabilities = logits.softmax(dim=1)
    return -probabilities[torch.arange(len(labels)), labels].log().mean()


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def textbook_mean(networks: Sequence[nn.Module]) -> dict[str, Tensor]:
    """The mean of the networks' weights, entry by entry, each from a state that is built anew."""
    return {
        name: torch.stack([network.state_dict()[name].double() for network in networks]).mean(dim=0)
        for name in networks[0].state_dict()
    }
