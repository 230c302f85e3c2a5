"""Dataclasses and named tuples as plain values of JSON, and back.

The keys are the names of the fields. A type with its own ``to_json`` and ``from_json`` is asked for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

Typed = TypeVar("Typed")


def to_plain(value: Any) -> Any:
    """A value as JSON can hold it: NaN is null, arrays and tuples are lists.

    Example:
        >>> to_plain({"value": float("nan"), "counts": np.array([1, 2])})
        {'value': None, 'counts': [1, 2]}
    """
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value) or hasattr(value, "_fields"):
        return {name: to_plain(getattr(value, name)) for name in _names(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [to_plain(entry) for entry in (value.tolist() if isinstance(value, np.ndarray) else value)]
    return None if isinstance(value, float) and math.isnan(value) else value


def from_plain(kind: type[Typed], content: Any) -> Typed:
    """The dataclass or named tuple that :func:`to_plain` gave as ``content``; a field that is missing has its default.

    Raises:
        ValueError: if an entry is missing or of another type; it is named.
    """
    return _typed(kind, content, "")


def _typed(kind: Any, content: Any, place: str) -> Any:
    """A value of the annotated type; ``place`` are the keys to it, for errors."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if NoneType in inner:
        return None if content is None else _typed(inner[0], content, place)
    if hasattr(kind, "from_json"):
        return _read(kind.from_json, content, place)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        hints, given = get_type_hints(kind), _read(dict, content, place)
        parts = {name: _typed(hints[name], given[name], f"{place}.{name}") for name in _names(kind) if name in given}
        return _read(lambda values: kind(**values), parts, place)
    if origin is np.ndarray:
        return _read(np.array, content, place)
    if origin is tuple:
        return tuple(_typed(inner[0], entry, f"{place}[]") for entry in _read(list, content, place))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: _typed(inner[1], entry, f"{place}.{key}") for key, entry in _read(dict, content, place).items()}
    return _simple(kind, content, place)


def _simple(kind: type, content: Any, place: str) -> Any:
    """A number or text; null is the number NaN."""
    if kind is float:
        return math.nan if content is None else _read(float, content, place)
    if not isinstance(content, kind):
        raise ValueError(f"{place.lstrip('.')}: expected {kind.__name__}, got {content!r:.80}")
    return content


def _read(reader: Callable[[Any], Any], content: Any, place: str) -> Any:
    try:
        return reader(content)
    except (TypeError, ValueError, LookupError) as error:
        raise ValueError(f"{place.lstrip('.') or 'the content'}: {error}") from error


def _names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)] if is_dataclass(kind) else list(kind._fields)
