"""What a site's privacy gate is told of a task whose answer must not show how it went."""

from __future__ import annotations

from nvflare.apis.fl_context import FLContext

from grandrounds.errors import GrandRoundsError
from grandrounds.protocol.spending import TRAINING_GATE, TrainingGate


def note_failure(cause: str, fl_ctx: FLContext) -> None:
    """Tell the site's gate, if there is one, why a task has failed, see :class:`TrainingGate`."""
    gate: TrainingGate | None = fl_ctx.get_prop(TRAINING_GATE)
    if gate is not None:
        gate.note_failure(cause)


def cause_of(error: Exception) -> str:
    """An error in words.

    Example:
        >>> cause_of(KeyError("w")), cause_of(GrandRoundsError("skin.csv: no column label"))
        ("KeyError: 'w'", 'skin.csv: no column label')
    """
    return str(error) if isinstance(error, GrandRoundsError) else f"{type(error).__name__}: {error}"
