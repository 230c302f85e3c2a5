"""Plug-ins: Python modules that add networks and jobs, found by entry points or by an environment variable.

An installed package names its module in the entry-point group ``grandrounds``; importing the module registers what it adds.
``GRANDROUNDS_PLUGINS`` names further modules, separated by commas; a simulation sets it for the processes that it starts.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

from grandrounds.errors import ConfigurationError

GROUP = "grandrounds"
VARIABLE = "GRANDROUNDS_PLUGINS"
_registering: dict[str, None] = {}
"""Modules that have registered something, in order."""


class Plugin(NamedTuple):
    """An installed plug-in: its distribution, the version of it, and its module."""

    distribution: str
    version: str
    module: str


@cache
def load_plugins() -> tuple[Plugin, ...]:
    """Import the modules of all plug-ins, once in a process; the installed packages among them are returned.

    Raises:
        ConfigurationError: if one cannot be imported; the module is named.
    """
    found = []
    for entry in sorted(entry_points(group=GROUP)):
        _import(entry.module)
        if entry.dist is not None:
            found.append(Plugin(entry.dist.name, entry.dist.version, entry.module))
    for module in filter(None, os.environ.get(VARIABLE, "").split(",")):
        _import(module)
    return tuple(found)


def note_module(module: str) -> None:
    """Remember that a module has registered something."""
    _registering[module] = None


def plugin_modules() -> list[str]:
    """The modules that have registered something in this process."""
    load_plugins()
    return list(_registering)


def plugin_packages() -> set[str]:
    """The outermost packages of :func:`plugin_modules`."""
    return {module.partition(".")[0] for module in plugin_modules()}


def environment() -> dict[str, str]:
    """What a new process needs to find the same plug-ins: their modules and, in ``PYTHONPATH``, their folders.

    Raises:
        ConfigurationError: if something was registered in a script or notebook, which another process cannot import.
    """
    modules = plugin_modules()
    if "__main__" in modules:
        raise ConfigurationError(
            "something is registered in the running script, which other processes cannot import; move it into a module "
            "beside the script and import it, or use the engine in-process"
        )
    if not modules:
        return {}
    folders = dict.fromkeys(str(_folder(module)) for module in modules)
    path = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {VARIABLE: ",".join(modules), "PYTHONPATH": path}


def _import(module: str) -> None:
    try:
        import_module(module)
    except ConfigurationError:
        raise
    except Exception as error:  # a plug-in is foreign code
        reason = " ".join(str(error).split())[:200]
        raise ConfigurationError(f"plug-in {module} cannot be imported ({type(error).__name__}: {reason})") from error


def _folder(module: str) -> Path:
    """The folder from which the outermost package of a module is imported."""
    package = sys.modules[module.partition(".")[0]]
    file = Path(getattr(package, "__file__", None) or next(iter(package.__path__)))
    return (file.parent.parent if file.name == "__init__.py" else file.parent).absolute()
