"""What the server has last got of the sites' ledgers: a site whose ledger lacks its head answers nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from nvflare.apis.fl_context import FLContext

from grandrounds.files import write_json
from grandrounds.json_files import read_json_object
from grandrounds.protocol.messages import LEDGER_HEAD, Payload, Result
from grandrounds.protocol.paths import STATES

HEADS = "ledger_heads"
"""Folder with a file for each site, in a server's folder of states."""


class LedgerPins:
    """The head of each site, and how often its data sets have changed, in a file in a folder that all runs share.

    Only the site can say whether its ledger has the line of a head. The server returns to each site its own, so that a
    ledger that was set back, by whatever copy, is found out by the next task. A site that has declared its
    loss has a line that names the head (:mod:`~grandrounds.privacy.ledger.lines`).
    """

    def __init__(self, fl_ctx: FLContext) -> None:
        # Of the workspace, as the sites' ledgers are: $GRANDROUNDS_STATE does not move them.
        self._folder = Path(str(fl_ctx.get_engine().get_workspace().get_root_dir())) / STATES / HEADS

    def pinned(self, site: str, payload: Payload) -> Payload:
        """A task with the head of the site's ledger, if one is known.

        Raises:
            ConfigurationError: if the site's file is damaged.
        """
        path = self._path(site)
        if not path.is_file():
            return payload
        return replace(payload, values={**payload.values, LEDGER_HEAD: read_json_object(path)["head"]})

    def note(self, site: str, dataset: str, answer: Result) -> bool:
        """Keep what an answer says of its site's ledger; it is on disk when this returns. Without a ledger nothing is kept.

        Returns:
            Whether the images of the data set have changed under the same manifest since the last answer, of any run.

        Raises:
            ConfigurationError: if the site's file is damaged.
        """
        if not answer.ledger_head:
            return False
        path = self._path(site)
        changes = read_json_object(path).get("changes", {}) if path.is_file() else {}
        known = changes.get(dataset, answer.data_changes)
        noted = {"site": site, "head": answer.ledger_head, "changes": {**changes, dataset: answer.data_changes}}
        write_json(path, noted)
        return bool(answer.data_changes > known)

    def _path(self, site: str) -> Path:
        return self._folder / f"{quote(site, safe='')}.json"
