"""Questions of a task to the site's privacy gate, and causes of failures, which an answer must not show."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext

from grandrounds.errors import Fault, GrandRoundsError
from grandrounds.protocol.messages import ReleaseKind
from grandrounds.protocol.spending import TRAINING_GATE, Spending, TrainingGate

LEAST_ROOM = 64 << 20
"""Bytes that must be free before a task reads images."""


class NoGate:
    """The :class:`TrainingGate` of a site without one: everything may leave as it is."""

    hides_failures = False
    counts_updates = False
    is_answered = False

    def leaves(self, reply: MutableMapping[str, Any]) -> None:
        """The answer is not kept."""

    def admit_training(self, training: Spending | None) -> None:
        """Every training may begin."""

    def require_releases(self, releases: Mapping[str, ReleaseKind]) -> None:
        """All may leave."""

    def begin_reading(self) -> None:
        """Nobody needs to know."""

    def note_failure(self, cause: str, fault: Fault) -> None:
        """The reply names the cause."""

    def note_missing_walls(self, missing: str) -> None:
        """The log has it."""

    def row_noise(self, release: str) -> tuple[float, float] | None:
        """None: rows get no noise."""
        return None

    def release_minimum(self, kind: str, release: str) -> int | None:
        """A single case."""
        return 1


def gate_of(fl_ctx: FLContext) -> TrainingGate:
    """The site's gate in a task's context, or what stands for it where there is none."""
    gate: TrainingGate | None = fl_ctx.get_prop(TRAINING_GATE)
    return NoGate() if gate is None else gate


def note_failure(error: Exception, gate: TrainingGate) -> None:
    """Tell the site's gate why a task has failed."""
    gate.note_failure(cause_of(error), Fault.of(error))


def require_room(folder: Path) -> None:
    """Check, before any image is read, that decoded images and states can be written.

    Args:
        folder: on the disk that they are written to; it may not exist yet.

    Raises:
        OSError: if less than ``LEAST_ROOM`` is free.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if shutil.disk_usage(there).free < LEAST_ROOM:
        raise OSError(errno.ENOSPC, f"less than {LEAST_ROOM >> 20} MiB free", str(there))


def cause_of(error: Exception) -> str:
    """An error in words.

    Example:
        >>> cause_of(KeyError("w")), cause_of(GrandRoundsError("skin.csv: no column label"))
        ("KeyError: 'w'", 'skin.csv: no column label')
    """
    return str(error) if isinstance(error, GrandRoundsError) else f"{type(error).__name__}: {error}"
