"""What frozen layers make of images, kept over rows: divisions of one data set share their images.

Features that a row finds count with the CPU seconds that they took when they were computed.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.processes import cpu_seconds
from grandrounds.federation.site.features import Features, Images

PATIENCE = 600
"""Seconds that a row waits for another one which is writing."""


class KeptFeatures:
    """Features by the pixels of an image and the digest of the frozen layers, in a file that several rows use.

    Args:
        path: of the file.

    Attributes:
        saved: CPU seconds of the features that were found.
    """

    def __init__(self, path: Path) -> None:
        self.saved = 0.0
        self._store = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        self._store.execute("CREATE TABLE IF NOT EXISTS kept (name BLOB PRIMARY KEY, features BLOB, seconds REAL)")
        self._own: set[bytes] = set()

    def around(self, compute: Callable[[Features, Images], Tensor]) -> Callable[[Features, Images], Tensor]:
        """A form of ``compute`` that takes what is kept and keeps the rest."""

        def made(features: Features, images: Images) -> Tensor:
            pixels = np.asarray(images)
            names = [hashlib.sha256(features._front.digest.encode() + one.tobytes()).digest() for one in pixels]
            found = {name: kept for name in set(names) if (kept := self._found(name)) is not None}
            missing = [names.index(name) for name in dict.fromkeys(names) if name not in found]
            if missing:
                before = cpu_seconds()
                new = compute(features, pixels[missing])
                each = (cpu_seconds() - before) / len(missing)
                for position, one in zip(missing, new, strict=True):
                    found[names[position]] = one.flatten()
                    self._own.add(names[position])
                    row = (names[position], one.numpy().tobytes(), each)
                    self._store.execute("INSERT OR IGNORE INTO kept VALUES (?, ?, ?)", row)
            return torch.stack([found[name] for name in names])[:, :, None, None]

        return made

    def _found(self, name: bytes) -> Tensor | None:
        row = self._store.execute("SELECT features, seconds FROM kept WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        if name not in self._own:
            self._own.add(name)
            self.saved += row[1]
        return torch.from_numpy(np.frombuffer(row[0], np.float32).copy())
