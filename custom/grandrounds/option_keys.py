"""Options by key, as jobs and sweeps set them, with the types and defaults of a component's."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING
from functools import cache
from typing import Any, get_type_hints

from grandrounds.checks import require_mapping
from grandrounds.errors import ConfigurationError
from grandrounds.options import Options, annotations_of, describe, former_names, groups_of, with_current_names

FORMER_NAMES: Mapping[str, Mapping[str, str]] = {"controller": {}, "executor": {}, "problem": {}}
"""By part of a job the names that options had before, with those of today: what their annotations say (``Was``)."""


def by_key(options: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """Values of options by part and name.

    Raises:
        ConfigurationError: if they are no mapping, or an option has no part.

    Example:
        >>> by_key({"executor.steps": 3})
        {('executor', 'steps'): 3}
    """
    require_mapping(options, "options", '{"executor.steps": 3}')
    values = {}
    for name, value in options.items():
        part, dot, option = str(name).partition(".")
        if not dot:
            raise ConfigurationError(f"{name}: expected part.option, such as executor.{name}")
        values[part, option] = value
    return values


def current_configuration(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration that a record states, options of the controller with the problem, with the names of today."""
    current = with_current_names(configuration, FORMER_NAMES["controller"])
    if isinstance(problem := current.get("problem"), dict):
        current["problem"] = with_current_names(problem, FORMER_NAMES["problem"])
    return current


def former_option_names(component: type) -> dict[str, str]:
    """Names that options of a component, or a group, had before, with those of today."""
    return {former: name for group in _all_groups(component) for former, name in former_names(group).items()}


def option_types(component: type) -> dict[str, Any]:
    """Annotations of all options that a component, or a group, takes: of its groups and keyword arguments, bases included.

    Example:
        >>> class Trainer:
        ...     def __init__(self, *, device: str = "cpu") -> None: ...
        >>> option_types(Trainer)
        {'device': <class 'str'>}
    """
    types = {name: hint for name, (_, hint) in _keywords(component).items()}
    groups = _all_groups(component)
    return types | {name: known.type for group in groups for name, known in annotations_of(group).items()}


def option_defaults(component: type) -> dict[str, Any]:
    """Defaults of those of :func:`option_types` that have one.

    Example:
        >>> class Trainer:
        ...     def __init__(self, *, device: str = "cpu", steps: int) -> None: ...
        >>> option_defaults(Trainer)
        {'device': 'cpu'}
    """
    defaults = {name: parameter.default for name, (parameter, _) in _keywords(component).items()}
    defaults |= {option.name: option.default for group in _all_groups(component) for option in describe(group)}
    return {name: value for name, value in defaults.items() if value not in (MISSING, inspect.Parameter.empty)}


@cache
def _all_groups(component: type) -> list[type[Options]]:
    return [component] if issubclass(component, Options) else list(groups_of(component).values())


@cache
def _keywords(component: type) -> dict[str, tuple[inspect.Parameter, Any]]:
    """The keyword arguments of a constructor and of those of the bases that it passes others on to, with annotations."""
    keywords: dict[str, tuple[inspect.Parameter, Any]] = {}
    for base in component.__mro__:
        if (constructor := vars(base).get("__init__")) is None:
            continue
        parameters = inspect.signature(constructor).parameters.values()
        hints = get_type_hints(constructor)
        keywords = {p.name: (p, hints.get(p.name, Any)) for p in parameters if p.kind is p.KEYWORD_ONLY} | keywords
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    return keywords
