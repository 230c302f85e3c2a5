"""The log of a run in this process: a file, so that the terminal is left to the progress of the rounds."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@contextmanager
def logging_to(path: Path, level: int = logging.INFO) -> Iterator[None]:
    """Write what is logged inside the block to a file, and nowhere else; an older file is replaced.

    Args:
        path: the file; its folder is made.
        level: what is less important is left out.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    root = logging.getLogger()
    before, level_before = list(root.handlers), root.level
    handler = logging.FileHandler(path, mode="w", encoding="utf-8")
    handler.setFormatter(logging.Formatter(FORMAT))
    root.handlers[:] = [handler]
    root.setLevel(level)
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level_before)
        handler.close()
