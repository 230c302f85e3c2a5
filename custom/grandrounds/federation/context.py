"""What an executor knows while it works on one task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from grandrounds.data.site import SiteData
from grandrounds.federation.problem import Problem
from grandrounds.seeding import derive_seed, numpy_generator


class TaskAborted(Exception):
    """The server has no more use for this task."""


@dataclass(frozen=True)
class SiteContext:
    """One task at one site.

    Attributes:
        site: the site's name.
        round_number: counts from 1.
        problem: what is learnt.
        seed: the run's seed.
        data: the site's images and labels.
        device: where to compute.
        precision: ``float32`` or ``bfloat16`` (autocast).
        aborted: tells whether the task has been given up.
    """

    site: str
    round_number: int
    problem: Problem
    seed: int
    data: SiteData
    device: torch.device
    precision: str
    aborted: Callable[[], bool]

    def generator(self, purpose: str) -> np.random.Generator:
        """The stream for this purpose in this round at this site."""
        return numpy_generator(self.seed, "site", self.site, self.round_number, purpose)

    def key(self, purpose: str) -> int:
        """The key of a counter-based stream for this purpose in this round at this site."""
        return derive_seed(self.seed, "site", self.site, self.round_number, purpose)

    def check_abort(self) -> None:
        """Stop when the task has been given up.

        Raises:
            TaskAborted: then.
        """
        if self.aborted():
            raise TaskAborted

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Compute in the configured precision."""
        if self.precision == "float32":
            yield
            return
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            yield

    @contextmanager
    def torch_seeded(self, purpose: str) -> Iterator[None]:
        """Seed torch's own generator (dropout) for a block and leave it as it was afterwards."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.key(purpose))
            yield
