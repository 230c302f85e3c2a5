"""The discriminator of a hospital: is this embedding mine?

Two small layers (Jiménez-Sánchez et al., 2021), with one output where the paper's table prints two: its losses need one
probability. With embeddings of 256 features: 1,033 parameters. Every hospital trains its own; they are never averaged.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from grandrounds.errors import MessageError
from grandrounds.seeding import derive_seed

HIDDEN = 4


class Discriminator(nn.Module):
    """Linear layer to four features, ReLU, linear layer to one logit.

    Args:
        width: features of an embedding.

    Example:
        >>> sum(parameter.numel() for parameter in Discriminator(256).parameters())
        1033
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Map embeddings ``(samples, width)`` to logits ``(samples,)`` of being the hospital's own."""
        logits: Tensor = self.layers(embeddings)
        return logits.squeeze(1)


def make_discriminator(width: int, *purpose: int | str) -> Discriminator:
    """A fresh discriminator, drawn from a stream of its own.

    Args:
        width: features of an embedding.
        purpose: what the stream is for, for example ``(seed, site, "discriminator")``.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(*purpose))
        return Discriminator(width)


def received_discriminator(state: Mapping[str, Tensor], width: int, name: str) -> Discriminator:
    """Another hospital's discriminator from what it sent; no step changes it.

    Args:
        state: its ``state_dict``.
        width: features of an embedding here.
        name: how an error calls it, for example ``"discriminator of site-2"``.

    Raises:
        MessageError: if an entry is missing, unknown, of another shape or dtype, or not finite.
    """
    discriminator = Discriminator(width)
    expected = discriminator.state_dict()
    if set(state) != set(expected):
        raise MessageError(f"{name}: expected the entries {', '.join(expected)}, got {', '.join(sorted(state))}")
    for entry, own in expected.items():
        value = state[entry]
        if value.shape != own.shape or not value.is_floating_point():
            raise MessageError(
                f"{name}: {entry} must be of floating point and of shape {tuple(own.shape)}, got {value.dtype} of shape "
                f"{tuple(value.shape)}; do all sites have the same backbone?"
            )
        if not bool(torch.isfinite(value).all()):
            raise MessageError(f"{name}: {entry} has a value that is NaN or infinite")
    discriminator.to(next(iter(state.values())).dtype).load_state_dict(state)
    return discriminator.requires_grad_(False)
