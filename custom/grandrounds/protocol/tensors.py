"""What must hold of tensors that leave a party or arrive, and updates in half precision on their way to the server.

The server asks for half precision in its tasks. A site rounds what all its filters have released: rounding after the noise
needs no further privacy, and nothing leaves that the site's gate has not treated. The server widens what came before it
looks at types and values. So the methods, the gate and the sums see single precision only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError, MessageError

UpdatePrecision = Literal["float32", "float16", "bfloat16"]
RUNNING_VARIANCE = "running_var"
"""Last part of the name of batch norm's."""
FULL: UpdatePrecision = "float32"
UPDATE_PRECISION = "update_precision"
"""In a task's values: how updates are to travel."""
PRECISION = "precision"
"""Property of an update that was rounded: to what."""
DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
KNOWN = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
"""Floating-point types that can be added up; the narrower ones cannot."""
MANY_VALUES = 1 << 20
"""From here on a tensor is too large for the processor's caches."""


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
    if not all(math.isfinite(_summed(value).item()) for value in floating):
        for key, value in state.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise MessageError(f"{name}[{key!r}] has a value that is NaN or infinite")


def _summed(values: Tensor) -> Tensor:
    """The sum of values; of very many that of products of both halves, which memory delivers in two thirds of the time."""
    if values.numel() < MANY_VALUES:
        return values.sum()
    flat, half = values.flatten(), (values.numel() + 1) // 2  # an odd number has its middle in both halves
    return torch.dot(flat[:half], flat[-half:])


def require_precision(name: object) -> UpdatePrecision:
    """Check the name of a precision.

    Raises:
        ConfigurationError: if it is another value.
    """
    for known in get_args(UpdatePrecision):
        if name == known:
            return known
    raise ConfigurationError(f"{UPDATE_PRECISION} must be float32, float16 or bfloat16, got {name!r}")


def rounded(state: Mapping[str, Tensor], precision: UpdatePrecision, name: str) -> dict[str, Tensor]:
    """A state whose floating entries are rounded to the nearest; integer entries are shared.

    Args:
        state: finite, its floating entries of single precision.
        precision: half of single precision: ``float16`` has eleven binary digits from 6.1e-5 to 65504, and steps of 6e-8
            below; ``bfloat16`` has eight, and the range of single precision.
        name: how an error calls the state.

    Raises:
        MessageError: if an entry is of another type, or beyond the range; it is named.

    Example:
        >>> rounded({"w": torch.tensor([1.0009765625, 1.0001])}, "float16", "update")
        {'w': tensor([1.0010, 1.0000], dtype=torch.float16)}
    """
    halved = {}
    for key, value in state.items():
        halved[key] = value
        if not value.is_floating_point():
            continue
        if value.dtype != torch.float32:
            raise MessageError(f"{name}[{key!r}] is {value.dtype}: only float32 can be rounded for {UPDATE_PRECISION}")
        halved[key] = value.to(DTYPES[precision])
        if not bool(halved[key].isfinite().all()):
            raise MessageError(
                f"{name}[{key!r}] has a value beyond {precision}: set "
                f"controller.{UPDATE_PRECISION} to {'bfloat16 or ' if precision == 'float16' else ''}float32"
            )
    return halved


def widened(state: Mapping[str, Tensor], precision: UpdatePrecision, name: str) -> dict[str, Tensor]:
    """A state in single precision again.

    Args:
        state: of tensors, as it came.
        precision: in which it travelled.
        name: how an error calls the state.

    Raises:
        MessageError: naming a floating entry that is of another type.
    """
    if precision == FULL:
        return dict(state)
    for key, value in state.items():
        if value.is_floating_point() and value.dtype != DTYPES[precision]:
            raise MessageError(f"{name}[{key!r}] must be {DTYPES[precision]}, got {value.dtype}")
    return {key: value.float() if value.is_floating_point() else value for key, value in state.items()}


def apply_update(state: Mapping[str, Tensor], update: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``state + update`` in fresh tensors, entry by entry; entries without an update are shared unchanged.

    A running variance becomes 0 at least: an update that has been bounded, or has noise, may lead below.

    Example:
        >>> apply_update({"norm.running_var": torch.tensor(1.0)}, {"norm.running_var": torch.tensor(-3.0)})
        {'norm.running_var': tensor(0.)}
    """
    moved = {name: value + update[name] if name in update else value for name, value in state.items()}
    for name in update:
        if name.rpartition(".")[2] == RUNNING_VARIANCE and name in moved:
            moved[name].clamp_(min=0)
    return moved


def difference(after: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``after - before`` in fresh tensors, floating entries only: the update that a site sends."""
    return {name: after[name] - value for name, value in before.items() if value.is_floating_point()}


def at_least_single(values: Tensor) -> Tensor:
    """Convert half precision to single; single and double stay unchanged.

    Only networks compute in half precision; losses and probabilities of their outputs are computed in single at least.

    Example:
        >>> half = torch.ones(1, dtype=torch.bfloat16)
        >>> at_least_single(half).dtype, at_least_single(half.double()).dtype
        (torch.float32, torch.float64)
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))
