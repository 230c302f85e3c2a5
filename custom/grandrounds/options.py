"""Options from outside, checked against the annotations of the arguments that they become.

A job is JSON and a command line is text: neither keeps ``False`` the text from becoming true somewhere deep in a run.

A component's options are the arguments of its constructor, or the fields of dataclasses, which check their values. The
latter it names in ``option_groups`` and makes with :func:`take_options`, so that no option is written down twice.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from grandrounds.errors import ConfigurationError

Group = TypeVar("Group")
DESCRIPTIONS: Mapping[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    dict: "an object",
    type(None): "null",
}


def require_type(value: Any, annotation: Any, name: str) -> None:
    """Check that a value is what the annotation of its argument says.

    Args:
        value: as JSON gives it.
        annotation: bool, int, float (an integer is one, too), str, None, a Literal, a dict, a list or tuple of one type, or
            a union of these; Any takes everything.
        name: how the error calls it.

    Raises:
        ConfigurationError: if it is not; the message says what is expected and what came.
        TypeError: if the annotation is none of these.

    Example:
        >>> require_type(3, float, "executor.learning_rate")
        >>> require_type("abc", int | None, "executor.cpu_threads")
        Traceback (most recent call last):
        grandrounds.errors.ConfigurationError: executor.cpu_threads must be an integer or null, got 'abc'
    """
    if not _fits(value, annotation):
        raise ConfigurationError(f"{name} must be {_description(annotation)}, got {value!r}")


def require_words(options: object, *names: str) -> None:
    """Check options that are one of several words, in a group that checks its values.

    Args:
        options: the group, a dataclass.
        names: its fields whose annotation is a Literal.

    Raises:
        ConfigurationError: naming the option, the words and what came.
    """
    known = get_type_hints(type(options))
    for name in names:
        words, value = get_args(known[name]), getattr(options, name)
        if value not in words:
            raise ConfigurationError(f"{name} must be one of {', '.join(words)}, got {value!r}")


def require_least(options: object, least: float, *names: str) -> None:
    """Check options that are finite numbers from a smallest one on, in a group that checks its values.

    Args:
        options: the group, a dataclass.
        least: the smallest number.
        names: its fields; what may be None is not checked where it is.

    Raises:
        ConfigurationError: naming the option, what was expected and what came.
    """
    _require_numbers(options, names, lambda value: value >= least, f"at least {least}")


def require_positive(options: object, *names: str) -> None:
    """Check options that are finite numbers above zero; otherwise as :func:`require_least`."""
    _require_numbers(options, names, lambda value: value > 0, "positive")


def require_fractions(options: object, *names: str) -> None:
    """Check options that are numbers in [0, 1]; otherwise as :func:`require_least`."""
    _require_numbers(options, names, lambda value: 0 <= value <= 1, "between 0 and 1")


def take_options(group: type[Group], options: Mapping[str, Any]) -> tuple[Group, dict[str, Any]]:
    """Make a component's options of those arguments that are theirs.

    Args:
        group: a dataclass that checks its values.
        options: keyword arguments; a list becomes a tuple.

    Returns:
        The dataclass, and the arguments that are none of its fields.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Steps:
        ...     steps: int = 26
        >>> take_options(Steps, {"steps": 3, "device": "cpu"})
        (Steps(steps=3), {'device': 'cpu'})
    """
    names = {field.name for field in fields(group)}  # type: ignore[arg-type]
    own = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items() if name in names}
    return group(**own), {name: value for name, value in options.items() if name not in names}


def option_types(component: type) -> dict[str, Any]:
    """Annotations of the options that a component takes: those of its constructor, of its groups and of its bases.

    Example:
        >>> class Trainer:
        ...     def __init__(self, *, device: str = "cpu") -> None: ...
        >>> option_types(Trainer)
        {'device': <class 'str'>}
    """
    found: dict[str, Any] = {}
    for base in component.__mro__:
        for group in vars(base).get("option_groups", ()):
            hints = get_type_hints(group)
            found = {**{field.name: hints[field.name] for field in fields(group)}, **found}
        if "__init__" not in vars(base):
            continue
        constructor = vars(base)["__init__"]
        parameters = inspect.signature(constructor).parameters.values()
        hints = get_type_hints(constructor)
        own = {p.name: hints.get(p.name, Any) for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
        found = {**own, **found}
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    return found


def _require_numbers(options: object, names: Sequence[str], fits: Callable[[float], bool], expected: str) -> None:
    known = get_type_hints(type(options))
    for name in names:
        value = getattr(options, name)
        require_type(value, known[name], name)
        if value is not None and not (math.isfinite(value) and fits(value)):
            raise ConfigurationError(f"{name} must be {expected if math.isfinite(value) else 'finite'}, got {value}")


def _fits(value: Any, annotation: Any) -> bool:
    origin = get_origin(annotation) or annotation
    if annotation is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, choice) for choice in get_args(annotation))
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(annotation))
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(_fits(entry, get_args(annotation)[0]) for entry in value)
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


def _either(choices: Sequence[str]) -> str:
    *others, last = choices
    return f"{', '.join(others)} or {last}" if others else last
