"""The site's audit trail: one line for each answer that left and for each that did not, with the reason."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grandrounds.privacy.refusals import Reason, Refused

AUDIT_NAME = "audit.jsonl"
LONGEST_TEXT = 500


def write_audit(folder: Path, outcome: str, details: Mapping[str, Any]) -> None:
    """Append a line, which is on disk when this returns.

    Args:
        folder: the site's own, where its ledger is.
        outcome: ``released``, ``refused`` or ``stripped``.
        details: plain values; long texts are cut.

    Raises:
        Refused: if it cannot be written.
    """
    line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "outcome": outcome, **details}
    shortened = {key: value[:LONGEST_TEXT] if isinstance(value, str) else value for key, value in line.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / AUDIT_NAME).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(shortened) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise Refused(Reason.AUDIT, f"{folder / AUDIT_NAME}: {error.strerror or error}") from error
