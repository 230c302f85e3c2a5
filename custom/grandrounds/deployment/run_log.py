"""The log of a run in this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@contextmanager
def logging_to(path: Path, level: int = logging.INFO) -> Iterator[None]:
    """Write the log of the block, from ``level`` on, to a file and nowhere else; an existing file is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    root = logging.getLogger()
    before, level_before = list(root.handlers), root.level
    handler = logging.FileHandler(path, mode="w", encoding="utf-8")
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    root.handlers[:] = [handler]
    root.setLevel(level)
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level_before)
        handler.close()
