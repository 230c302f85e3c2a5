"""The discriminator between sites' embeddings, its training, and its checked form from a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from grandrounds.errors import MessageError
from grandrounds.methods.fed_align_cl.loss import discriminator_loss, encoder_loss
from grandrounds.seeding import derive_seed

HIDDEN_WIDTH = 4

RELEASED_WEIGHT = 0.1


def train_discriminator(
    discriminator: nn.Module,
    optimizer: torch.optim.Optimizer,
    own: Tensor,
    others: Sequence[Tensor],
    as_released: bool = False,
) -> Tensor:
    r"""Take one step of the discriminator for each other site, in their order; no encoder is trained.

    Args:
        discriminator: the site's own.
        optimizer: of its parameters.
        own: the site's embeddings, shape ``(samples, width)``.
        others: noisy embeddings of each other site, at least one, each of shape ``(samples, width)``.
        as_released: take the steps of the authors' released code, to reproduce its results: the discriminator learns two
            opposite things. The code collects the gradients of both losses in the discriminator before it steps, which
            amounts to :math:`\nabla L_F + 0.1 \, \nabla L_D`, and detaches the embeddings from their encoders, so that no
            encoder learns anything. Its own embeddings have noise, too.

    Returns:
        The mean of :math:`L_D` before the steps, a scalar without a graph.
    """
    losses = []
    for theirs in others:
        logits = discriminator(own.detach()), discriminator(theirs.detach())
        loss = discriminator_loss(*logits)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(encoder_loss(*logits) + RELEASED_WEIGHT * loss if as_released else loss)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean()


class Discriminator(nn.Module):
    """Linear layer to four features, ReLU, linear layer to one logit.

    The paper's table prints two outputs; its losses need one probability. Every site trains its own; they are never
    averaged.

    Args:
        width: features of an embedding.

    Example:
        >>> sum(parameter.numel() for parameter in Discriminator(256).parameters())
        1033
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, HIDDEN_WIDTH), nn.ReLU(), nn.Linear(HIDDEN_WIDTH, 1))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Map embeddings ``(samples, width)`` to logits ``(samples,)`` of being the site's own."""
        logits: Tensor = self.layers(embeddings)
        return logits.squeeze(1)


def make_discriminator(width: int, *purpose: int | str) -> Discriminator:
    """A fresh discriminator from a stream of its own; ``purpose`` is for example ``(seed, site, "discriminator")``."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(*purpose))
        return Discriminator(width)


def received_discriminator(state: Mapping[str, Tensor], width: int, name: str) -> Discriminator:
    """Another site's discriminator from what it sent, with fixed parameters.

    Args:
        state: its ``state_dict``.
        width: features of an embedding here.
        name: for errors, for example ``"discriminator of site-2"``.

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
