"""What is measured: a few local steps of a method, by the package and by plain loops that make the same update.

Loops run in turn, each in a process of its own: the machine's other work affects all alike, and memory is that of one
loop. The processes are forked after the imports. Those of the package keep freed memory, as a site's do.
"""

from __future__ import annotations

import copy
import ctypes
import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import Cost, clocked, peak_mib, resident_mib
from grandrounds.data.datasets.phantom import PHANTOM_CLASSES, draw_phantom
from grandrounds.data.site import SiteData
from grandrounds.federation.site.context import SiteContext, StateCache
from grandrounds.federation.site.worker import keep_freed_memory
from grandrounds.protocol.problem import Problem
from grandrounds.seeding import numpy_generator

Work = Callable[[], object]
HALF = "ours, bfloat16"


class Case(ABC):
    """Local steps of one method.

    Attributes:
        method: its name.
        title: network, images and what else tells two cases apart.
        loops: what is measured; those of the package begin with ``ours``.
        comparisons: pairs of loops, the package's first, that make the same update.
        steps: of each measurement.
        checked_steps: lengths of training after which updates are compared.
    """

    method: str
    title: str
    loops: tuple[str, ...]
    comparisons: tuple[tuple[str, str], ...]
    steps: int
    checked_steps: tuple[int, ...]

    @abstractmethod
    def round(self, loop: str, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Work]:
        """A fresh network, and what trains it for so many steps."""

    @abstractmethod
    def forward(self) -> Work:
        """One forward pass of a batch."""

    def prepare(self, loop: str) -> Work:
        """What one measurement of a loop is, from the start."""
        return self.round(loop, torch.float32, self.steps)[1]

    def difference(self, ours: str, other: str) -> float:
        """Norm of the difference of two loops' updates in double precision, relative to that of the update."""
        return max(self._difference(ours, other, steps) for steps in self.checked_steps)

    def _difference(self, ours: str, other: str, steps: int) -> float:
        updates = []
        for loop in (ours, other):
            network, train = self.round(loop, torch.float64, steps)
            before = flat(network)
            train()
            updates.append(flat(network) - before)
        return float((updates[0] - updates[1]).norm() / updates[1].norm())


def flat(network: nn.Module) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def in_precision(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy that takes images in single precision, as they come from the views, and computes in ``dtype``."""
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


def phantom_context(site: str, problem: Problem, images: int, labelled: int, round_number: int = 1) -> SiteContext:
    """A task at a site of drawn images, the first of which are labelled; known labels of the others are hidden."""
    generator = numpy_generator("images", site)
    labels = np.arange(images) % len(PHANTOM_CLASSES)
    drawn = [draw_phantom(PHANTOM_CLASSES[label], "device-1", problem.image_size, generator) for label in labels]
    names = tuple(map(str, range(images)))
    data = SiteData(
        images=np.stack(drawn),
        labels=labels,
        labelled=np.arange(images) < labelled,
        split=np.full(images, "train"),
        names=names,
        groups=names,
        classes=PHANTOM_CLASSES,
    )
    device = torch.device("cpu")
    cache = StateCache(Path("unused"))
    return SiteContext(site, round_number, problem, 1, data, device, "float32", lambda: False, cache)


def precision_of(loop: str) -> str:
    """The option ``executor.precision`` of a loop."""
    return "bfloat16" if loop == HALF else "float32"


@dataclass(frozen=True)
class Measured:
    """What a loop took.

    Attributes:
        first: cost of the first round, which warms up.
        costs: of the rounds that count.
        mib: greatest resident memory of the first round beyond what the process had before it.
    """

    first: Cost
    costs: list[Cost]
    mib: float


def in_turn(case: Case, repeats: int, between: Callable[[], None]) -> dict[str, Measured]:
    """Measure all loops of a case."""
    forking = multiprocessing.get_context("fork")
    channels, processes = {}, []
    for loop in case.loops:
        channels[loop], theirs = forking.Pipe()
        processes.append(forking.Process(target=_serve, args=(theirs, case, loop), daemon=True))
        processes[-1].start()
        theirs.close()
    first = {loop: _asked(channel) for loop, channel in channels.items()}
    costs: dict[str, list[Cost]] = {loop: [] for loop in channels}
    for _ in range(repeats):
        for loop, channel in channels.items():
            costs[loop].append(_asked(channel)[0])
        between()
    for channel, process in zip(channels.values(), processes, strict=True):
        channel.send(False)
        process.join()
    return {loop: Measured(first[loop][0], costs[loop], first[loop][1]) for loop in channels}


def _asked(channel: Connection) -> tuple[Cost, float]:
    channel.send(True)
    cost, mib = channel.recv()
    return cost, mib


def _serve(channel: Connection, case: Case, loop: str) -> None:
    # What the parent has freed would be used again, and not be seen.
    ctypes.CDLL(None).malloc_trim(0)
    if loop.startswith("ours"):
        keep_freed_memory()
    while channel.recv():
        work = case.prepare(loop)
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        before = resident_mib()
        cost, _ = clocked(work)
        channel.send((cost, peak_mib() - before))
