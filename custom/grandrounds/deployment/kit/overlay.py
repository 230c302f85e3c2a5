"""This project's overlay on a startup kit: the participant's local files, and a lock with their digests.

The overlay writes into the kit's folder ``local`` only. It changes existing files only by the rules of
:mod:`grandrounds.deployment.kit.policy`, so applying it twice changes nothing. The lock also pins the installed package by a
digest of its files, which is the same for a wheel and for its installation.
"""

from __future__ import annotations

import copy
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nvflare.fuel.utils.log_utils import default_log_dict

from grandrounds import __version__
from grandrounds.data.site import CONFIG_NAME, read_site_config
from grandrounds.deployment.code_digest import PACKAGE, files_digest, installed_digest
from grandrounds.deployment.kit.distributions import (
    listed_plugins,
    locked_distributions,
    locked_networks,
    locked_plugins,
    reviewed_networks,
    reviewed_plugins,
)
from grandrounds.deployment.kit.policy import line_log, restricted, server_resources, site_resources
from grandrounds.deployment.kit.read import Kit
from grandrounds.deployment.kit.shipped import OVERLAYS, policy_name, shipped_content
from grandrounds.deployment.kit.signers import SIGNERS, read_signers
from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.record import versions
from grandrounds.federation.server.sites import MANDATORY, ROSTER, require_names
from grandrounds.files import file_digest, read_json_object, write_json
from grandrounds.privacy.gate.policy import POLICY_FILE, read_policies
from grandrounds.privacy.ledger.ledger import LEDGER_NAME, Ledger
from grandrounds.protocol.paths import LOCK

RESOURCES, AUTHORIZATION, LOG_CONFIG = "resources.json", "authorization.json", "log_config.json"
LEDGER_FOLDER = "privacy"
OVERLAY_MIN_SUPPORT = 10
"""Patients behind a figure of a class, where the hospital's own file does not say otherwise."""
DEFAULT = ".default"
CLASSES = "classes"
"""In the lock of a server: FLARE's own classes that its operator allows."""
FLAGS = {"mandatory": "--mandatory-sites", "classes": "--allow-class"}


@dataclass(frozen=True)
class Settings:
    """The participant's settings; None keeps what the kit has.

    Attributes:
        wheel: the reviewed wheel; the installed package must be its.
        datasets: a ``grandrounds.json``; relative paths in it are relative to its folder.
        privacy: a ``privacy.json`` of the site.
        policy: a shipped one by name, in place of that.
        gpus: number of GPUs that jobs may reserve.
        gpu_memory: memory of each, in GiB.
        storage: the server's folder for jobs and results.
        mandatory: sites without which the server starts no job; an empty list for none.
        plugins: distributions of the plug-ins that the kit's processes import; an empty list for none.
        classes: classes of FLARE's own that jobs may use at the server, beside the one for TensorBoard.
        max_sites: sites that may be connected to the server.
        networks: networks of libraries that jobs may name, such as ``timm:resnet50``; an empty list for none.
    """

    wheel: Path | None = None
    datasets: Path | None = None
    privacy: Path | None = None
    gpus: int | None = None
    gpu_memory: float | None = None
    storage: Path | None = None
    mandatory: Sequence[str] | None = None
    plugins: Sequence[str] | None = None
    classes: Sequence[str] | None = None
    networks: Sequence[str] | None = None
    policy: str | None = None
    max_sites: int | None = None


@dataclass(frozen=True)
class Change:
    """The result for one file of the kit."""

    path: Path
    state: Literal["written", "changed", "unchanged"]


def apply_overlay(kit: Kit, settings: Settings | None = None) -> list[Change]:
    """Set a kit's ``local`` folder as this project needs it.

    A server gets allowed classes, rights and a storage folder; a site gets allowed classes, rights, the privacy policy, an
    empty privacy ledger and its data sets. All inputs are checked before the first file is written.

    Raises:
        ConfigurationError: if the kit is a person's, a setting does not fit the kit, or a file is missing or wrong.
    """
    settings = settings or Settings()
    _require_fitting(kit, settings)
    listed = locked_plugins(kit) if settings.plugins is None else reviewed_plugins(settings.plugins)
    networks = locked_networks(kit) if settings.networks is None else reviewed_networks(settings.networks)
    with listed_plugins(listed):
        return _applied(kit, settings, locked_distributions(listed, networks))


def _applied(kit: Kit, settings: Settings, distributions: Mapping[str, Any]) -> list[Change]:
    contents: dict[str, Any] = {
        RESOURCES: _resources(kit, settings),
        AUTHORIZATION: restricted(kit.own_file(AUTHORIZATION) or read_json_object(OVERLAYS / AUTHORIZATION)),
        LOG_CONFIG: line_log(_log_config(kit), kit.name),
    }
    if kit.kind == "site":
        contents[POLICY_FILE] = _privacy(kit, settings)
        contents[SIGNERS] = kit.own_file(SIGNERS) or read_json_object(OVERLAYS / SIGNERS)
        read_signers(contents[SIGNERS], str(kit.local / SIGNERS))
        datasets = _datasets(settings)
        contents |= {} if datasets is None else {CONFIG_NAME: datasets}
    elif settings.mandatory is not None:
        contents[ROSTER] = {MANDATORY: list(require_names(list(settings.mandatory), "--mandatory-sites"))}
    lock = {**_package(kit, settings.wheel), **distributions}
    if kit.kind == "server":
        lock[CLASSES] = _classes(kit, settings)
    if first := not (kit.local / LOCK).is_file():
        _require_no_earlier_ledger(kit)
    changes = [_write(kit.local / name, content) for name, content in contents.items()]
    if kit.kind == "site" and first:
        # Only the first time: a ledger that is missing later was removed, and a new one would hide what was spent.
        Ledger.create(kit.local / LEDGER_FOLDER, kit.name)
    locked = [
        name
        for name in (RESOURCES, AUTHORIZATION, LOG_CONFIG, POLICY_FILE, SIGNERS, CONFIG_NAME, ROSTER)
        if (kit.local / name).is_file()
    ]
    lock |= {"files": {name: file_digest(kit.local / name) for name in locked}}
    return [*changes, _write(kit.local / LOCK, {"participant": kit.name, "project": kit.project, **lock})]


def read_at_start(kit: Kit) -> dict[str, Any]:
    """What the lock pins of the package and of the files that FLARE reads when it starts; jobs read the others anew."""
    lock = kit.own_file(LOCK)
    anew = (CONFIG_NAME, ROSTER, SIGNERS)
    files = {name: digest for name, digest in lock.get("files", {}).items() if name not in anew}
    return {**lock, "files": files}


def _require_fitting(kit: Kit, settings: Settings) -> None:
    if kit.kind == "person":
        raise ConfigurationError(
            f"{kit.folder} is the kit of a person ({kit.name}); overlays are for servers and sites"
        )
    only = {
        "server": ("storage", "mandatory", "classes", "max_sites"),
        "site": ("datasets", "privacy", "policy", "gpus", "gpu_memory"),
    }
    other = "site" if kit.kind == "server" else "server"
    for name in only[other]:
        if getattr(settings, name) is not None:
            raise ConfigurationError(
                f"{kit.folder} is the kit of a {kit.kind}; {FLAGS.get(name, '--' + name.replace('_', '-'))} is for a "
                f"{other}: leave it out"
            )


def _require_no_earlier_ledger(kit: Kit) -> None:
    """Refuse a new kit of a site whose earlier kit has a ledger: an empty one would hide what was spent."""
    generations = kit.folder.parent.parent.glob(f"prod_*/{kit.folder.name}/local/{LEDGER_FOLDER}/{LEDGER_NAME}")
    if earlier := sorted(path.parents[2] for path in generations if path.parents[2] != kit.folder):
        raise ConfigurationError(
            f"{earlier[-1]} is a kit of {kit.name} with a privacy ledger: give it the new certificate by grandrounds kit "
            f"renew {earlier[-1]} --from {kit.folder}"
        )


def _resources(kit: Kit, settings: Settings) -> dict[str, Any]:
    default = kit.local / (RESOURCES + DEFAULT)
    current = kit.own_file(RESOURCES) or read_json_object(default)
    if kit.kind == "site":
        return site_resources(current, settings.gpus, settings.gpu_memory)
    # FLARE's default is a folder for temporary files, which machines empty and two servers would share.
    first = not (kit.local / RESOURCES).is_file()
    storage = settings.storage or (kit.folder / "storage" if first else None)
    return server_resources(
        current, storage.absolute() if storage else None, _classes(kit, settings), settings.max_sites
    )


def _log_config(kit: Kit) -> dict[str, Any]:
    """How the kit writes its logs: by its own file, the one that it was made with, or FLARE's."""
    default = kit.local / (LOG_CONFIG + DEFAULT)
    made_with = read_json_object(default) if default.is_file() else copy.deepcopy(default_log_dict)
    return kit.own_file(LOG_CONFIG) or made_with


def _classes(kit: Kit, settings: Settings) -> list[str]:
    """The classes of FLARE's own that the operator allows."""
    return listed_classes(kit) if settings.classes is None else list(settings.classes)


def listed_classes(kit: Kit) -> list[str]:
    """The classes of FLARE's own that jobs may use at a server, by its lock."""
    return list(kit.own_file(LOCK).get(CLASSES, []))


def _privacy(kit: Kit, settings: Settings) -> dict[str, Any]:
    if settings.privacy is not None and settings.policy is not None:
        raise ConfigurationError(
            "give --policy with the name of a shipped policy, or --privacy with a file of your own"
        )
    if settings.privacy is not None:
        content = read_json_object(settings.privacy)
        read_policies(content, str(settings.privacy))
        return content
    existing = kit.own_file(POLICY_FILE) if settings.policy is None else {}
    return existing or shipped_content(policy_name(settings.policy))


def _datasets(settings: Settings) -> dict[str, Any] | None:
    """The site's data sets with absolute paths, because the file moves into the kit."""
    if settings.datasets is None:
        return None
    locations = read_site_config(settings.datasets)
    content = read_json_object(settings.datasets)
    for name, location in locations.items():
        entry = content["datasets"][name]
        entry |= {"manifest": str(location.manifest.absolute()), "root": str(location.root.absolute())}
    return {**content, "privacy": {"min_support": OVERLAY_MIN_SUPPORT, **content.get("privacy", {})}}


def _package(kit: Kit, wheel: Path | None) -> dict[str, Any]:
    """The installed package; a pinned wheel stays pinned until another one is given."""
    installed = installed_digest()
    package: dict[str, Any] = {"version": __version__, "contents": installed}
    pinned = kit.own_file(LOCK).get("package", {})
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


def _write(path: Path, content: dict[str, Any]) -> Change:
    if not path.is_file():
        write_json(path, content)
        return Change(path, "written")
    if read_json_object(path) == content:
        return Change(path, "unchanged")
    write_json(path, content)
    return Change(path, "changed")


def wheel_digest(wheel: Path, package: str = PACKAGE.name) -> str:
    """The digest that an installation of this wheel has.

    Raises:
        ConfigurationError: if the file is not a wheel, or one of another package.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith(f"{package}/") and not name.endswith("/")]
            digest = files_digest((name, archive.read(name)) for name in names)
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigurationError(f"{wheel} cannot be read as a wheel: {error}") from error
    if not names:
        raise ConfigurationError(f"{wheel} is not a wheel of {package}: there is no folder {package} in it")
    return digest
