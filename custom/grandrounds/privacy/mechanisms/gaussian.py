"""The Gaussian mechanism: clip to an L2 norm, then add noise, as one step.

Clipping is flat, over all floating-point entries of an update together (McMahan et al., "Learning Differentially Private
Recurrent Language Models", ICLR 2018). Without it noise of any size has no epsilon. The mechanism: Dwork & Roth, "The
Algorithmic Foundations of Differential Privacy", 2014, appendix A; its exact guarantee: Balle & Wang, "Improving the
Gaussian Mechanism for Differential Privacy", ICML 2018.

Noise comes from the operating system's cryptographic generator: unpredictable outside the site, never repeated.

There is no seed on purpose. With a seed that others know, such as a job's, they can subtract the noise. A seed that is kept
at the site repeats its stream after a crash or a restored backup, and two updates with the same noise reveal their
difference. The outputs of NumPy's and torch's generators reveal their state.

Noise in floating point has gaps that may reveal what it should hide (Mironov, "On Significance of the Least Significant Bits
for Differential Privacy", CCS 2012). Therefore noise is added in double precision, and the sum is rounded to a grid that is
much coarser than the gaps and much finer than the noise.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grandrounds.errors import ConfigurationError
from grandrounds.protocol.spending import Mechanism, Spending, Unit, update_sensitivity

RandomBytes = Callable[[int], bytes]
PAIRS_AT_ONCE = 1 << 18
MANTISSA_BITS = 53
GRID_BITS = 20


def standard_normals(count: int, random_bytes: RandomBytes = os.urandom) -> NDArray[np.float64]:
    r"""Independent draws of :math:`N(0, 1)` (Box & Muller, Annals of Mathematical Statistics 1958).

    .. math:: z_{1,2} = \sqrt{-2 \ln u_1} \, (\cos 2 \pi u_2, \sin 2 \pi u_2)

    Returns:
        Shape ``(count,)``. With 53 bits per uniform number, none is beyond 8.6; the tail beyond has probability 1e-17.

    Example:
        >>> abs(standard_normals(2, lambda size: bytes([255] * 8 + [0] * 8))).tolist()  # u = (1, 0): length 0
        [0.0, 0.0]
    """
    normals = np.empty(count + count % 2, np.float64)
    for start in range(0, len(normals), 2 * PAIRS_AT_ONCE):
        pairs = min(PAIRS_AT_ONCE, (len(normals) - start) // 2)
        words = np.frombuffer(random_bytes(16 * pairs), np.uint64).reshape(pairs, 2) >> np.uint64(64 - MANTISSA_BITS)
        # One is added to the first only, so that its logarithm is finite.
        length = np.sqrt(-2.0 * np.log((words[:, 0] + np.uint64(1)) * 2.0**-MANTISSA_BITS))
        angle = 2.0 * np.pi * (words[:, 1] * 2.0**-MANTISSA_BITS)
        normals[start : start + pairs] = length * np.cos(angle)
        normals[start + pairs : start + 2 * pairs] = length * np.sin(angle)
    return normals[:count]


def grid_spacing(sigma: float) -> float:
    """The spacing of the grid: a power of two, about a millionth of the noise.

    Example:
        >>> grid_spacing(1.0) == 2.0**-20, grid_spacing(1.5) == 2.0**-20
        (True, True)
    """
    return float(2.0 ** (math.floor(math.log2(sigma)) - GRID_BITS))


def with_noise(value: Tensor, sigma: float, random_bytes: RandomBytes = os.urandom) -> Tensor:
    """Add noise to every entry in double precision, rounded to the grid.

    ``sigma`` is the noise's standard deviation, ``value`` is finite. A new double-precision tensor on the CPU is returned.

    Raises:
        ValueError: if ``sigma`` is not positive and finite.
    """
    if not 0 < sigma < math.inf:
        raise ValueError(f"sigma must be a positive number, got {sigma}: without noise there is no guarantee")
    noise = torch.from_numpy(standard_normals(value.numel(), random_bytes)).reshape(value.shape)
    spacing = grid_spacing(sigma)
    return torch.round((value.detach().cpu().double() + sigma * noise) / spacing) * spacing


@dataclass(frozen=True)
class GaussianMechanism:
    r"""Releases :math:`u \min(1, C / \|u\|_2) + N(0, \sigma^2 I)`.

    Attributes:
        clip: :math:`C`, the bound on the L2 norm over all floating-point entries.
        sigma: :math:`\sigma`, the standard deviation of the noise on each entry, in the update's own units.
        unit: whom the noise protects; the sensitivity follows from it and from ``clip``.

    Raises:
        ConfigurationError: if ``clip`` or ``sigma`` is not positive and finite.
    """

    clip: float
    sigma: float
    unit: Unit = Unit.SITE

    def __post_init__(self) -> None:
        require_clip(self.clip)
        self.spending()

    def spending(self) -> Spending:
        """The cost of one release, for the ledger."""
        return Spending(Mechanism.GAUSSIAN, self.unit, update_sensitivity(self.clip, self.unit), self.sigma)

    def release(self, update: State) -> dict[str, Tensor]:
        """Clip an update and add noise.

        Returns:
            New tensors of the same dtypes on the CPU. Integer buffers are copied without noise.

        Raises:
            ValueError: if an entry is complex or not finite, or no entry is of floating point.
        """
        factor = clipping_factor(l2_norm(update), self.clip)
        # In double precision up to the end, so that rounding of the entries does not change the sensitivity.
        return {
            name: with_noise(value.detach().double() * factor, self.sigma).to(value.dtype)
            if value.is_floating_point()
            else value.detach().cpu().clone()
            for name, value in update.items()
        }


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
