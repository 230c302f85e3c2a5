"""A kit that runs at two places at once: the server keeps the one that is connected, and refuses the other by name.

FLARE 2.9 closes a connection for a newer one of the same name, so a kit and its copy throw each other out, and both lose
every round. Here each connection says at which place its kit is, and one from another place waits until the first has been
silent for a while. A kit that moves is taken in then. This finds mistakes, and thieves who do not know of it.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection
from nvflare.fuel.f3.sfm.sfm_endpoint import SfmEndpoint

from grandrounds.files import read_json_object, without_controls, write_json
from grandrounds.protocol.paths import STATES

PLACE, COPY = "grandrounds_place", "grandrounds_copy"
"""Of a handshake: where the kit of a connection is, and why the server does not take it."""
SILENT_SECONDS = 30.0
"""After which a connection is not waited for: a site reports every ten seconds."""
FORGET_SECONDS = 180.0
"""After which a site that was refused counts as taken in: it asks again every ten seconds, or when it is started again."""
COPIES, REFUSED_COPY = "copies", "refused_copy.json"
"""In a kit's folder of states: at the server a file for each name that was refused, at a site that it is refused."""
MACHINE = Path("/etc/machine-id")
KEYS = ("client.key", "server.key")
MAX_TEXT = 500

logger = logging.getLogger(__name__)


class SeenCopy(NamedTuple):
    """A copy of a kit that was refused: the kit's name or the server's words, how long ago in seconds, and how often."""

    what: str
    ago: float
    times: int


class _Refused(Exception):
    """A connection is of a copy."""


def kit_place(kit: Path) -> str:
    """Where a kit is: a hash of machine and folder that nobody without the kit's key can try; empty without a key."""
    key = next((kit / "startup" / name for name in KEYS if (kit / "startup" / name).is_file()), None)
    if key is None:
        return ""
    machine = MACHINE.read_text().strip() if MACHINE.is_file() else ""
    where = "\0".join((machine, os.uname().nodename, str(kit.resolve())))
    return hmac.new(key.read_bytes(), where.encode(), hashlib.sha256).hexdigest()


def guard_copies(kit: Path) -> None:
    """Let this process say where its kit is, and take no connection of another kit from two places.

    Args:
        kit: whose FLARE this process is.
    """
    if getattr(ConnManager.update_endpoint, "guards_copies", False):
        return
    place, states = kit_place(kit), kit / STATES
    greet, update, add = SfmConnection.send_handshake, ConnManager.update_endpoint, SfmEndpoint.add_connection

    def greet_with_place(connection: SfmConnection, kind: int) -> None:
        connection.local_endpoint.properties.setdefault(PLACE, place)
        greet(connection, kind)

    def add_one_place(endpoint: SfmEndpoint, connection: SfmConnection) -> None:
        # FLARE has compared the name with the certificate of the connection by now.
        if any(_elsewhere(held, connection) and _is_alive(held) for held in endpoint.connections):
            raise _Refused
        add(endpoint, connection)

    def update_unless_copy(manager: ConnManager, connection: SfmConnection, data: dict[str, Any]) -> None:
        if (reason := data.get(COPY)) and connection.conn.connector.mode == Mode.ACTIVE:
            _note_refused(states, without_controls(str(reason)[:MAX_TEXT].replace("\n", " ")))
            connection.conn.close()
            return
        name = str(data.get(HandshakeKeys.ENDPOINT_NAME))
        connection.place = str(data.pop(PLACE, ""))
        held = manager.sfm_endpoints.get(name)
        before = held.endpoint if held else None
        try:
            update(manager, connection, data)
        except _Refused:
            assert held is not None
            held.endpoint = before
            _refuse(manager, connection, name, states)

    update_unless_copy.guards_copies = True  # type: ignore[attr-defined]
    SfmConnection.send_handshake = greet_with_place
    SfmEndpoint.add_connection = add_one_place
    ConnManager.update_endpoint = update_unless_copy


def refused_copies(kit: Path, seconds: float) -> Iterator[SeenCopy]:
    """The copies of kits that a server has refused in the last ``seconds``; a damaged file is passed over."""
    for path in sorted((kit / STATES / COPIES).glob("*.json")):
        if seen := _seen(path, "name", seconds):
            yield seen


def refused_here(kit: Path) -> str:
    """Why the server refuses this kit; empty if it does not."""
    seen = _seen(kit / STATES / REFUSED_COPY, "reason", FORGET_SECONDS)
    return seen.what if seen else ""


def _elsewhere(held: SfmConnection, connection: SfmConnection) -> bool:
    places = [getattr(holder, "place", "") for holder in (held, connection)]
    return all(places) and places[0] != places[1]


def _is_alive(held: SfmConnection) -> bool:
    return time.time() - float(held.last_activity) < SILENT_SECONDS


def _refuse(manager: ConnManager, connection: SfmConnection, name: str, states: Path) -> None:
    """Tell a copy that it is one, close its connection, and note it at the server."""
    reason = (
        f"a copy of the kit of {name} is connected from another place; stop that one, or this one, and ask the server's "
        "operator for a new kit if you do not know of the other"
    )
    logger.error("%s: a second copy of its kit asked for a connection and was refused", name)
    connection.send_dict(Types.READY, 1, {HandshakeKeys.ENDPOINT_NAME: manager.local_endpoint.name, COPY: reason})
    connection.conn.close()
    _note(states / COPIES / f"{quote(name, safe='')}.json", "name", name)


def _note_refused(states: Path, reason: str) -> None:
    logger.error("the server refuses this kit: %s", reason)
    _note(states / REFUSED_COPY, "reason", reason)


def _note(path: Path, what: str, value: str) -> None:
    """Count what has happened once more; the connection does not depend on it, so an error is logged only."""
    seen = _seen(path, what, FORGET_SECONDS)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        write_json(path, {what: value, "time": now, "times": 1 + (seen.times if seen else 0)})
    except OSError as error:
        logger.error("%s cannot be written: %s", path, error)


def _seen(path: Path, what: str, seconds: float) -> SeenCopy | None:
    try:
        content = read_json_object(path)
        ago = (datetime.now(UTC) - datetime.fromisoformat(content["time"])).total_seconds()
        return SeenCopy(str(content[what]), ago, int(content["times"])) if ago < seconds else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
