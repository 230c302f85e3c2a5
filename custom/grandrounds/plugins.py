"""Plug-ins: Python modules that add networks, data sets, metrics and methods, found by entry points or by a variable.

An installed package names its module in the entry-point group ``grandrounds``; importing the module registers what it adds.
``GRANDROUNDS_PLUGINS`` names further modules, separated by commas; a simulation sets it for the processes that it starts.
In a kit only the packages that its lock lists are imported, if name, version and content are those that were reviewed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import sys
from collections.abc import Collection, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from grandrounds.errors import ConfigurationError

GROUP = "grandrounds"
PLUGINS_VARIABLE = "GRANDROUNDS_PLUGINS"
LISTED_VARIABLE = "GRANDROUNDS_LISTED_PLUGINS"
"""In the processes of a kit: the distributions that its lock lists, as JSON."""
NETWORKS_VARIABLE = "GRANDROUNDS_LISTED_NETWORKS"
"""In the processes of a kit: the networks of libraries that its lock lists, each with its library, as JSON."""
BESIDE_CONTENT = (
    "__pycache__/",
    ".dist-info/RECORD",
    ".dist-info/INSTALLER",
    ".dist-info/REQUESTED",
    "direct_url.json",
)
"""Files of an installation that depend on who installed it, and how."""
PLUGIN_NAME = re.compile(r"[a-z][a-z0-9_]{1,39}")
Entry = TypeVar("Entry")
_registering: dict[str, None] = {}
"""Modules that have registered something, in order."""


class Plugin(NamedTuple):
    """An installed plug-in: its distribution, the version of it, and its module."""

    distribution: str
    version: str
    module: str


class Distribution(NamedTuple):
    """An installed distribution, as it was reviewed.

    Attributes:
        name: as packages are called, in lower case with ``-``.
        version: of it.
        record: a digest over the names of its files with their SHA-256, that of Python files from the files themselves and
            that of others from its RECORD.
    """

    name: str
    version: str
    record: str

    @classmethod
    def installed(cls, name: str) -> Distribution:
        """The distribution of this name as it is installed now.

        Raises:
            ConfigurationError: if it is not installed, or has no record of its files.
        """
        try:
            metadata = distribution(name)
        except (PackageNotFoundError, ValueError):
            raise ConfigurationError(f"{name} is not installed here; install what was reviewed") from None
        if not metadata.files:
            raise ConfigurationError(f"{name} has no record of its files; install it by pip from a wheel")
        lines = []
        for file in metadata.files:
            text = file.as_posix()
            if any(part in text for part in BESIDE_CONTENT):
                continue
            path = Path(str(file.locate()))
            digest = file.hash.value if file.hash else ""
            if file.suffix == ".py" and path.is_file():
                content = hashlib.sha256(path.read_bytes()).digest()
                digest = base64.urlsafe_b64encode(content).rstrip(b"=").decode()
            lines.append(f"{text}\0{digest}\n")
        record = hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
        return cls(_canonical(metadata.name), metadata.version, record)

    def require_installed(self) -> None:
        """Check that this very distribution is installed.

        Raises:
            ConfigurationError: if it is not; what differs is named.
        """
        now = Distribution.installed(self.name)
        if now != self:
            other = f"version {now.version}" if now.version != self.version else "other content"
            raise ConfigurationError(
                f"{self.name} {self.version} is listed in this kit, but {other} is installed; install what was reviewed, or "
                "review the other one and list it by grandrounds overlay"
            )


class Registry(Generic[Entry]):
    """What plug-ins have added of one kind, by name.

    Args:
        kind: what errors call an entry.

    Attributes:
        entries: by name, with the full name of the function or class that was registered.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.entries: dict[str, tuple[str, Entry]] = {}

    def require_name(self, name: object) -> None:
        """Check a name.

        Raises:
            ConfigurationError: if it has other characters than lower-case letters, digits and ``_``, or more than 40.
        """
        if not isinstance(name, str) or not PLUGIN_NAME.fullmatch(name):
            raise ConfigurationError(
                f"a {self.kind}'s name is text of 2 to 40 lower-case letters, digits and _; got {name!r}"
            )

    def add(self, name: str, entry: Entry, owner: Any) -> None:
        """Add an entry; the same function or class may come again, as from a notebook's cell.

        Args:
            name: of the entry.
            entry: to keep.
            owner: the function or class that was registered.

        Raises:
            ConfigurationError: if another one has the name, or the owner is an object of another kind.
        """
        if not hasattr(owner, "__qualname__"):
            raise ConfigurationError(
                f"{self.kind} {name} must be a function or a class, got {type(owner).__name__}; write one that uses it"
            )
        place = f"{owner.__module__}.{owner.__qualname__}"
        known = self.entries.get(name)
        if known is not None and known[0] != place:
            raise ConfigurationError(f"{self.kind} {name!r} is registered by {known[0].rpartition('.')[0]} already")
        self.entries[name] = (place, entry)
        _registering[owner.__module__] = None

    def all(self, own: Collection[str] = ()) -> Mapping[str, Entry]:
        """All entries, those of installed plug-ins included.

        Args:
            own: the package's names, which a plug-in must not take.

        Raises:
            ConfigurationError: if a plug-in cannot be imported, or takes a name of the package.
        """
        load_plugins()
        if taken := sorted(self.entries.keys() & set(own)):
            raise ConfigurationError(f"{self.kind} {taken[0]!r} is one of the package's own; register another name")
        return {name: entry for name, (_, entry) in self.entries.items()}


@cache
def load_plugins() -> tuple[Plugin, ...]:
    """Import the modules of all plug-ins, once in a process; the installed packages among them are returned.

    In a kit these are the listed ones, and ``GRANDROUNDS_PLUGINS`` is not read.

    Raises:
        ConfigurationError: if one cannot be imported, or is not the one that is listed; the module is named.
    """
    listed = os.environ.get(LISTED_VARIABLE)
    plugins = installed_plugins()
    if listed is not None:
        pins = [Distribution(*pin) for pin in json.loads(listed)]
        for pin in pins:
            pin.require_installed()
        plugins = [plugin for plugin in plugins if plugin.distribution in {pin.name for pin in pins}]
    modules = os.environ.get(PLUGINS_VARIABLE, "").split(",") if listed is None else []
    for module in (*(plugin.module for plugin in plugins), *filter(None, modules)):
        _import(module)
    return tuple(plugins)


def installed_plugins() -> list[Plugin]:
    """The plug-ins that are installed; none is imported."""
    return [_plugin(entry) for entry in sorted(entry_points(group=GROUP))]


def plugin_modules() -> list[str]:
    """The modules that have registered something in this process."""
    load_plugins()
    return list(_registering)


def outermost_packages() -> list[str]:
    """The outermost names of this package and of all plug-ins, which are installed wherever a job runs."""
    return sorted({"grandrounds", *(name.partition(".")[0] for name in plugin_modules())})


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
    return {PLUGINS_VARIABLE: ",".join(modules), "PYTHONPATH": path}


def _plugin(entry: EntryPoint) -> Plugin:
    name, version = (entry.dist.name, entry.dist.version) if entry.dist is not None else (entry.module, "")
    return Plugin(_canonical(name), version, entry.module)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


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
