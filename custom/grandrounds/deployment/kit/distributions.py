"""What else runs in a kit's processes: FLARE, torch and plug-ins, each as it was reviewed, by a digest in the lock."""

from __future__ import annotations

import hashlib
import json
import site
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from grandrounds.deployment.kit.read import Kit
from grandrounds.deployment.processes import variables_set
from grandrounds.errors import ConfigurationError
from grandrounds.plugins import BESIDE_CONTENT, GROUP, LISTED_VARIABLE, Distribution, installed_plugins, load_plugins
from grandrounds.protocol.paths import LOCK

LIBRARIES = ("nvflare", "torch")
LISTED = "plugins"
"""In the lock: the plug-ins that the kit's processes import."""
NETWORKS = "networks"
"""In the lock: the networks of libraries that jobs may name, each with its library."""
ENVIRONMENT = "environment"
"""In the lock: all that is installed."""
RUN_BY_TORCH, RUN_AT_START = "torch.backends", ("sitecustomize.py", "usercustomize.py")
SHOWN = 8


def locked_libraries(kit: Kit) -> list[Distribution]:
    """FLARE and torch as the kit's lock pins them; empty without a lock.

    Raises:
        ConfigurationError: if the lock is damaged.
    """
    return [Distribution(**entry) for entry in kit.own_file(LOCK).get("libraries", [])]


def locked_plugins(kit: Kit) -> list[Distribution]:
    """The plug-ins that a kit's lock lists.

    Raises:
        ConfigurationError: if the lock is damaged.
    """
    return [Distribution(**entry) for entry in kit.own_file(LOCK).get(LISTED, [])]


def locked_networks(kit: Kit) -> dict[str, Distribution]:
    """The networks that a kit's lock lists, each with its library as it was reviewed.

    Raises:
        ConfigurationError: if the lock is damaged.
    """
    return {name: Distribution(**entry) for name, entry in kit.own_file(LOCK).get(NETWORKS, {}).items()}


def reviewed_networks(names: Sequence[str]) -> dict[str, Distribution]:
    """The libraries of these networks as they are installed, by the networks' names.

    Raises:
        ConfigurationError: if a library is not installed, or has no such network.
    """
    # With torch, which a kit without networks does not need.
    from grandrounds.models.backbones.libraries import library_of

    return {name: library_of(name) for name in sorted(names)}


def reviewed_plugins(names: Sequence[str]) -> list[Distribution]:
    """The installed distributions of these names, each with a plug-in.

    Raises:
        ConfigurationError: if one is not installed, or is no plug-in.
    """
    plugins = [Distribution.installed(name) for name in names]
    known = {plugin.distribution for plugin in installed_plugins()}
    for reviewed in plugins:
        if reviewed.name not in known:
            raise ConfigurationError(f"{reviewed.name} is no plug-in: it has no entry point of the group {GROUP}")
    return sorted(plugins)


@contextmanager
def listed_plugins(listed: Sequence[Distribution]) -> Iterator[None]:
    """Inside the block this process imports these plug-ins and no others, as the kit's processes do."""
    try:
        with variables_set({LISTED_VARIABLE: json.dumps(listed)}):
            load_plugins.cache_clear()
            yield
    finally:
        load_plugins.cache_clear()


def installed_libraries() -> list[Distribution]:
    """FLARE and torch as they are installed."""
    return [Distribution.installed(name) for name in LIBRARIES]


def installed_environment() -> dict[str, str]:
    """All that this interpreter can load or runs at its start, with the SHA-256 of each.

    These are distributions with their versions (the digest is that of their RECORD), files that Python runs when it starts
    (``.pth``, ``sitecustomize.py``), and entry points that an import of torch runs.
    """
    found: dict[str, str] = {}
    for each in distributions():
        lines = (line for line in (each.read_text("RECORD") or "").splitlines() if not _of_installation(line))
        found.setdefault(f"{each.name} {each.version}", _sha256("\n".join(sorted(lines)).encode()))
        for point in each.entry_points.select(group=RUN_BY_TORCH):
            found[f"{RUN_BY_TORCH}: {point.name} = {point.value}"] = ""
    installed = {*site.getsitepackages(), site.getusersitepackages()}
    at_start = [path for folder in installed for path in Path(folder).glob("*.pth")]
    at_start += [Path(folder) / name for folder in sys.path if folder for name in RUN_AT_START]
    return found | {path.name: _sha256(path.read_bytes()) for path in at_start if path.is_file()}


def environment_fault(kit: Kit) -> str:
    """What is installed otherwise than when the overlay was applied; empty if nothing is.

    Raises:
        ConfigurationError: if the lock is damaged.
    """
    pinned, now = kit.own_file(LOCK).get(ENVIRONMENT), installed_environment()
    if pinned is None:
        return "the lock does not list what is installed"
    changes = {"new": now.keys() - pinned.keys(), "gone": pinned.keys() - now.keys()}
    changes["changed"] = {name for name in now.keys() & pinned.keys() if now[name] != pinned[name]}
    named = [f"{what}: {', '.join(sorted(names)[:SHOWN])}" for what, names in changes.items() if names]
    return "; ".join(named)


def _of_installation(line: str) -> bool:
    return any(part in line for part in BESIDE_CONTENT)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def locked_distributions(listed: Sequence[Distribution], networks: Mapping[str, Distribution]) -> dict[str, Any]:
    """What the lock says of plug-ins, networks and libraries."""
    return {
        LISTED: [distribution._asdict() for distribution in listed],
        NETWORKS: {name: distribution._asdict() for name, distribution in networks.items()},
        ENVIRONMENT: installed_environment(),
        "libraries": [distribution._asdict() for distribution in installed_libraries()],
    }
