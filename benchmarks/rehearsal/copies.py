"""Copies of a consortium's kits for this machine: nobody's data, no ledger, another port, and nobody outside is called."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from grandrounds.data.site import CONFIG_NAME
from grandrounds.deployment.kit.overlay import LEDGER_FOLDER, Settings, apply_overlay
from grandrounds.deployment.kit.read import KIT_MARKERS, Kit, read_kit
from grandrounds.deployment.kit.shipped import OPEN
from grandrounds.deployment.kit.signers import role_of
from grandrounds.deployment.local_federation import DESCRIPTION, PARTS, Federation, load
from grandrounds.errors import ConfigurationError
from grandrounds.files import read_json_object, write_json
from grandrounds.privacy.ledger.ledger import Ledger

COPIED = ("startup", "local")
OPERATORS, RESEARCHERS = ("project_admin", "lead"), ("lead", "project_admin")
"""The roles of who may watch a federation, and of who may submit to it, the preferred one first."""
MIN_REHEARSED_SITES = 2


def kits_in(folder: Path) -> list[Kit]:
    """The kits of a consortium: in ``folder``, in the newest generation of a provisioning there, or of ``poc up``.

    Raises:
        ConfigurationError: if there is not exactly one server, or less than two sites, or nobody who may submit.
    """
    place = load(folder).kits if (folder / DESCRIPTION).is_file() else folder.absolute()
    kits = _kits_below(place)
    if not kits and (generations := sorted(place.glob("*/prod_*")) or sorted(place.glob("prod_*"))):
        kits = _kits_below(generations[-1])
    kinds = [kit.kind for kit in kits]
    if kinds.count("server") != 1 or kinds.count("site") < MIN_REHEARSED_SITES or "person" not in kinds:
        raise ConfigurationError(
            f"{folder}: a rehearsal needs the kits of one server, of two sites or more and of a person, and there are "
            f"{kinds.count('server')}, {kinds.count('site')} and {kinds.count('person')}; name the folder that grandrounds "
            "provision or grandrounds poc up has written"
        )
    return kits


def copy_kits(kits: Sequence[Kit], folder: Path, port: int, policy: str = OPEN) -> Federation:
    """Copies of kits, in which the server listens at another port of this machine only.

    Policies, rights and allowed classes are the consortium's. Ledgers, data sets and the server's storage are not: the
    copies have synthetic images, and ledgers of their own.

    Args:
        kits: not changed.
        folder: new.
        port: of the server, free.
        policy: of the sites.

    Raises:
        ConfigurationError: if a kit is damaged, or nobody may submit.
    """
    for part in PARTS:
        (folder / part).mkdir(parents=True)
    for kit in kits:
        for part in COPIED:
            shutil.copytree(kit.folder / part, folder / "kits" / kit.name / part, ignore=_own_state)
    copies = [read_kit(folder / "kits" / kit.name) for kit in kits]
    (server,) = (kit for kit in copies if kit.kind == "server")
    _move(server, port)
    for kit in copies:
        if kit.kind != "person":
            # Faults are told by the scores of single sites, of synthetic images.
            own = {"storage": folder / "storage"} if kit.kind == "server" else {"policy": policy}
            apply_overlay(read_kit(kit.folder), Settings(**own))
        if kit.kind == "site" and not (kit.local / LEDGER_FOLDER).is_dir():  # the overlay makes one the first time only
            Ledger.create(kit.local / LEDGER_FOLDER, kit.name)
    people = {role_of(kit): kit.name for kit in copies if kit.kind == "person"}
    operator, researcher = (
        next((people[role] for role in roles if role in people), "") for roles in (OPERATORS, RESEARCHERS)
    )
    if not researcher:
        raise ConfigurationError(
            f"none of {', '.join(people.values())} may submit a job: a kit of the role lead is missing"
        )
    sites = tuple(kit.name for kit in copies if kit.kind == "site")
    return Federation(folder, folder / "kits", server.folder.name, sites, operator, researcher)


def state_of(kits: Sequence[Kit]) -> str:
    """A digest of the names, sizes and times of all files of kits: the same as long as nobody has written there."""
    digest = hashlib.sha256()
    for kit in kits:
        for path in sorted(kit.folder.rglob("*")):
            status = path.lstat()
            digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _kits_below(place: Path) -> list[Kit]:
    marked = {path.parent.parent for name in KIT_MARKERS for path in place.glob(f"*/startup/{name}")}
    return [read_kit(path) for path in sorted(marked)]


def _own_state(folder: str, names: list[str]) -> set[str]:
    """What of ``local`` stays away: the ledger, the data sets, and what is no file, such as sockets."""
    kept_away = {LEDGER_FOLDER, CONFIG_NAME} if Path(folder).name == "local" else set()
    return {name for name in names if name in kept_away or not _is_plain(os.path.join(folder, name))}


def _is_plain(path: str) -> bool:
    return os.path.isfile(path) or os.path.isdir(path)


def _move(server: Kit, port: int) -> None:
    path = server.startup / "fed_server.json"
    content = read_json_object(path)
    (one,) = content["servers"]
    one["service"]["target"] = f"localhost:{port}"
    one |= {"admin_server": "localhost", "admin_port": port}
    one.setdefault("identity", server.name)
    write_json(path, content)
