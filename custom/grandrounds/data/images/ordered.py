"""Work on all cores with results in order, for work that lets go of Python's lock, as Pillow's decoders do."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 4
"""How many items for each core are worked on or wait to be taken."""


def in_order(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """The results of work on each item, in the order of the items; an error of one is raised in its place.

    Example:
        >>> list(in_order(abs, [3, -2, -1]))
        [3, 2, 1]
    """
    cores = len(os.sched_getaffinity(0))
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(cores)
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= AHEAD * cores:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
