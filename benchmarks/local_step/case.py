"""A case: a few local steps of a method, by the package and by plain loops that make the same update.

The loops run in turn, each in a process of its own, so that the machine's other work affects all alike and memory is that
of one loop. The processes are forked after the imports. Those of the package keep freed memory, as a site's do.
"""

from __future__ import annotations

import copy
import ctypes
import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import Cost, clocked, peak_mib, resident_mib
from grandrounds.data.datasets.phantom import PHANTOM_CLASSES, draw_phantom
from grandrounds.data.images.cache import DecodedCache
from grandrounds.data.site import SiteData
from grandrounds.federation.memory import keep_freed_memory
from grandrounds.federation.site.context import SiteContext, StateCache
from grandrounds.protocol.problem import Problem
from grandrounds.seeding import numpy_generator

Work = Callable[[], object]
HALF, AS_RELEASED = "ours, bfloat16", "ours, as released"


class Case(ABC):
    """Local steps of one method.

    Attributes:
        method: its name.
        title: network, images and what else tells two cases apart.
        loops: what is measured; those of the package begin with ``ours``.
        comparisons: pairs of loops, the package's first, that make the same update.
        steps: of each measurement.
        checked_steps: lengths of training after which updates are compared.
        batch: shape of a batch of images.
    """

    method: str
    title: str
    loops: tuple[str, ...]
    comparisons: tuple[tuple[str, str], ...]
    steps: int
    checked_steps: tuple[int, ...] = (1,)
    batch: tuple[int, ...]

    @abstractmethod
    def round(self, loop: str, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Work]:
        """A fresh network, and what trains it for so many steps."""

    def forward(self) -> Work:
        """One forward pass of a batch."""
        return partial(self.round("ours", torch.float32, 1)[0].train(), torch.zeros(self.batch))

    def prepare(self, loop: str) -> Work:
        """One measurement of a loop."""
        return self.round(loop, torch.float32, self.steps)[1]

    def difference(self, ours: str, other: str) -> float:
        """Norm of the difference of two loops' updates in double precision, relative to that of the update."""
        return max(relative(*(self._update(loop, steps) for loop in (ours, other))) for steps in self.checked_steps)

    def _update(self, loop: str, steps: int) -> Tensor:
        network, train = self.round(loop, torch.float64, steps)
        before = _flat(network)
        train()
        return _flat(network) - before


def _flat(network: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def relative(values: Tensor, expected: Tensor) -> float:
    return float((values - expected).norm() / expected.norm())


def in_precision(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy that takes images in single precision, as views are, and computes in ``dtype``."""
    network = copy.deepcopy(network).to(dtype)
    if dtype == torch.float64:
        network.register_forward_pre_hook(lambda _, arguments: (arguments[0].to(dtype),))
    return network


def in_default_layout(network: nn.Module) -> nn.Module:
    """A copy whose weights are in torch's default layout."""
    copied = copy.deepcopy(network)
    for parameter in copied.parameters():
        # Not contiguous(), which leaves kernels of one pixel, or of one channel, with the strides of the other layout.
        parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
    return copied


def context_of(site: str, problem: Problem, images: int, labelled: int, round_number: int = 1) -> SiteContext:
    """A task at a site of phantoms, the first of which are labelled; known labels of the others are hidden."""
    generator = numpy_generator("images", site)
    labels = np.arange(images) % len(PHANTOM_CLASSES)
    names = tuple(map(str, range(images)))
    data = SiteData(
        cache=DecodedCache(
            np.stack([draw_phantom(PHANTOM_CLASSES[n], "device-1", problem.image_size, generator) for n in labels])
        ),
        labels=labels,
        labelled=np.arange(images) < labelled,
        split=np.full(images, "train"),
        names=names,
        groups=names,
        classes=PHANTOM_CLASSES,
    )
    device, cache = torch.device("cpu"), StateCache(Path("unused"))
    return SiteContext(site, round_number, problem, 1, data, device, "float32", lambda: False, cache)


def precision_of(loop: str) -> str:
    return "bfloat16" if loop == HALF else "float32"


class Measured(NamedTuple):
    """Costs of a loop: of the first round, which warms up, of the others, and the memory that the first has added."""

    first: Cost
    costs: list[Cost]
    mib: float


def in_turn(case: Case, repeats: int, between: Callable[[], None]) -> dict[str, Measured]:
    forking = multiprocessing.get_context("fork")
    channels: dict[str, Connection] = {}
    for loop in case.loops:
        channels[loop], theirs = forking.Pipe()
        forking.Process(target=_serve, args=(theirs, case, loop), daemon=True).start()
        theirs.close()
    taken: dict[str, list[tuple[Cost, float]]] = {loop: [] for loop in channels}
    for turn in range(repeats + 1):
        for loop, channel in channels.items():
            channel.send(True)
            taken[loop].append(channel.recv())
        if turn:
            between()
    for channel in channels.values():
        channel.send(False)
    return {loop: Measured(first, [cost for cost, _ in others], mib) for loop, ((first, mib), *others) in taken.items()}


def _serve(channel: Connection, case: Case, loop: str) -> None:
    # Memory that the parent has freed would be used again and not be seen.
    ctypes.CDLL(None).malloc_trim(0)
    if loop.startswith("ours"):
        keep_freed_memory()
    while channel.recv():
        work = case.prepare(loop)
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = resident_mib()
        cost, _ = clocked(work)
        channel.send((cost, peak_mib() - before))
