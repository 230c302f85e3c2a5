"""Where a site computes, as far as training has to know."""

from __future__ import annotations

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
    """Work on a device, in full precision, that nobody gives up.

    Args:
        device: where to compute.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)

    @property
    def device(self) -> torch.device:
        """Where to compute."""
        return self._device

    def autocast(self) -> AbstractContextManager[None]:
        """Full precision."""
        return nullcontext()

    def check_abort(self) -> None:
        """Go on."""
