"""How many answers with exact scores a job has asked for: each is a question about few patients, and none costs epsilon."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from grandrounds.files import write_json

SCORED_FOLDER = "scored"
"""Folder with a count for each job, beside the ledger."""


def count_scored(folder: Path, job: str) -> int:
    """Count one more task or answer of a job with scores of validation or test images; it is on disk when this returns."""
    path = folder / SCORED_FOLDER / f"{hashlib.sha256(job.encode()).hexdigest()[:32]}.json"
    count = 1 + (json.loads(path.read_text(encoding="utf-8"))["answers"] if path.is_file() else 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"job": job, "answers": count})
    return count
