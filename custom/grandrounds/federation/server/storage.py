"""Room on the server's disk: it is checked before a round, and a reserve is kept for the record of how a run ended."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from grandrounds.errors import GrandRoundsError
from grandrounds.federation.server.subscribers import RoundSubscriber
from grandrounds.protocol.messages import State

RESERVE = "reserve"
RESERVE_BYTES = 4 * 1024**2
MARGIN_BYTES = 16 * 1024**2
"""For the record, logs and results, beside a checkpoint."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
MEBIBYTE = 1024**2


class DiskReserve(RoundSubscriber):
    """A file whose space is given back when a run ends, so that its record can be closed on a full disk.

    Args:
        folder: of the run's record.
        checkpoint: the expected size of the next checkpoint in bytes.
    """

    def __init__(self, folder: Path, checkpoint: Callable[[], int]) -> None:
        self._folder, self._path = folder, folder / RESERVE
        self._checkpoint = checkpoint

    def run_started(self) -> None:
        """Occupy the space.

        Raises:
            GrandRoundsError: if there is too little.
        """
        try:
            with self._path.open("wb") as stream:
                os.posix_fallocate(stream.fileno(), 0, RESERVE_BYTES)
        except OSError as error:
            self.run_ended()
            raise GrandRoundsError(f"{self._folder}: {error.strerror or error}; free some space") from error

    def round_started(self, number: int) -> None:
        """Check that the next checkpoint fits on the disk, before a round is trained for it.

        Raises:
            GrandRoundsError: if it does not fit.
        """
        free, needed = shutil.disk_usage(self._folder).free, self._checkpoint() + MARGIN_BYTES
        if free < needed:
            raise GrandRoundsError(
                f"the server's disk has {free / MEBIBYTE:.0f} MiB free at {self._folder}, the next checkpoint needs "
                f"{needed / MEBIBYTE:.0f} MiB: free some space and submit the job again; it goes on after round "
                f"{number - 1}"
            )

    def run_ended(self) -> None:
        """Give the space back."""
        self._path.unlink(missing_ok=True)


def state_size(model: State | None) -> int:
    """Bytes of a first checkpoint with this model, which it holds twice: as the current and as the selected one."""
    return 2 * sum(value.numel() * value.element_size() for value in (model or {}).values())


def described(error: Exception, folder: Path) -> str:
    """The reason of a failure in one line; torch does not say that a disk is full."""
    full = isinstance(error, OSError) and error.errno in NO_ROOM
    if full or (isinstance(error, RuntimeError) and shutil.disk_usage(folder).free < MARGIN_BYTES):
        return f"no room on the server's disk at {folder} ({error}): free some space and submit the job again"
    return f"{type(error).__name__}: {error}"
