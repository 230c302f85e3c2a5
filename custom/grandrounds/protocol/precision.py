"""Updates in half precision on their way to the server.

The server asks for it in its tasks. A site rounds what all its filters have let out: what noise has reached is only rounded
afterwards, which needs no further privacy, and nothing leaves that the site's gate has not treated. The server widens what
came before it looks at types and values. So the methods, the gate and the sums know single precision alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable
from torch import Tensor

from grandrounds.errors import ConfigurationError, MessageError

UpdatePrecision = Literal["float32", "float16", "bfloat16"]
FULL: UpdatePrecision = "float32"
UPDATE_PRECISION = "update_precision"
"""In a task's values: how updates are to travel."""
PRECISION = "precision"
"""Property of an update that was rounded: to what."""
DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def require_precision(name: object) -> UpdatePrecision:
    """Check the name of a precision.

    Raises:
        ConfigurationError: if it is none of the three.
    """
    for known in get_args(UpdatePrecision):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise ConfigurationError(f"{UPDATE_PRECISION} must be float32, float16 or bfloat16, got {name!r}")


def round_updates(message: Shareable, values: Mapping[str, Any]) -> None:
    """Round the model update of an answer to the precision that the task asks for; other releases stay as they are.

    Args:
        message: a site's answer, as its filters have let it out; it is changed.
        values: of the task.

    Raises:
        MessageError: if the precision is unknown, or an entry is not of single precision or beyond the precision's range;
            the entry is named.
    """
    precision = _asked(values)
    if precision == FULL:
        return
    collection = from_shareable(message)
    for name, part in collection.data.items():
        if part.data_kind == DataKind.WEIGHT_DIFF:
            part.data = rounded(part.data, precision, name)
            part.set_meta_prop(PRECISION, precision)
    collection.update_shareable(message)


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
                f"{name}[{key!r}] has a value of {float(value.abs().max()):.4g}, beyond {precision}: set "
                f"controller.{UPDATE_PRECISION} to {'bfloat16 or ' if precision == 'float16' else ''}float32"
            )
    return halved


def arrived_in(part: DXO, name: str, values: Mapping[str, Any]) -> UpdatePrecision:
    """The precision in which a release has travelled.

    Raises:
        MessageError: if it is another than the task has asked for.
    """
    asked = _asked(values) if part.data_kind == DataKind.WEIGHT_DIFF else FULL
    came = part.get_meta_prop(PRECISION, FULL)
    if came != asked:
        raise MessageError(f"{name} came in {came!r}, asked for was {asked}: same versions?")
    return asked


def widened(state: Mapping[str, Tensor], precision: UpdatePrecision, name: str) -> dict[str, Tensor]:
    """A state in single precision again.

    Args:
        state: of tensors, as it came.
        precision: in which it says it has travelled.
        name: how an error calls the state.

    Raises:
        MessageError: naming a floating entry that is of another type.
    """
    if precision == FULL:
        return dict(state)
    for key, value in state.items():
        if value.is_floating_point() and value.dtype != DTYPES[precision]:
            raise MessageError(f"{name}[{key!r}] must be {DTYPES[precision]} as it says, got {value.dtype}")
    return {key: value.float() if value.is_floating_point() else value for key, value in state.items()}


def _asked(values: Mapping[str, Any]) -> UpdatePrecision:
    try:
        return require_precision(values.get(UPDATE_PRECISION, FULL))
    except ConfigurationError as error:
        raise MessageError(f"the task is of another version: {error}") from error
