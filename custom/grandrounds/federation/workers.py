"""Sites that train at the same time, in forked processes.

A worker is forked when the job's components have been built, so that it shares their memory; decoded images are in files
that all map. It works on one site's task at a time. What a site must remember is on its disk, as real sites need it, so any
worker can take any site; it takes those again that it has had, because it has their images open.
"""

from __future__ import annotations

import io
import logging
import mmap
import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from nvflare.apis.shareable import Shareable
from torch import Tensor

from grandrounds.errors import ConfigurationError
from grandrounds.federation.machine import begin_worker
from grandrounds.federation.memory import give_back_freed_memory
from grandrounds.federation.site.isolation import SECONDS_TO_STOP, become_child, described_end, kill_group

_logger = logging.getLogger(__name__)

Work = Callable[[str, str, Shareable, Mapping[str, Any]], Shareable]
NO_WORKER = "no worker is left: each was ended while it worked on a site; use fewer workers"


class Errand(NamedTuple):
    """A task for a site.

    Attributes:
        site: its name.
        request: what :data:`Work` takes after the site's name.
        wanted: whether the task is still to be done when a worker is free.
        done: is called with the answer, in a thread of its own.
        failed: is called with the reason if there is no answer.
    """

    site: str
    request: tuple[str, Shareable, Mapping[str, Any]]
    wanted: Callable[[], bool]
    done: Callable[[Shareable], None]
    failed: Callable[[str], None]


class Workers:
    """A number of forked processes; leaving the block ends them.

    Args:
        count: how many.
        work: does a task at a site, in a worker.

    Raises:
        ConfigurationError: if this system does not fork processes safely.
    """

    def __init__(self, count: int, work: Work) -> None:
        if sys.platform != "linux":
            raise ConfigurationError("workers are forked processes, which needs Linux; use one worker")
        torch.set_num_threads(1)  # a forked process cannot use threads of torch that its parent has started
        self._changed = threading.Condition()
        self._waiting: list[Errand] = []
        self._homes: dict[str, int] = {}
        self._closed = False
        context = multiprocessing.get_context("fork")
        self._workers: dict[int, tuple[Any, Connection]] = {}
        for number in range(count):
            mine, theirs = context.Pipe()
            inherited = [line for _, line in self._workers.values()]
            process = context.Process(
                target=_serve, args=(number, theirs, [*inherited, mine], work), name=f"worker-{number}"
            )
            process.start()
            theirs.close()
            self._workers[number] = process, mine
        # After the last fork, so that no worker has a copy of them.
        self._threads = [threading.Thread(target=self._attend, args=(number,), daemon=True) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._closed = True
            for process, _ in self._workers.values():
                kill_group(process.pid)
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def take(self, errand: Errand) -> None:
        """Have a task done by the next worker that is free."""
        with self._changed:
            if self._workers:
                self._waiting.append(errand)
                self._changed.notify_all()
                return
        errand.failed(NO_WORKER)

    def _attend(self, number: int) -> None:
        """Hand errands to a worker until it ends."""
        process, line = self._workers[number]
        while (errand := self._next(number)) is not None:
            try:
                send(line, process.pid, (errand.site, *errand.request))
                answer = receive(line)
            except Exception as error:  # whatever came, nothing more can be read from this worker
                if not isinstance(error, EOFError | OSError):
                    _logger.exception("the answer of %s cannot be read", errand.site)
                break
            if not self._closed:
                self._call(errand.done, answer)
            del answer
            give_back_freed_memory()
        self._end(number, errand)

    def _end(self, number: int, errand: Errand | None) -> None:
        """Take a worker from the list, and tell the reason to the site that it worked on."""
        process, line = self._workers[number]
        process.join(0 if self._closed else SECONDS_TO_STOP)
        if process.is_alive():
            kill_group(process.pid)
            process.join()
        line.close()
        if self._closed:
            return
        with self._changed:
            del self._workers[number]
            left, self._waiting = (self._waiting, []) if not self._workers else ([], self._waiting)
        if errand is not None:
            self._call(errand.failed, f"its worker has ended: {described_end(process.exitcode)}")
        for other in left:
            self._call(other.failed, NO_WORKER)

    def _call(self, function: Callable[[Any], None], value: Any) -> None:
        """Hand over an answer or a reason; the thread goes on with other sites whatever comes of it."""
        try:
            function(value)
        except Exception:
            _logger.exception("an answer could not be handed over")

    def _next(self, number: int) -> Errand | None:
        """The next errand of a worker, rather of a site that it has had; None when there will be none."""
        with self._changed:
            while not self._closed:
                if not self._waiting:
                    self._changed.wait()
                    continue
                known = (errand for errand in self._waiting if self._homes.get(errand.site, number) == number)
                chosen = next(known, self._waiting[0])
                self._waiting.remove(chosen)
                if chosen.wanted():
                    self._homes[chosen.site] = number
                    return chosen
        return None


def _serve(number: int, line: Connection, parents: list[Connection], work: Work) -> None:
    """In a worker: do errands until the other end is closed."""
    for other in parents:
        other.close()
    become_child(os.getppid())
    begin_worker(number)
    parent = multiprocessing.parent_process()
    while parent is not None:
        try:
            site, *request = receive(line)
            answer = work(site, *request)
            del request
            give_back_freed_memory()  # what the training has used, before the answer is copied to shared memory
            send(line, parent.pid or 0, answer)
            del answer
        except (EOFError, OSError):
            return


ALIGNMENT = 64


class _Pickler(pickle.Pickler):
    """Leaves the bytes of dense tensors out; they are in ``buffers``, in order.

    The callback is no method of the pickler: in a cycle the buffers would wait for Python's collector, which crashes when
    it clears memoryviews of each other.
    """

    def __init__(self, stream: io.BytesIO) -> None:
        self.buffers: list[pickle.PickleBuffer] = []
        super().__init__(stream, pickle.HIGHEST_PROTOCOL, buffer_callback=self.buffers.append)

    def reducer_override(self, value: Any) -> Any:
        """The pickler's hook."""
        if not isinstance(value, Tensor) or value.layout != torch.strided or not value.numel():
            return NotImplemented
        flat = value.detach().cpu().contiguous().view(-1).view(torch.uint8)
        return _tensor, (pickle.PickleBuffer(flat.numpy().data), value.dtype, tuple(value.shape))


def _tensor(content: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.frombuffer(content, dtype=dtype).reshape(shape)


def send(connection: Connection, receiver: int, value: Any) -> None:
    """Send a value whose tensors are copied to memory that both processes see.

    Args:
        connection: a two-way pipe.
        receiver: its process.
        value: anything that can be pickled.

    Raises:
        OSError: if the other end is closed.
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(value)
    buffers = [buffer.raw() for buffer in pickler.buffers]
    sizes = [buffer.nbytes for buffer in buffers]
    connection.send_bytes(pickle.dumps((sizes, stream.getvalue()), pickle.HIGHEST_PROTOCOL))
    if not sizes:
        return
    # Without a name it ends with the last process that has it, however that ends.
    memory = os.memfd_create("grandrounds")
    try:
        os.ftruncate(memory, _offsets(sizes)[-1])
        with mmap.mmap(memory, 0) as mapped:
            for start, buffer in zip(_offsets(sizes), buffers, strict=False):
                mapped[start : start + buffer.nbytes] = buffer
        reduction.send_handle(connection, memory, receiver)
    finally:
        os.close(memory)


def receive(connection: Connection) -> Any:
    """Wait for a value. Its tensors are this process's own: what it writes to them does not reach the sender.

    Raises:
        EOFError: if the other end is closed.
        OSError: if it is closed in the middle of a message.
    """
    sizes, content = pickle.loads(connection.recv_bytes())
    if not sizes:
        return pickle.loads(content)
    memory = reduction.recv_handle(connection)
    try:
        mapped = memoryview(mmap.mmap(memory, 0, access=mmap.ACCESS_COPY))
    finally:
        os.close(memory)
    buffers = [mapped[start : start + size] for start, size in zip(_offsets(sizes), sizes, strict=False)]
    return pickle.loads(content, buffers=buffers)


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Where each part starts, and where the last one ends; aligned, as tensors of wide types need."""
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    return offsets
