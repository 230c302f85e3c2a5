"""Memory of processes that run for many rounds: FLARE's threads after each message, garbage, what the C library keeps."""

from __future__ import annotations

import ctypes
import gc
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.utils import fobs

from grandrounds.federation.endurance import ask_again_soon
from grandrounds.protocol.paths import in_kit

# Numbers of the GNU C library's malloc.h.
TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8
KEPT_BYTES = 1 << 30


class _Alarm:
    """A call at a later time, as ``threading.Timer``."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act: Callable[[], None] | None = act

    def cancel(self) -> None:
        """The call is not made."""
        self._act = None

    def ring(self) -> None:
        """Make the call."""
        if (act := self._act) is not None:
            act()


class AlarmClock:
    """Makes calls at their times in one thread, where ``threading.Timer`` takes a thread for each."""

    def __init__(self) -> None:
        self._alarms: list[tuple[float, int, _Alarm]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def set(self, seconds: float, act: Callable[[], None]) -> _Alarm:
        """Call ``act`` after some seconds; it must not block and not raise."""
        alarm = _Alarm(act)
        with self._changed:
            heapq.heappush(self._alarms, (time.monotonic() + seconds, next(self._numbers), alarm))
            if self._thread is None or not self._thread.is_alive():  # the first time, or in a fork
                self._thread = threading.Thread(target=self._work, name="alarm-clock", daemon=True)
                self._thread.start()
            self._changed.notify()
        return alarm

    def _work(self) -> None:
        while True:
            self._next().ring()

    def _next(self) -> _Alarm:
        """Wait for the next alarm."""
        with self._changed:
            while not self._alarms or self._alarms[0][0] > time.monotonic():
                self._changed.wait(self._alarms[0][0] - time.monotonic() if self._alarms else None)
            return heapq.heappop(self._alarms)[2]


_clock = AlarmClock()
_prepared = threading.Event()
"""Whether a search for garbage leaves out most objects; to count those that are frozen takes as long as to search them."""


def share_cleanup_thread() -> None:
    """Let one thread forget received messages, in the place of one for each message.

    FLARE 2.9 remembers a message for 65 s after it was received, and starts a ``threading.Timer``, that is a thread, to
    forget it. A site that waits asks for its next task up to twenty times a second: its process and the server's for the
    job had hundreds of threads per site, with their stacks and heaps.
    """
    RxTask._schedule_remove_task = _schedule_remove_task


def _schedule_remove_task(task: RxTask, ttl: float | None = None) -> None:
    """FLARE's method of this name, with an alarm for a timer."""
    with task.stop_lock:
        if not task.cleanup_timer:
            task.cleanup_timer = _clock.set(task.completed_task_ttl if ttl is None else ttl, task._remove_task)


def prepare_job_process(fl_ctx: FLContext) -> None:
    """Prepare a process for a job's messages and for many rounds, when the job's components have been built.

    In the process of a kit, which has no other work, what there is by then is left out of later garbage collections. Most
    of it is imported modules, and a collection takes milliseconds without them.
    """
    from nvflare.app_opt.pt.decomposers import TensorDecomposer  # imports torch, which a kit's own process does without

    fobs.register(TensorDecomposer)
    share_cleanup_thread()
    ask_again_soon(fl_ctx)
    if in_kit(fl_ctx):
        gc.collect()
        gc.freeze()
        _prepared.set()


def collect_garbage() -> None:
    """Free the tensors of a round that FLARE's objects hold in cycles; not in a simulation without workers.

    Python looks for cycles by the number of objects, and a few objects with large tensors do not count as many.
    """
    if _prepared.is_set():
        gc.collect()


def keep_freed_memory() -> bool:
    """Ask the C library not to give freed memory back before there is a gigabyte of it.

    The C library gives large blocks back at once, and the system clears every page when they are asked for again: on a CPU
    that costs more than a tenth of a training step with small networks, and of frozen layers with images of 192 pixels.

    Returns:
        Whether it agreed: only the GNU library knows the question, elsewhere nothing changes.
    """
    return _set_malloc(TRIM_THRESHOLD, KEPT_BYTES) and _set_malloc(MMAP_MAX, 0)


def share_freed_memory() -> bool:
    """Ask the C library to let new threads take what others have freed, in place of an arena of memory for each thread.

    This holds for the rest of the process, and in its forks. A process that has about ten arenas gets more all the same.

    Returns:
        As :func:`keep_freed_memory`.
    """
    return _set_malloc(ARENA_MAX, 1)


def give_back_freed_memory() -> None:
    """Give freed memory back to the system, for other processes; nothing happens without the GNU C library.

    Small pieces stay where they are between others in use. What is given back must be cleared when it is asked for again, so
    this is for the end of a task and not for its steps.
    """
    _call_library("malloc_trim", 0)


@contextmanager
def shared_with_forks() -> Iterator[None]:
    """Keep the memory of this process and of processes that it forks in the block shared, as far as both leave it unchanged.

    The search for garbage writes to every object that it looks through, so it leaves out those that exist now. An
    application that has frozen its objects keeps its own choice. The threads of this process share freed memory from now on.
    """
    share_freed_memory()
    frozen = gc.get_freeze_count() > 0
    if not frozen:
        gc.collect()
        gc.freeze()
    _prepared.set()
    try:
        yield
    finally:
        _prepared.clear()
        if not frozen:
            gc.unfreeze()


def _set_malloc(setting: int, value: int) -> bool:
    return _call_library("mallopt", setting, value)


def _call_library(function: str, *values: int) -> bool:
    try:
        return bool(getattr(ctypes.CDLL(None), function)(*values))
    except (AttributeError, OSError, TypeError):
        return False
