"""What a server's records know of a site: what the site needs to account for lines that its ledger has lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from grandrounds.deployment.kit.read import Kit
from grandrounds.errors import ConfigurationError
from grandrounds.federation.ledger_pins import HEADS
from grandrounds.federation.server.record import SUMMARY
from grandrounds.files import write_json
from grandrounds.json_files import read_json_object, require_object
from grandrounds.protocol.paths import STATES


class KnownSpending(NamedTuple):
    """Of a data set: updates that the server has got, and the largest epsilon that the site has reported."""

    updates: int = 0
    epsilon: float = 0.0


class ServerKnowledge(NamedTuple):
    """What a server knows of a site.

    Attributes:
        site: the site's name.
        head: of its ledger, as the server has last got it; empty if it never got one.
        spent: by data set.
        unread: runs whose record is damaged, so that what they know is missing.
    """

    site: str
    head: str
    spent: dict[str, KnownSpending]
    unread: list[str]

    def write(self, path: Path) -> None:
        """Write it to a file for the site."""
        spent = {name: known._asdict() for name, known in self.spent.items()}
        write_json(path, {"site": self.site, "head": self.head, "datasets": spent, "unread": self.unread})


def server_knowledge(kit: Kit, site: str) -> ServerKnowledge:
    """What the runs in a server's kit, and the heads that it keeps, know of a site.

    Raises:
        ConfigurationError: if the kit is not a server's, or nothing is known of the site.
    """
    if kit.kind != "server":
        raise ConfigurationError(f"{kit.folder} is the kit of a {kit.kind}; what is known is with the server")
    states = kit.folder / STATES
    path = states / HEADS / f"{quote(site, safe='')}.json"
    head = str(read_json_object(path)["head"]) if path.is_file() else ""
    spent: dict[str, KnownSpending] = {}
    unread = []
    for folder in sorted(states.glob("*/server")):
        if not (folder / SUMMARY).is_file():
            continue
        try:
            summary = read_json_object(folder / SUMMARY)
            name = str(summary["configuration"]["problem"]["dataset"])
            updates = int(summary["contributions"].get(site, 0))
            epsilon = float(summary["privacy"].get(site, {}).get("epsilon", 0.0))
        except (ConfigurationError, KeyError, TypeError, ValueError, AttributeError):
            unread.append(folder.parent.name)
            continue
        if site in summary["contributions"] or site in summary["privacy"]:
            before = spent.get(name, KnownSpending())
            spent[name] = KnownSpending(before.updates + updates, max(before.epsilon, epsilon))
    if not head and not spent:
        raise ConfigurationError(f"{kit.folder}: no record and no head of a ledger of {site!r} is known here")
    return ServerKnowledge(site, head, spent, unread)


def read_knowledge(path: Path) -> ServerKnowledge:
    """Read the file that :meth:`ServerKnowledge.write` has written.

    Raises:
        ConfigurationError: if it has another form; the field is named.
    """
    content = require_object(read_json_object(path), str(path), ["site", "head", "datasets", "unread"])
    spent = {name: _spending(entry, f"{path}: datasets.{name}") for name, entry in dict(content["datasets"]).items()}
    return ServerKnowledge(str(content["site"]), str(content["head"]), spent, list(map(str, content["unread"])))


def _spending(content: Any, where: str) -> KnownSpending:
    entry = require_object(content, where, KnownSpending._fields)
    try:
        found = KnownSpending(int(entry["updates"]), float(entry["epsilon"]))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{where}: {error}") from error
    if not (found.updates >= 0 and found.epsilon >= 0):
        raise ConfigurationError(
            f"{where}: updates and epsilon must be 0 or more, got {found.updates}, {found.epsilon}"
        )
    return found
