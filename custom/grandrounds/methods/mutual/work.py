"""Where a site computes, as far as training has to know."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch


class Work(Protocol):
    """A task's device, precision and end; the context of a task at a site is one."""

    @property
    def device(self) -> torch.device:
        """Where to compute."""
        ...

    def autocast(self) -> AbstractContextManager[None]:
        """Compute in the site's precision."""
        ...

    def check_abort(self) -> None:
        """Raise if the task has been given up."""
        ...


class PlainWork:
    """Work on a device, in full precision.

    Args:
        device: where to compute.
        check_abort: raises if the work has been given up; None goes on to the end.
    """

    def __init__(self, device: torch.device | str = "cpu", check_abort: Callable[[], None] | None = None) -> None:
        self._device = torch.device(device)
        self._check_abort = check_abort

    @property
    def device(self) -> torch.device:
        """Where to compute."""
        return self._device

    def autocast(self) -> AbstractContextManager[None]:
        """Full precision."""
        return nullcontext()

    def check_abort(self) -> None:
        """Raise if the work has been given up."""
        if self._check_abort is not None:
            self._check_abort()
