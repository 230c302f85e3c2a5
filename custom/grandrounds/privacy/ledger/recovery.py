"""A ledger that has lost lines: how that is found, and the way back.

The head of a site's ledger as the server has last returned it is in a file of the kit outside the ledger's folder. A ledger
that was set back lacks it. The gate finds that out when a task comes; from this file the site's administrator sees it
before. The way back is what is left of the ledger, and one line for the worst that was lost.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from grandrounds.errors import ConfigurationError
from grandrounds.files import write_json
from grandrounds.json_files import read_json_object
from grandrounds.privacy.accounting import spent_epsilon
from grandrounds.privacy.ledger.chain import ChainedFile
from grandrounds.privacy.ledger.ledger import LEDGER_NAME, LedgerContent
from grandrounds.privacy.ledger.lines import Booking, Key, Loss

NOTED_HEAD = "ledger_head.json"
"""In a kit's folder of states."""


def note_head(states: Path, head: str) -> None:
    """Keep a head that came with a task; without one nothing is written, and what is noted stays.

    Raises:
        OSError: if the disk does not take it.
    """
    if head and noted_head(states) != head:
        write_json(states / NOTED_HEAD, {"head": head})


def noted_head(states: Path) -> str:
    """The head that was noted last; empty if none was, or the file cannot be read."""
    try:
        return str(read_json_object(states / NOTED_HEAD)["head"])
    except (OSError, ValueError, KeyError):
        return ""


Worst = Callable[[LedgerContent], Sequence[Booking]]
"""The worst case of each data set, from what is left."""


def declare_loss(
    folder: Path, site: str, heads: Collection[str], worst: Worst, reason: str, signer: tuple[str, str, Key]
) -> Loss:
    """Go on with the undamaged lines of a ledger, after a line that books the worst case of those that are missing.

    File and head are copied before, into a folder ``lost-...`` beside them.

    Args:
        folder: of the ledger.
        site: whose it is.
        heads: that the server or the site knew.
        worst: the worst case of each data set; their time and ``epsilon`` are filled in here.
        reason: what has happened, a sentence.
        signer: the name, certificate in PEM form and private key of the person who answers for it.

    Raises:
        ConfigurationError: if nothing is missing, the reason is, or the ledger is another site's.
        DataError: if no line is left, or the file cannot be written.
    """
    if not reason.strip():
        raise ConfigurationError("the reason of the loss is missing")
    file = ChainedFile(folder / LEDGER_NAME)
    if not file.path.is_file():
        raise ConfigurationError(
            f"{file.path} is gone: move {folder} away, run grandrounds ledger create {folder} --site {site}, and declare "
            "the loss then"
        )
    name, certificate, key = signer
    with file.recovering() as extension:
        content = LedgerContent(extension.chain)
        if content.opening.site != site:
            raise ConfigurationError(f"{file.path} is the ledger of {content.opening.site!r}, not of {site!r}")
        lost = sorted({*heads, *file.last_head()} - extension.chain.known_heads)
        if not lost:
            raise ConfigurationError(f"{file.path} has all lines that are known; nothing is lost")
        now = datetime.now(UTC)
        time = now.isoformat(timespec="seconds")
        totals = [replace(_with_total(content, booking), time=time) for booking in worst(content)]
        loss = Loss(time, site, tuple(lost), tuple(totals), reason, name, certificate)
        _keep(file, folder / f"lost-{now:%Y%m%dT%H%M%SZ}")
        extension.append(loss.signed(key).to_json())
    return loss


def _with_total(content: LedgerContent, booking: Booking) -> Booking:
    """The booking with the epsilon of all that its data set has spent with it."""
    spendings = [*content.spendings(booking.dataset.name), booking.spending]
    return replace(booking, epsilon=spent_epsilon(spendings, booking.delta, booking.spending.unit))


def _keep(file: ChainedFile, aside: Path) -> None:
    aside.mkdir()
    for path in (file.path, file.head_path):
        if path.is_file():
            shutil.copy2(path, aside / path.name)
