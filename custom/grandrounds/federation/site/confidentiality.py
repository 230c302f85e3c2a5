"""What hides a site's answers from the server: the signed job states it, and no task can take it back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from grandrounds.errors import MessageError
from grandrounds.options import Options
from grandrounds.protocol.tensors import FULL, UPDATE_PRECISION, UpdatePrecision


@dataclass(frozen=True)
class ConfidentialityOptions(Options):
    """What each task must ask of a site. A site's ``privacy.json`` may demand more."""

    leaving_precision: Annotated[
        UpdatePrecision | None, "the only controller.update_precision in which updates leave; null is any"
    ] = None

    def require_task(self, values: Mapping[str, Any], site: str) -> None:
        """Refuse a training task, whose update would leave, before anything is trained.

        Args:
            values: of the task.
            site: its name.

        Raises:
            MessageError: naming what the task lacks.
        """
        precision = values.get(UPDATE_PRECISION, FULL)
        if self.leaving_precision not in (None, precision):
            raise MessageError(
                f"{site}: updates leave in {self.leaving_precision} (executor.leaving_precision), and the task asks for "
                f"{precision!r}"
            )
