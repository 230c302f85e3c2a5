"""A process that draws views for another.

It imports NumPy and PIL, not torch, and so starts in a tenth of the time. It is no fork: the other process would copy every
page of its memory that it writes to next, which takes longer than drawing.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.images.augmentation import draw_views

DEPTH = 2
"""Steps that are drawn in advance."""


@dataclass(eq=False)
class Plan:
    """Views of the batches of all steps; ``file`` has the images, from a byte on, in a shape."""

    file: tuple[str, int, tuple[int, ...]]
    batches: Sequence[NDArray[np.integer]]
    view: str
    key: int
    options: dict[str, Any]

    def draw(self, step: int) -> NDArray[np.uint8]:
        """Draw the views of a step."""
        path, start, shape = self.file
        images = np.memmap(path, np.uint8, "r", start, shape)
        return draw_views(images, self.batches[step], self.view, self.key, step, **self.options)


@dataclass
class Order:
    """What to draw: step and plan, in order; the views of part i are in slot i modulo the number of slots."""

    number: int = 0
    parts: Sequence[tuple[int, Plan]] = field(default_factory=tuple)
    slots: int = 1
    slot_bytes: int = 1


def main() -> None:
    """Draw until the connection ends; the arguments are inherited descriptors, of the connection and of the memory."""
    with suppress(EOFError, OSError):
        _serve(Connection(int(sys.argv[1])), int(sys.argv[2]))


def _serve(line: Connection, memory: int) -> None:
    order, position, reached, mapped = Order(), 0, 0, np.zeros((1, 1), np.uint8)
    line.send((order.number, position))  # it has started
    while True:
        if position == len(order.parts) or order.parts[position][0] > reached + DEPTH or line.poll():
            message = line.recv()
            if isinstance(message, Order):
                order, position, reached = message, 0, 0
                mapped = np.frombuffer(mmap.mmap(memory, order.slots * order.slot_bytes), np.uint8)
                mapped = mapped.reshape(order.slots, order.slot_bytes)
            else:
                reached = message
            continue
        step, plan = order.parts[position]
        if step >= reached:
            views = plan.draw(step)
            mapped[position % order.slots, : views.size] = views.reshape(-1)
        position += 1
        line.send((order.number, position))
