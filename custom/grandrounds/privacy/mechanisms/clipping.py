"""Bounding what a site can say: an update's L2 norm, over all its floating-point entries together.

Without a bound, noise of any size has no epsilon (McMahan et al., "Learning Differentially Private Recurrent Language
Models", ICLR 2018, flat clipping). Integer buffers are no part of the norm and stay as they are. What is done about
normalisation layers is said by the caller, because both obvious answers are wrong for somebody: running statistics describe
the site's images directly, and a running variance with noise on it may be negative.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from enum import StrEnum

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError

State = Mapping[str, Tensor]
RUNNING_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class NormPolicy(StrEnum):
    """What happens to the entries of normalisation layers.

    ``treat``: as to every other entry. ``zero``: they travel as zeros, so that the update says nothing of them and still
    fits the model. ``refuse``: an update that has running statistics does not leave.
    """

    TREAT = "treat"
    ZERO = "zero"
    REFUSE = "refuse"


def apply_norm_policy(update: State, policy: NormPolicy, norm_entries: Collection[str] = ()) -> dict[str, Tensor]:
    """The update as the policy lets it leave; entries that it does not concern are the same tensors.

    Args:
        update: differences by ``state_dict`` name.
        policy: what to do.
        norm_entries: names of the normalisation layers' entries. Running statistics are known by their names and need
            not be among them; scales and shifts do.

    Raises:
        ValueError: if the policy is ``refuse`` and the update has running statistics; the first is named.
    """
    statistics = {name for name in update if name.rpartition(".")[2] in RUNNING_STATISTICS}
    if policy is NormPolicy.REFUSE and statistics:
        raise ValueError(
            f"{min(statistics)!r} is a running statistic of the site's images, which the policy {policy} does not let "
            "out; use group norm, or the policy zero"
        )
    if policy is not NormPolicy.ZERO:
        return dict(update)
    silent = statistics | set(norm_entries)
    return {name: torch.zeros_like(value) if name in silent else value for name, value in update.items()}


def l2_norm(update: State) -> float:
    r"""The norm over all floating-point entries together, in double precision.

    .. math:: \|u\|_2 = \sqrt{\sum_n \sum_i u_{n,i}^2}

    Raises:
        ValueError: if an entry is complex, NaN or infinite (named), or none is of floating point.

    Example:
        >>> l2_norm({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]]), "count": torch.tensor(100)})
        5.0
    """
    floating = floating_entries(update)
    if not floating:
        raise ValueError("the update has no floating-point entry: there is nothing to clip")
    for name, value in floating.items():
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name!r} has a value that is NaN or infinite: such an update has no norm")
    return math.hypot(*(float(torch.linalg.vector_norm(value.double())) for value in floating.values()))


def require_clip(clip: float) -> None:
    """Check that a bound is one.

    Raises:
        ConfigurationError: if it is not positive and finite.
    """
    if not 0 < clip < math.inf:
        raise ConfigurationError(f"clip must be a positive number, got {clip}: noise without clipping has no epsilon")


def clipping_factor(norm: float, clip: float) -> float:
    r"""What an update of this norm is multiplied by: :math:`\min(1, C / \|u\|_2)`.

    Raises:
        ConfigurationError: if ``clip`` is not positive and finite.

    Example:
        >>> clipping_factor(0.5, clip=1.0), clipping_factor(4.0, clip=1.0)
        (1.0, 0.25)
    """
    require_clip(clip)
    return 1.0 if norm <= clip else clip / norm


def clip_rows(samples: Tensor, clip: float) -> Tensor:
    """Shorten every row to an L2 norm of at most ``clip``: one row is what one sample says.

    Args:
        samples: embeddings or logits, shape ``(samples, features)``, finite.
        clip: bound on the norm of a row, positive.

    Returns:
        A new tensor of the same shape and dtype.

    Raises:
        ConfigurationError: if ``clip`` is not positive and finite.
        ValueError: if the shape is wrong or a row is not finite (named).

    Example:
        >>> clip_rows(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), clip=1.0)
        tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]])
    """
    if samples.dim() != 2 or not samples.is_floating_point():
        raise ValueError(
            f"samples must be of floating point and of shape (samples, features), got {samples.dtype} of "
            f"shape {tuple(samples.shape)}"
        )
    require_clip(clip)
    bad = ~torch.isfinite(samples).all(dim=1)
    if bool(bad.any()):
        raise ValueError(f"row {int(bad.nonzero()[0])} has a value that is NaN or infinite")
    norms = torch.linalg.vector_norm(samples.double(), dim=1, keepdim=True)
    factors = torch.where(norms > clip, clip / norms, torch.ones_like(norms))
    return (samples.double() * factors).to(samples.dtype)


def floating_entries(update: State) -> dict[str, Tensor]:
    """The entries that carry what was learnt, which clipping and noise concern.

    Raises:
        ValueError: if an entry is complex, which neither knows.
    """
    for name, value in update.items():
        if value.is_complex():
            raise ValueError(f"{name!r} is of {value.dtype}: complex entries can be neither clipped nor noised")
    return {name: value for name, value in update.items() if value.is_floating_point()}
