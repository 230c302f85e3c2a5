r"""Real numbers as integers of a ring, whose sums have the same bits in any order.

A number :math:`|x| \le B` becomes :math:`\operatorname{round}(x 2^s)` in two's complement of b bits. Sums wrap around; the
receiver reads them as signed and divides by :math:`2^s`. The fixed-point encoding of Bonawitz et al., "Practical Secure
Aggregation for Privacy-Preserving Machine Learning", CCS 2017, section 3, for signed numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from grandrounds.errors import ConfigurationError, MessageError

Words = NDArray[np.unsignedinteger[Any]]
"""Elements of the ring, of one tensor."""


@dataclass(frozen=True)
class FixedPointEncoding:
    r"""How the numbers of one group of tensors are written as integers.

    Attributes:
        bits: b, of the ring :math:`\mathbb{Z} / 2^b`: 64, or 32 for updates.
        bound: B > 0; larger numbers are clipped.
        contributors: the largest number of sites that a sum can have, at least 1.

    Raises:
        ConfigurationError: if a value is out of its range, or no scale leaves room for the sum.

    Example:
        >>> FixedPointEncoding(64, 4.0, 4).scale, FixedPointEncoding(32, 1.0, 8).scale
        (58, 27)
    """

    bits: Literal[32, 64]
    bound: float
    contributors: int

    def __post_init__(self) -> None:
        if self.bits not in (32, 64):
            raise ConfigurationError(f"bits must be 32 or 64, got {self.bits}")
        if not 0 < self.bound < float("inf"):
            raise ConfigurationError(f"bound must be above 0 and finite, got {self.bound}")
        if self.contributors < 1:
            raise ConfigurationError(f"contributors must be at least 1, got {self.contributors}")
        if Fraction(2) ** (self.bits - 1) / self.contributors <= Fraction(1, 2):
            raise ConfigurationError(f"{self.contributors} contributors do not fit {self.bits} bits")

    @cached_property
    def scale(self) -> int:
        r"""s, the largest integer with :math:`n (B 2^s + 1/2) < 2^{b-1}`; it may be negative."""
        room = (Fraction(2) ** (self.bits - 1) / self.contributors - Fraction(1, 2)) / Fraction(self.bound)
        scale = room.numerator.bit_length() - room.denominator.bit_length() + 1
        while Fraction(2) ** scale >= room:
            scale -= 1
        return scale

    @property
    def dtype(self) -> np.dtype[np.uint32] | np.dtype[np.uint64]:
        """The type of the words, little endian."""
        return np.dtype("<u4") if self.bits == 32 else np.dtype("<u8")

    def error(self, contributors: int) -> float:
        r"""The largest error of a sum of n numbers that were not clipped: :math:`n 2^{-(s+1)}`."""
        return float(contributors * Fraction(2) ** -(self.scale + 1))

    def encode(self, values: NDArray[np.floating]) -> tuple[Words, int]:
        """Write numbers as words.

        Args:
            values: any shape, finite.

        Returns:
            Words of the same shape, and how many numbers were clipped to the bound.

        Raises:
            MessageError: if a number is not finite.
        """
        exact = np.asarray(values, np.float64)
        if not np.isfinite(exact).all():
            raise MessageError("a number that is to be added is not finite")
        clipped = int((np.abs(exact) > self.bound).sum())
        whole = np.rint(np.ldexp(np.clip(exact, -self.bound, self.bound), self.scale)).astype(np.int64)
        words: Words = whole.astype(np.uint64).astype(self.dtype)
        return words, clipped

    def decode(self, words: Words, contributors: int) -> NDArray[np.float64]:
        """Read the sum of numbers.

        Args:
            words: the sum, any shape.
            contributors: of the sum, at least 1 and at most as many as the ring has room for.

        Returns:
            The sum in double precision, of the same shape; beyond 2^53 units it is rounded.

        Raises:
            MessageError: if a sum is larger than so many contributors within the bound can make it, or of another type.
        """
        if words.dtype != self.dtype:
            raise MessageError(f"a sum must be {self.dtype}, got {words.dtype}")
        if not 1 <= contributors <= self.contributors:
            raise MessageError(f"a sum has 1 to {self.contributors} contributors, got {contributors}")
        signed = words.view(np.dtype(f"<i{self.bits // 8}")).astype(np.int64)
        limit = int(contributors * (Fraction(self.bound) * Fraction(2) ** self.scale + Fraction(1, 2)))
        if signed.size and (signed.max() > limit or signed.min() < -limit):
            raise MessageError(
                f"a sum of {contributors} contributors is beyond {contributors} times the bound {self.bound:g}: "
                "a site sent more than it may, or a mask is wrong"
            )
        return np.asarray(np.ldexp(signed.astype(np.float64), -self.scale), np.float64)


def add(total: Mapping[str, Words], part: Mapping[str, Words]) -> dict[str, Words]:
    """Add named words in the ring.

    Raises:
        MessageError: if names, shapes or types differ.
    """
    _require_like(part, total)
    return {name: (words.ravel() + part[name].ravel()).reshape(words.shape) for name, words in total.items()}


def subtract(total: Mapping[str, Words], part: Mapping[str, Words]) -> dict[str, Words]:
    """Subtract named words in the ring.

    Raises:
        MessageError: if names, shapes or types differ.
    """
    _require_like(part, total)
    return {name: (words.ravel() - part[name].ravel()).reshape(words.shape) for name, words in total.items()}


def _require_like(part: Mapping[str, Words], total: Mapping[str, Words]) -> None:
    if part.keys() != total.keys():
        raise MessageError(f"words of other tensors: {sorted(part.keys() ^ total.keys())}")
    for name, words in total.items():
        if part[name].shape != words.shape or part[name].dtype != words.dtype:
            raise MessageError(f"{name} must be {words.dtype} {words.shape}, got {part[name].dtype} {part[name].shape}")
