"""Views of coming steps, drawn by other processes while the network trains.

A view depends on its key, step and position alone, so that it is the same whenever it is drawn. Strong views are drawn
before it is known which pseudo-labels will be accepted. Threads would hide little, because most of the drawing holds
Python's lock.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grandrounds.data.images import drawing
from grandrounds.data.images.drawing import DEPTH, Order, Plan
from grandrounds.plugins import PLUGINS_VARIABLE, plugin_modules

# Not -m, under which the classes of the messages would be others.
PROGRAM = f"from {drawing.__name__} import main; main()"


class _Process:
    """A process that draws; it outlives the task, and serves the next one."""

    def __init__(self) -> None:
        self._line, theirs = multiprocessing.Pipe()
        self._memory = os.memfd_create("views")
        self._mapped: NDArray[np.uint8] = np.zeros((1, 1), np.uint8)
        self._order, self._step, self._drawn, self._ready = Order(), 0, 0, False
        self._numbers: dict[tuple[int, Plan], int] = {}
        arguments = [sys.executable, "-c", PROGRAM, str(theirs.fileno()), str(self._memory)]
        # A view that is registered in the running script is drawn there: this process ends without it.
        plugins = ",".join(module for module in plugin_modules() if module != "__main__")
        surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), PLUGINS_VARIABLE: plugins}
        files = (theirs.fileno(), self._memory)
        # In a process group of its own, so that Ctrl-C is not for it; it ends with this process's end of the socket.
        self._process = subprocess.Popen(
            arguments, pass_fds=files, stdin=subprocess.DEVNULL, env=surroundings, process_group=0
        )
        theirs.close()

    def begin(self, parts: Sequence[tuple[int, Plan]]) -> None:
        """Draw the views of these steps and plans, and nothing that was asked before."""
        slots = (DEPTH + 1) * len({plan for _, plan in parts}) + 1
        largest = max((len(plan.batches[step]) * int(np.prod(plan.file[2][1:])) for step, plan in parts), default=1)
        self._order = Order(self._order.number + 1, parts, slots, largest)
        self._numbers = {part: number for number, part in enumerate(parts)}
        self._step = self._drawn = 0
        os.ftruncate(self._memory, max(slots * largest, os.fstat(self._memory).st_size))
        self._mapped = np.frombuffer(mmap.mmap(self._memory, slots * largest), np.uint8).reshape(slots, largest)
        self._tell(self._order)

    def reach(self, step: int) -> None:
        """Let it draw the steps after this one."""
        if step > self._step:
            self._step = step
            self._tell(step)

    def views(self, step: int, plan: Plan) -> NDArray[np.uint8] | None:
        """What was drawn for a step, until a later one is reached; None if that is another's work or cannot come."""
        number = self._numbers.get((step, plan))
        if number is None or step < self._step:
            return None
        with suppress(EOFError, OSError):
            while self._drawn <= number and (self._ready or self._line.poll()):
                self._hear()
        if self._drawn <= number:
            return None
        shape = (len(plan.batches[step]), *plan.file[2][1:])
        return self._mapped[number % len(self._mapped), : int(np.prod(shape))].reshape(shape)

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def _tell(self, message: Order | int) -> None:
        with suppress(EOFError, OSError):
            while self._line.poll():  # or its answers would fill the connection
                self._hear()
            self._line.send(message)

    def _hear(self) -> None:
        number, drawn = self._line.recv()
        self._ready = True
        if number == self._order.number:
            self._drawn = drawn


_idle: dict[int, list[_Process]] = {}
"""Processes without work, by the process that has started them: a forked one has none."""


class ViewsAhead:
    """Draws the views that were planned, from the first time on that one of them is needed.

    Args:
        processes: how many draw; 0 draws nothing in advance.
    """

    def __init__(self, processes: int) -> None:
        self._count = processes
        self._planned: dict[tuple[str, int], tuple[NDArray[np.uint8], Plan]] = {}
        self._processes: list[_Process] = []
        self._begun = False

    def plan(
        self, images: NDArray[np.uint8], batches: Sequence[NDArray[np.integer]], view: str, key: int, **options: Any
    ) -> None:
        """Draw these views of the batches of coming steps, from step 0 on, if the images are a memory map.

        What was planned and begun before is finished. Arguments are as of
        :func:`~grandrounds.data.images.augmentation.draw_views`, with all batches in place of one.
        """
        if not self._count or view == "none" or not isinstance(images, np.memmap):
            return
        if not isinstance(images.base, mmap.mmap):  # a part of a map does not know where it begins
            return
        if self._begun:
            self._planned.clear()
            self._begun = False
        file = (str(images.filename), images.offset, images.shape)
        self._planned[view, key] = images, Plan(file, batches, view, key, options)

    def take(
        self,
        images: NDArray[np.uint8],
        rows: NDArray[np.integer],
        view: str,
        key: int,
        step: int,
        positions: NDArray[np.integer] | None = None,
        **options: Any,
    ) -> Tensor | None:
        """What was drawn for a batch, uint8, to be used before the next step; None if it was not planned exactly so.

        Arguments are as of :func:`~grandrounds.data.images.augmentation.draw_views`.
        """
        known, plan = self._planned.get((view, key), (None, None))
        if plan is None or images is not known or options != plan.options or step >= len(plan.batches):
            return None
        if not np.array_equal(rows, plan.batches[step]):
            return None
        self._begin()
        for process in self._processes:
            process.reach(step)
        drawn = next((views for process in self._processes if (views := process.views(step, plan)) is not None), None)
        if drawn is None:
            return None
        return torch.from_numpy(drawn if positions is None else drawn[positions])

    def close(self) -> None:
        """Draw nothing more."""
        for process in self._processes:
            process.begin([])
        _idle.setdefault(os.getpid(), []).extend(process for process in self._processes if process.alive())
        self._processes.clear()
        self._planned.clear()
        self._begun = False

    def _begin(self) -> None:
        """Have all plans drawn."""
        if self._begun:
            return
        idle = _idle.setdefault(os.getpid(), [])
        while len(self._processes) < self._count:
            self._processes.append(idle.pop() if idle else _Process())
        plans = [plan for _, plan in self._planned.values()]
        steps = range(max(len(plan.batches) for plan in plans))
        parts = [(step, plan) for step in steps for plan in plans if step < len(plan.batches)]
        for number, process in enumerate(self._processes):
            process.begin(parts[number :: self._count])
        self._begun = True
