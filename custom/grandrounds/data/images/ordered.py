"""Work on all cores with results in order, for work that lets go of Python's lock, as Pillow's decoders do."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 4
"""How many items for each core are worked on or wait to be taken."""
CORE_BLOCKS, MOST_BLOCKS = 4, 32
"""How many of Pillow's blocks of 16 MiB each core, and all together, may keep for the next image."""


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


@contextmanager
def kept_blocks() -> Iterator[None]:
    """Let Pillow use the memory of one image for the next one: to get it anew costs a quarter of decoding a large one."""
    from PIL import Image

    blocks: Any = vars(Image)["core"]  # Pillow documents it, and its types do not have it
    before = blocks.get_blocks_max()
    blocks.set_blocks_max(max(before, min(CORE_BLOCKS * len(os.sched_getaffinity(0)), MOST_BLOCKS)))
    try:
        yield
    finally:
        blocks.set_blocks_max(before)
