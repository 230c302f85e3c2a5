"""Copies of messages in exact built-in types and dense tensors, made once, before any check; tensors may be shared.

A subclass of ``dict`` or ``str`` may answer differently when it is read again, so that what was checked is not what is used.
The methods of the base types read what is stored, whatever a subclass overrides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from nvflare.apis.dxo import DXO
from nvflare.apis.shareable import Shareable
from torch import Tensor, nn

from grandrounds.checks import reraised_as
from grandrounds.errors import MessageError

MAX_DEPTH = 12
"""Of collections in collections."""
STORED: Mapping[type, Callable[[Any], Any]] = {str: str.__str__, int: int.__int__, float: float.__float__}
"""What reads the stored value of a subclass's object."""
EXACT_IDS = frozenset(id(kind) for kind in (bool, int, float, str, bytes, type(None)))
"""Types of single values that are taken as they are, by identity: a metaclass can claim to be equal to another type."""
CLASS_NAME = type.__dict__["__name__"].__get__
"""A class's name, whatever its metaclass says."""


def plain(value: Any, where: str, share: bool = False) -> Any:
    """Copy a value: dictionaries, lists, tuples, texts, numbers, bytes, tensors and FLARE's data exchange objects.

    Args:
        value: of any type.
        where: how an error calls it.
        share: whether tensors may share memory with the original: where the sender itself makes the message, and at a site,
            which only reads a task. One that is a part of a larger storage is copied all the same.

    Returns:
        The value in exact types; tensors are contiguous, on the CPU, and without gradient or attributes.

    Raises:
        MessageError: if a part is of another type, a key is no text or occurs twice, a tensor is not dense, or
            collections are nested too deeply; the place is named.

    Example:
        >>> class Text(str):
        ...     __slots__ = ()
        >>> type(plain({Text("a"): [1, 2.5]}, "values").popitem()[0])
        <class 'str'>
    """
    return _plain(value, where, share, MAX_DEPTH)


def plain_message(message: Shareable) -> Shareable:
    """A copy of a message of FLARE's in exact types, see :func:`plain`."""
    copy = Shareable()
    dict.clear(copy)
    dict.update(copy, plain(message, "the message"))
    return copy


def _plain(value: Any, where: str, share: bool, depth: int) -> Any:
    kind = type(value)  # an object can claim another class to isinstance
    if depth == 0:
        raise MessageError(f"{where} is nested too deeply")
    if id(kind) in EXACT_IDS:
        return value
    if issubclass(kind, Tensor):
        return _dense(value, where, share)
    if issubclass(kind, dict):
        return _items(value, where, share, depth - 1)
    if kind is DXO:
        return _exchange_object(_items(vars(value), where, share, depth - 1), where)
    for sequence in (list, tuple):
        if issubclass(kind, sequence):
            return sequence(_plain(entry, where, share, depth - 1) for entry in sequence.__iter__(value))
    for base, read in STORED.items():
        if issubclass(kind, base):
            return read(value)
    raise MessageError(f"{where} is a {CLASS_NAME(kind)}, which no message has")


def _items(value: dict[Any, Any], where: str, share: bool, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, entry in list(dict.items(value)):
        name = str.__str__(key) if issubclass(type(key), str) else None
        if name is None or name in made:
            raise MessageError(f"{where} has a key that is no text, or occurs twice ({CLASS_NAME(type(key))})")
        made[name] = _plain(entry, name, share, depth)
    return made


def _exchange_object(content: dict[str, Any], where: str) -> DXO:
    with reraised_as(MessageError, ValueError, where=f"{where} is no data exchange object"):
        return DXO(content.get("data_kind"), data=content.get("data"), meta=content.get("meta"))


def _dense(value: Tensor, where: str, share: bool) -> Tensor:
    # An attribute of the object may hide a method, so the class's methods are called.
    if type(value) is not Tensor and type(value) is not nn.Parameter:
        raise MessageError(f"{where} is not a tensor, but a {CLASS_NAME(type(value))}")
    if value.layout != torch.strided or value.is_meta or value.is_nested or value.is_quantized:
        raise MessageError(f"{where} is not a dense tensor, but of {value.layout}")
    if Tensor.numel(value):
        steps = zip(Tensor.size(value), Tensor.stride(value), strict=True)
        last = Tensor.storage_offset(value) + sum((length - 1) * step for length, step in steps)
        if (last + 1) * Tensor.element_size(value) > Tensor.untyped_storage(value).nbytes():
            raise MessageError(f"{where} has less memory than its shape needs")
    local = Tensor.contiguous(Tensor.cpu(Tensor.detach(value)))
    whole = Tensor.untyped_storage(local).nbytes() == Tensor.numel(local) * Tensor.element_size(local)
    return local if share and whole else Tensor.clone(local, memory_format=torch.contiguous_format)
