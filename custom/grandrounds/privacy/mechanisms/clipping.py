"""Clipping: the norm of a release, or of each of its rows, is at most a bound."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError

State = Mapping[str, Tensor]


def l2_norm(update: State) -> float:
    r"""The norm over all floating-point entries together, in double precision.

    .. math:: \|u\|_2 = \sqrt{\sum_n \sum_i u_{n,i}^2}

    Raises:
        ValueError: if an entry is complex, NaN or infinite (named), or no entry is of floating point.

    Example:
        >>> l2_norm({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]]), "count": torch.tensor(100)})
        5.0
    """
    floating = noised_entries(update)
    if not floating:
        raise ValueError("the update has no floating-point entry: there is nothing to clip")
    for name, value in floating.items():
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name!r} has a value that is NaN or infinite: the update has no norm")
    return math.hypot(*(float(torch.linalg.vector_norm(value.double())) for value in floating.values()))


def require_clip(clip: float) -> None:
    """Check a clipping bound.

    Raises:
        ConfigurationError: if it is not positive and finite.
    """
    if not 0 < clip < math.inf:
        raise ConfigurationError(f"clip must be a positive number, got {clip}: noise without clipping has no epsilon")


def clipping_factor(norm: float, clip: float) -> float:
    r"""The factor that clips an update of this norm: :math:`\min(1, C / \|u\|_2)`.

    Raises:
        ConfigurationError: if ``clip`` is not positive and finite.

    Example:
        >>> clipping_factor(0.5, clip=1.0), clipping_factor(4.0, clip=1.0)
        (1.0, 0.25)
    """
    require_clip(clip)
    return 1.0 if norm <= clip else clip / norm


def clip_rows(samples: Tensor, clip: float) -> Tensor:
    """Clip every row to an L2 norm of at most ``clip``; a row is one sample's contribution.

    Shape ``(samples, features)``; the result is a new tensor of the same shape and dtype.

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


def noised_entries(update: State) -> dict[str, Tensor]:
    """The floating-point entries, to which clipping and noise apply.

    Raises:
        ValueError: if an entry is complex.
    """
    for name, value in update.items():
        if value.is_complex():
            raise ValueError(f"{name!r} is of {value.dtype}: complex entries can be neither clipped nor noised")
    return {name: value for name, value in update.items() if value.is_floating_point()}
