"""What a site's privacy gate is told of a task whose answer must not show how it went."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from grandrounds.errors import Fault, GrandRoundsError
from grandrounds.protocol.spending import TRAINING_GATE, TrainingGate

LEAST_ROOM = 64 << 20
"""Bytes that must be free before a task reads images."""


def note_failure(error: Exception, fl_ctx: FLContext) -> None:
    """Tell the site's gate, if there is one, why a task has failed, see :class:`TrainingGate`."""
    gate: TrainingGate | None = fl_ctx.get_prop(TRAINING_GATE)
    if gate is not None:
        gate.note_failure(cause_of(error), Fault.of(error))


def is_answered(fl_ctx: FLContext) -> bool:
    """Whether the site's gate, if there is one, has answered the same task before, see :class:`TrainingGate`."""
    gate: TrainingGate | None = fl_ctx.get_prop(TRAINING_GATE)
    return gate is not None and gate.is_answered


def note_leaving(reply: Shareable, fl_ctx: FLContext) -> None:
    """Let the site's gate, if there is one, keep an answer as it leaves, see :class:`TrainingGate`."""
    gate: TrainingGate | None = fl_ctx.get_prop(TRAINING_GATE)
    if gate is not None:
        gate.leaves(reply)


def begin_reading(fl_ctx: FLContext) -> None:
    """Tell the site's gate, if there is one, that the task reads images from now on."""
    gate: TrainingGate | None = fl_ctx.get_prop(TRAINING_GATE)
    if gate is not None:
        gate.begin_reading()


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
