"""What an option's annotation says: type, bounds, tier and meaning, and whether a value fits."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from grandrounds.errors import ConfigurationError

DESCRIPTIONS: Mapping[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    dict: "an object",
    Path: "a path",
    type(None): "null",
}


class Range(NamedTuple):
    """Finite numbers that an option may be; None and words are not checked.

    Attributes:
        minimum: the smallest value.
        maximum: the largest value.
        open_minimum: whether the minimum itself is excluded.
        open_maximum: whether the maximum itself is excluded.
    """

    minimum: float = -math.inf
    maximum: float = math.inf
    open_minimum: bool = False
    open_maximum: bool = False

    def __contains__(self, value: object) -> bool:
        """Whether a number lies in the range."""
        if not isinstance(value, int | float):
            return False
        above = value > self.minimum if self.open_minimum else value >= self.minimum
        return above and (value < self.maximum if self.open_maximum else value <= self.maximum)

    def __str__(self) -> str:
        """The range in words, for errors and documentation."""
        low = f"{'above' if self.open_minimum else 'at least'} {self.minimum:g}"
        high = f"{'below' if self.open_maximum else 'at most'} {self.maximum:g}"
        if math.isinf(self.maximum):
            return "positive" if self == ABOVE_ZERO else low
        if math.isinf(self.minimum):
            return high
        if self.open_minimum or self.open_maximum:
            return f"{low} and {high}"
        return f"between {self.minimum:g} and {self.maximum:g}"


def Min(value: float) -> Range:  # noqa: N802 - reads as a type beside Annotated
    """The range from a value on, including it."""
    return Range(minimum=value)


class Tier(StrEnum):
    """Who needs to know an option; without one in its annotation it is for experts."""

    BASIC = "basic"
    METHOD = "method"
    EXPERT = "expert"


BASIC, METHOD = Tier.BASIC, Tier.METHOD
"""What everyone decides who runs a job; and what makes its method."""


class Was(NamedTuple):
    """Names that an option had before: a job or a record that states one of them is read as if it stated today's.

    Beside the type, as in ``Annotated[int, "T, the maximum number of peers", Min(0), Was(("peer_count",))]``. Records are
    read without the classes of their job, so the names stand in :data:`~grandrounds.option_keys.FORMER_NAMES`, too.
    """

    names: tuple[str, ...]


ABOVE_ZERO = Range(0, open_minimum=True)

FRACTION = Range(0, 1)


class OptionInfo(NamedTuple):
    """What is known of an option, for the reference documentation and the command line.

    Attributes:
        name: of the option.
        type: in words.
        range: its bounds in words; empty if there are none.
        default: as JSON would write it; ``MISSING`` if the option has none.
        meaning: its one-line description.
        tier: who needs to know it.
    """

    name: str
    type: str
    range: str
    default: Any
    meaning: str
    tier: Tier = Tier.EXPERT

    @property
    def allowed(self) -> str:
        """Type and range in words."""
        return f"{self.type}, {self.range}" if self.range else self.type


def require_type(value: Any, annotation: Any, name: str) -> None:
    """Check a value against the annotation of its argument.

    Args:
        value: as JSON gives it.
        annotation: bool, int, float (an integer is one, too), str, None, a Literal, a dict, a list or tuple of one type, or
            a union of these; Any takes everything.
        name: how the error calls it.

    Raises:
        ConfigurationError: if it does not fit; with what was expected and what came.
        TypeError: if the annotation is another type.

    Example:
        >>> require_type(3, float, "executor.learning_rate")
        >>> require_type("abc", int | None, "controller.sites_per_round")
        Traceback (most recent call last):
        grandrounds.errors.ConfigurationError: controller.sites_per_round must be an integer or null, got 'abc'
    """
    if not fits(value, annotation):
        named = callable(value) and fits("", annotation)
        hint = "; give a name: gr.register_backbone, gr.register_metric and gr.register_view give one to your own"
        raise ConfigurationError(
            f"{name} must be {_description(annotation)}, got {_shown(value)}{hint if named else ''}"
        )


class Annotation(NamedTuple):
    """What an option's annotation holds: type, bounds if it has some, meaning, who needs to know it, and former names."""

    type: Any
    bounds: Range | None
    meaning: str
    tier: Tier = Tier.EXPERT
    was: tuple[str, ...] = ()


def annotations_of(group: type) -> Mapping[str, Annotation]:
    """Type, bounds and meaning of the fields of a group."""
    return _annotations_of(group)


@cache
def _annotations_of(group: type) -> Mapping[str, Annotation]:
    hints = get_type_hints(group, include_extras=True)
    return {field.name: _annotation(hints[field.name]) for field in fields(group)}


def _annotation(hint: Any) -> Annotation:
    if get_origin(hint) is not Annotated:
        return Annotation(hint, None, "")
    annotation, *extras = get_args(hint)
    bounds = next((extra for extra in extras if isinstance(extra, Range)), None)
    tier = next((extra for extra in extras if isinstance(extra, Tier)), Tier.EXPERT)
    meaning = next((extra for extra in extras if isinstance(extra, str) and not isinstance(extra, Tier)), "")
    was = tuple(name for extra in extras if isinstance(extra, Was) for name in extra.names)
    return Annotation(annotation, bounds, meaning, tier, was)


def fits(value: Any, annotation: Any) -> bool:
    """Whether a value is of an annotation's type, as :func:`require_type` checks it."""
    origin = get_origin(annotation) or annotation
    if annotation is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, choice) for choice in get_args(annotation))
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(annotation))
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(fits(entry, get_args(annotation)[0]) for entry in value)
    if annotation is None:
        return value is None
    if origin not in DESCRIPTIONS:
        raise TypeError(f"options cannot be of type {annotation}")
    # A bool is an integer to Python, but not to a reader of the job.
    return isinstance(value, (int, float) if origin is float else origin) and (origin is bool) == isinstance(
        value, bool
    )


def _description(annotation: Any) -> str:
    origin = get_origin(annotation) or annotation
    if origin in (Union, types.UnionType):
        return _either([_description(choice) for choice in get_args(annotation)])
    if origin is Literal:
        return _either([str(choice) for choice in get_args(annotation)])
    if origin in (list, tuple):
        entry = get_args(annotation)[0]
        return "a list of names" if entry is str else f"a list whose entries are {_description(entry)}"
    return DESCRIPTIONS[type(None) if annotation is None else origin]


def _shown(value: Any) -> str:
    """A value in one line; of a table or a network its type."""
    text = repr(value)
    return type(value).__name__ if "\n" in text else text


def _either(choices: Sequence[str]) -> str:
    *others, last = choices
    return f"{', '.join(others)} or {last}" if others else last
