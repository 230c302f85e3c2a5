"""Functions of plug-ins that options name: their arguments, and the one of a name."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from grandrounds.errors import ConfigurationError
from grandrounds.plugins import Registry

Entry = TypeVar("Entry")


def registered(registry: Registry[Entry], name: str, option: str) -> Entry:
    """What is registered under the name that an option has, where the package has none of its own.

    Raises:
        ConfigurationError: if there is none; those that exist are named.
    """
    entries = registry.all()
    if name not in entries:
        known = f"one of {', '.join(sorted(entries))} or null" if entries else "null, because none is registered"
        raise ConfigurationError(
            f"{option} must be {known}, got {name!r}; register it with gr.register_{registry.kind}"
        )
    return entries[name]


def require_parameters(what: str, function: Any, *names: str) -> None:
    """Check that a function can be called with these arguments, in this order.

    Raises:
        ConfigurationError: if it takes others.
    """
    try:
        inspect.signature(function).bind(*names)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{what} must take the arguments {', '.join(names)} ({error})") from error
