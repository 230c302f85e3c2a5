"""What must hold of tensors that leave a party or arrive."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from grandrounds.errors import MessageError

KNOWN = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
"""Floating-point types that can be added up; the narrower ones cannot."""


def require_tensors(state: Any, name: str) -> None:
    """Check that something is a dictionary of tensors, whose floating-point types are among the ``KNOWN``.

    Raises:
        MessageError: if it is not; the entry is named.
    """
    if not isinstance(state, Mapping):
        raise MessageError(f"{name} must be a dictionary of tensors, got {type(state).__name__}")
    for key, value in state.items():
        if not isinstance(value, Tensor):
            raise MessageError(f"{name}[{key!r}] must be a tensor, got {type(value).__name__}")
        if value.is_floating_point() and value.dtype not in KNOWN:
            raise MessageError(f"{name}[{key!r}] must be of half, single or double precision, got {value.dtype}")


def require_finite_tensors(state: Any, name: str) -> None:
    """Check that something is a dictionary of tensors whose values are finite.

    Raises:
        MessageError: if it is not; the entry is named.
    """
    require_tensors(state, name)
    floating = [value for value in state.values() if value.is_floating_point()]
    # A sum decides the usual case: infinities of opposite sign cannot hide, because they add up to NaN. Where only the sum
    # is too large for its type, all values are looked at; wider sums would take many times as long.
    if not all(math.isfinite(value.sum().item()) for value in floating):
        for key, value in state.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise MessageError(f"{name}[{key!r}] has a value that is NaN or infinite")
