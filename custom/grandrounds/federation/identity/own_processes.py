"""A kit's internal ports: only processes that know a secret of this start are heard, whatever they call themselves.

FLARE 2.9 connects a participant's processes by a port without TLS, on which anyone who reaches it is taken for whom it names
itself. Here both ends prove first that they have read a file of the kit that is for its user alone, each for its name and
for this connection; frames before that are not handled, and the connection is closed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
import time
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.cellnet.identity import is_mtls_connection
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection

from grandrounds.errors import ConfigurationError
from grandrounds.files import PRIVATE, write_bytes
from grandrounds.protocol.paths import START_KEY

NONCE, PROOF = "grandrounds_nonce", "grandrounds_proof"
"""Of a handshake."""

logger = logging.getLogger(__name__)


def guard_internal_ports(kit: Path, begins: bool) -> None:
    """Let connections of this process without TLS on both sides be with processes of this start of the kit only.

    Args:
        kit: whose FLARE this process is.
        begins: whether it is the first process of this start, which draws the secret.

    Raises:
        ConfigurationError: if others can read the secret, or there is none.
    """
    if getattr(ConnManager.update_endpoint, "guards_ports", False):
        return
    key = _key(kit / START_KEY, begins)
    greet, update = SfmConnection.send_handshake, ConnManager.update_endpoint

    def prove(connection: SfmConnection, kind: int) -> None:
        if is_mtls_connection(connection.conn.connector.params):
            greet(connection, kind)
            return
        if kind == Types.READY:  # FLARE would answer before it has looked at who asks
            return
        connection.nonce = secrets.token_hex(16)
        _send(connection, kind, connection.nonce, key)

    def update_if_proven(manager: ConnManager, connection: SfmConnection, data: dict[str, Any]) -> None:
        connector = connection.conn.connector
        if is_mtls_connection(connector.params):
            update(manager, connection, data)
            return
        asked = connector.mode == Mode.PASSIVE
        nonce, given = str(data.pop(NONCE, "")), str(data.pop(PROOF, ""))
        nonce = nonce if asked else connection.nonce
        name = str(data.get(HandshakeKeys.ENDPOINT_NAME))
        wanted = _proof(key, Types.HELLO if asked else Types.READY, name, nonce)
        if not hmac.compare_digest(given.encode(), wanted.encode()):
            logger.error("%r does not know the secret of this start; its connection is closed", name[:100])
            connection.conn.close()
            return
        if asked:
            _send(connection, Types.READY, nonce, key)
        update(manager, connection, data)

    update_if_proven.guards_ports = True  # type: ignore[attr-defined]
    SfmConnection.send_handshake = prove
    ConnManager.update_endpoint = update_if_proven


def _key(path: Path, begins: bool) -> bytes:
    if begins:
        write_bytes(path, secrets.token_bytes(32), private=True)
    try:
        readable, key = path.stat().st_mode & PRIVATE, path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; this process is of no start of the kit") from error
    if readable or len(key) < 32:
        raise ConfigurationError(f"{path}: others can read it, or it is cut; start the kit again, by its own user")
    return key


def _send(connection: SfmConnection, kind: int, nonce: str, key: bytes) -> None:
    """FLARE's handshake, with the proof."""
    end = connection.local_endpoint
    stated = {HandshakeKeys.ENDPOINT_NAME: end.name, HandshakeKeys.TIMESTAMP: time.time(), **(end.properties or {})}
    connection.send_dict(kind, 1, {**stated, NONCE: nonce, PROOF: _proof(key, kind, end.name, nonce)})


def _proof(key: bytes, kind: int, name: str, nonce: str) -> str:
    return hmac.new(key, json.dumps([kind, name, nonce]).encode(), hashlib.sha256).hexdigest()
