"""The precision in which updates travel: rounding at a site, and its check at the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable

from grandrounds.checks import reraised_as
from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.protocol.tensors import (
    FULL,
    PRECISION,
    UPDATE_PRECISION,
    UpdatePrecision,
    require_precision,
    rounded,
)


def round_updates(message: Shareable, values: Mapping[str, Any]) -> None:
    """Round the model update of an answer to the precision that the task asks for; other releases stay as they are.

    Args:
        message: a site's answer, as its filters have let it out; it is changed.
        values: of the task.

    Raises:
        MessageError: if the precision is unknown, or an entry is not of single precision or beyond the precision's range;
            the entry is named.
    """
    precision = _asked_precision(values)
    if precision == FULL:
        return
    collection = from_shareable(message)
    for name, part in collection.data.items():
        if part.data_kind == DataKind.WEIGHT_DIFF:
            part.data = rounded(part.data, precision, name)
            part.set_meta_prop(PRECISION, precision)
    collection.update_shareable(message)


def precision_of(part: DXO, name: str, values: Mapping[str, Any]) -> UpdatePrecision:
    """The precision in which a release has travelled.

    Raises:
        MessageError: if it is another than the task has asked for.
    """
    asked = _asked_precision(values) if part.data_kind == DataKind.WEIGHT_DIFF else FULL
    came = part.get_meta_prop(PRECISION, FULL)
    if came != asked:
        raise MessageError(f"{name} came in {came!r}, asked for was {asked}: same versions?")
    return asked


def _asked_precision(values: Mapping[str, Any]) -> UpdatePrecision:
    with reraised_as(MessageError, ConfigurationError, where="the task is of another version"):
        return require_precision(values.get(UPDATE_PRECISION, FULL))
