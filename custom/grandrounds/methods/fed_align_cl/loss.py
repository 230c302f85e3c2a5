"""Adversarial losses that make the embeddings of two hospitals hard to tell apart.

Jiménez-Sánchez et al., "Memory-aware curriculum federated learning for breast cancer classification", 2021, Eq. 2 and
3, after Li et al., "Multi-site fMRI analysis using privacy-preserving federated learning and domain adaptation",
Medical Image Analysis 2020. The discriminator of a hospital says of an embedding how likely it is its own; encoders are
trained to have everything taken for its own, whatever it is.

The discriminator of a hospital: is this embedding mine?

Two small layers (Jiménez-Sánchez et al., 2021), with one output where the paper's table prints two: its losses need one
probability. With embeddings of 256 features: 1,033 parameters. Every hospital trains its own; they are never averaged.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grandrounds.errors import MessageError
from grandrounds.seeding import derive_seed


def discriminator_loss(source_logits: Tensor, target_logits: Tensor) -> Tensor:
    r"""What a hospital's discriminator learns: own embeddings are own, others' are not (Eq. 2).

    .. math:: L_D = -\frac{1}{B_i} \sum \log d(e_i) - \frac{1}{B_j} \sum \log (1 - d(\tilde e_j))

    Args:
        source_logits: of :math:`d` for the hospital's own embeddings, shape ``(samples,)``, before the sigmoid.
        target_logits: for noisy embeddings of another hospital, shape ``(samples,)``; the numbers may differ.

    Returns:
        A scalar, at least zero; 2 ln 2 where nothing is known.

    Raises:
        ValueError: if a shape is another, or there is no sample.

    Example:
        >>> import torch
        >>> nothing_known = torch.zeros(4)
        >>> discriminator_loss(nothing_known, nothing_known)
        tensor(1.3863)
    """
    return taken_for_own(source_logits) + _mean_softplus(target_logits, "target_logits")


def encoder_loss(source_logits: Tensor, target_logits: Tensor) -> Tensor:
    r"""What the encoders of both hospitals learn while the discriminator stays as it is (Eq. 3).

    .. math:: L_F = -\frac{1}{B_i} \sum \log d(e_i) - \frac{1}{B_j} \sum \log d(\tilde e_j)

    Not the negative of :math:`L_D`: its gradient does not vanish where the discriminator is certain. The first term
    moves the source's embeddings as well.

    Args:
        source_logits: as for :func:`discriminator_loss`.
        target_logits: as for :func:`discriminator_loss`.

    Returns:
        A scalar, at least zero; zero where all embeddings are surely taken for the hospital's own.

    Raises:
        ValueError: if a shape is another, or there is no sample.

    Example:
        >>> import torch
        >>> encoder_loss(torch.full((2,), 200.0), torch.full((3,), 200.0))
        tensor(0.)
    """
    return taken_for_own(source_logits) + taken_for_own(target_logits)


def taken_for_own(logits: Tensor) -> Tensor:
    r"""One term of the above: :math:`-\frac{1}{B} \sum \log d(e)`, from logits of shape ``(samples,)``.

    A hospital knows the two terms of :math:`L_F` separately: the first as source, the second as target.

    Raises:
        ValueError: if the shape is another, or there is no sample.
    """
    return _mean_softplus(-logits, "logits")


def _mean_softplus(values: Tensor, name: str) -> Tensor:
    # The logarithm of a sigmoid is infinite where the sigmoid rounds to zero; softplus is exact there.
    if values.dim() != 1 or not len(values):
        raise ValueError(f"{name} must have shape (samples,) with a sample at least, got {tuple(values.shape)}")
    return F.softplus(values).mean()


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
