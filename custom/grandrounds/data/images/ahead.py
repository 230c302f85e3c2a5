"""Views of coming steps, drawn by threads while the network trains.

A view depends on its key, step and position alone, so that it is the same whenever it is drawn. Strong views are drawn
before it is known which pseudo-labels will be accepted; what has not been begun when it is needed is drawn there, as without
threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grandrounds.data.images.views import View, draw_views

DEPTH = 2
"""Steps that are drawn in advance."""


@dataclass
class _Plan:
    images: NDArray[np.uint8]
    batches: Sequence[NDArray[np.integer]]
    options: dict[str, Any]
    begun: int = 0

    def has(self, images: NDArray[np.uint8], rows: NDArray[np.integer], step: int, options: dict[str, Any]) -> bool:
        """Whether this batch of these images was planned for a step."""
        known = images is self.images and step < len(self.batches) and options == self.options
        return known and np.array_equal(rows, self.batches[step])


class ViewsAhead:
    """Draws the views that were planned.

    Args:
        threads: how many draw; 0 draws nothing in advance.
        pinned: whether views are drawn into pinned memory, from which a GPU copies while it computes.
    """

    def __init__(self, threads: int, pinned: bool = False) -> None:
        self._count, self._pinned = threads, pinned
        self._threads: ThreadPoolExecutor | None = None
        self._plans: dict[tuple[View, int], _Plan] = {}
        self._drawn: dict[tuple[View, int, int], Future[Tensor]] = {}

    def plan(
        self,
        images: NDArray[np.uint8],
        batches: Sequence[NDArray[np.integer]],
        view: View,
        key: int,
        **options: Any,
    ) -> None:
        """Draw these views of the batches of coming steps, from step 0 on.

        Arguments are as of :func:`~grandrounds.data.images.views.draw_views`, with all batches in place of one.
        """
        if not self._count or view == "none":
            return
        self._plans[view, key] = _Plan(images, batches, options)
        self._begin(0)

    def take(
        self,
        images: NDArray[np.uint8],
        rows: NDArray[np.integer],
        view: View,
        key: int,
        step: int,
        positions: NDArray[np.integer] | None = None,
        **options: Any,
    ) -> Tensor | None:
        """What was drawn for a batch, uint8; None if it was not planned exactly so, or has not been begun.

        Arguments are as of :func:`~grandrounds.data.images.views.draw_views`.
        """
        plan = self._plans.get((view, key))
        if plan is None or not plan.has(images, rows, step, options):
            return None
        found = self._drawn.pop((view, key, step), None)
        self._begin(step + 1)
        if found is None or found.cancel():
            return None
        views = found.result()
        return views if positions is None else views[torch.from_numpy(positions)]

    def close(self) -> None:
        """Draw nothing more."""
        for drawn in self._drawn.values():
            drawn.cancel()
        self._plans.clear()
        self._drawn.clear()
        if self._threads:
            self._threads.shutdown()
            self._threads = None

    def _begin(self, step: int) -> None:
        """Have all plans drawn up to some steps after this one; what was drawn for earlier ones is not needed any more."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._count, "views")
        for view, key, number in list(self._drawn):
            if number < step - 1:
                self._drawn.pop((view, key, number)).cancel()
        for number in range(step, step + DEPTH):
            for (view, key), plan in self._plans.items():
                if plan.begun <= number < len(plan.batches):
                    plan.begun = number + 1
                    self._drawn[view, key, number] = self._threads.submit(self._draw, plan, view, key, number)

    def _draw(self, plan: _Plan, view: View, key: int, step: int) -> Tensor:
        views = torch.from_numpy(draw_views(plan.images, plan.batches[step], view, key, step, **plan.options))
        return views.pin_memory() if self._pinned else views
