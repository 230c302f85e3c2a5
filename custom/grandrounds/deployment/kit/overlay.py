"""Our overlay on a startup kit: the participant's own files, set as this project needs them, and a lock that says so.

The overlay writes into the kit's folder ``local`` and nowhere else. Files that FLARE or the participant has made are
changed only where a rule of :mod:`grandrounds.deployment.kit.policy` says so, so applying it twice changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grandrounds import __version__
from grandrounds.data.site import CONFIG_NAME, read_site_config
from grandrounds.deployment.jobs import PACKAGE
from grandrounds.deployment.kit.package_digest import file_digest, installed_digest, wheel_digest
from grandrounds.deployment.kit.policy import server_resources, site_resources, without_own_code
from grandrounds.deployment.kit.read import Kit
from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.record import versions
from grandrounds.federation.server.sites import MANDATORY, ROSTER, require_names
from grandrounds.files import read_json_object, write_json
from grandrounds.privacy.gate.policy import read_policies
from grandrounds.privacy.ledger.ledger import Ledger

RESOURCES, AUTHORIZATION, PRIVACY = "resources.json", "authorization.json", "privacy.json"
LOCK = "grandrounds.lock.json"
LEDGER_FOLDER = "privacy"
DEFAULT = ".default"
FLAGS = {"mandatory": "--mandatory-sites"}
# A checkout has the templates beside the package's folder; a wheel installs them under the environment's prefix.
CHECKOUT = PACKAGE.parents[1] / "provisioning"
PROVISIONING = CHECKOUT if CHECKOUT.is_dir() else Path(sys.prefix) / "share" / "grandrounds" / "provisioning"
OVERLAYS = PROVISIONING / "overlays"


@dataclass(frozen=True)
class Choices:
    """What a participant chooses; None keeps what the kit has.

    Attributes:
        wheel: the reviewed wheel; the installed package must be its.
        datasets: a ``grandrounds.json``; relative paths in it are relative to its folder.
        privacy: a ``privacy.json`` of the site.
        gpus: that jobs may ask for.
        gpu_memory: of each, in GiB.
        storage: of the server, for jobs and results.
        mandatory: of the server, sites without which no job starts; an empty list for none.
    """

    wheel: Path | None = None
    datasets: Path | None = None
    privacy: Path | None = None
    gpus: int | None = None
    gpu_memory: float | None = None
    storage: Path | None = None
    mandatory: Sequence[str] | None = None


@dataclass(frozen=True)
class Change:
    """What became of one file of the kit."""

    path: Path
    what: Literal["written", "changed", "as it was"]


def apply_overlay(kit: Kit, choices: Choices | None = None) -> list[Change]:
    """Set a kit's ``local`` folder as this project needs it.

    A server gets allowed classes, rights and a storage beside the kit's other folders; a site gets allowed classes, rights,
    the privacy policy, an empty privacy ledger and its data sets. All inputs are checked before the first file is written.

    Args:
        kit: of a server or a site.
        choices: the participant's.

    Returns:
        What became of each file.

    Raises:
        ConfigurationError: if the kit is a person's, a choice does not fit the kit, or a file is missing or wrong.
    """
    choices = choices or Choices()
    _require_fitting(kit, choices)
    contents: dict[str, Any] = {
        RESOURCES: _resources(kit, choices),
        AUTHORIZATION: without_own_code(_existing(kit, AUTHORIZATION) or read_json_object(OVERLAYS / AUTHORIZATION)),
    }
    if kit.kind == "site":
        contents[PRIVACY] = _privacy(kit, choices)
        datasets = _datasets(choices)
        contents |= {} if datasets is None else {CONFIG_NAME: datasets}
    elif choices.mandatory is not None:
        contents[ROSTER] = {MANDATORY: list(require_names(list(choices.mandatory), "--mandatory-sites"))}
    lock = _package(kit, choices.wheel)
    first = not (kit.local / LOCK).is_file()
    changes = [_write(kit.local / name, content) for name, content in contents.items()]
    if kit.kind == "site" and first:
        # Only now: a ledger that is missing later was removed, and must not begin again at nothing spent.
        Ledger.create(kit.local / LEDGER_FOLDER, kit.name)
    locked = [name for name in (RESOURCES, AUTHORIZATION, PRIVACY, CONFIG_NAME, ROSTER) if (kit.local / name).is_file()]
    lock |= {"files": {name: file_digest(kit.local / name) for name in locked}}
    return [*changes, _write(kit.local / LOCK, {"participant": kit.name, "project": kit.project, **lock})]


def _require_fitting(kit: Kit, choices: Choices) -> None:
    if kit.kind == "person":
        raise ConfigurationError(
            f"{kit.folder} is the kit of a person ({kit.name}); overlays are for servers and sites"
        )
    only = {"server": ("storage", "mandatory"), "site": ("datasets", "privacy", "gpus", "gpu_memory")}
    other = "site" if kit.kind == "server" else "server"
    for name in only[other]:
        if getattr(choices, name) is not None:
            raise ConfigurationError(
                f"{kit.folder} is the kit of a {kit.kind}; {FLAGS.get(name, '--' + name.replace('_', '-'))} is for a {other}"
            )


def _resources(kit: Kit, choices: Choices) -> dict[str, Any]:
    default = kit.local / (RESOURCES + DEFAULT)
    current = _existing(kit, RESOURCES) or read_json_object(default)
    if kit.kind == "site":
        return site_resources(current, choices.gpus, choices.gpu_memory)
    # FLARE's own choice is a folder of temporary files, which machines empty, and which two servers would share.
    first = _existing(kit, RESOURCES) is None
    storage = choices.storage or (kit.folder / "storage" if first else None)
    return server_resources(current, storage.absolute() if storage else None)


def _privacy(kit: Kit, choices: Choices) -> dict[str, Any]:
    if choices.privacy is None and (existing := _existing(kit, PRIVACY)):
        return existing
    source = choices.privacy or OVERLAYS / PRIVACY
    content = read_json_object(source)
    read_policies(content, str(source))
    return content


def _datasets(choices: Choices) -> dict[str, Any] | None:
    """The site's data sets with absolute paths, so that the file means the same in the kit."""
    if choices.datasets is None:
        return None
    locations = read_site_config(choices.datasets)
    content = read_json_object(choices.datasets)
    for name, location in locations.items():
        entry = content["datasets"][name]
        entry |= {"manifest": str(location.manifest.absolute()), "root": str(location.root.absolute())}
    return content


def _package(kit: Kit, wheel: Path | None) -> dict[str, Any]:
    """What is installed; a wheel that was pinned stays pinned until another one is given."""
    installed = installed_digest()
    package: dict[str, Any] = {"version": __version__, "contents": installed}
    pinned = (_existing(kit, LOCK) or {}).get("package", {})
    if wheel is None and "wheel" in pinned:
        if pinned.get("contents") != installed:
            raise ConfigurationError(
                f"{kit.folder}: the installed package is not {pinned['wheel']}, which is pinned; install that wheel, or "
                "name the reviewed one by --wheel"
            )
        package = dict(pinned)
    if wheel is not None:
        if wheel_digest(wheel) != installed:
            raise ConfigurationError(
                f"{wheel.name} is not what is installed in {PACKAGE.parent}; install it (pip install --force-reinstall "
                f"--no-deps {wheel}), then apply the overlay again"
            )
        package |= {"wheel": wheel.name, "wheel_sha256": file_digest(wheel)}
    return {"package": package, "versions": versions()}


def _existing(kit: Kit, name: str) -> dict[str, Any] | None:
    path = kit.local / name
    return read_json_object(path) if path.is_file() else None


def _write(path: Path, content: dict[str, Any]) -> Change:
    if not path.is_file():
        write_json(path, content)
        return Change(path, "written")
    if read_json_object(path) == content:
        return Change(path, "as it was")
    write_json(path, content)
    return Change(path, "changed")
