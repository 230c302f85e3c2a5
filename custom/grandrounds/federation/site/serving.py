"""In a training child: the job's executor, a substitute of FLARE's engine, and a gate that asks the parent's."""

from __future__ import annotations

import _multiprocessing  # type: ignore[import-not-found]
import ctypes
import gc
import io
import logging
import mmap
import multiprocessing.heap
import multiprocessing.synchronize
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial, partialmethod
from importlib import import_module
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace

from grandrounds.federation.memory import keep_freed_memory
from grandrounds.federation.site import child_messages as messages
from grandrounds.federation.site.frames import Frames
from grandrounds.federation.site.model import forget_networks
from grandrounds.logs.lines import enter_round
from grandrounds.protocol.messages import Payload
from grandrounds.protocol.spending import TRAINING_GATE

if TYPE_CHECKING:
    from grandrounds.federation.site.executor import SiteExecutor
    from grandrounds.federation.site.store import SiteStore


@dataclass(frozen=True)
class SiteIdentity:
    """Who and where a site is: all that a task needs of FLARE.

    Attributes:
        site: the site's name.
        job: FLARE's id.
        root: of the site's FLARE workspace.
    """

    site: str
    job: str
    root: str

    @classmethod
    def of(cls, fl_ctx: FLContext) -> SiteIdentity:
        """Read it from FLARE's context of the site."""
        root = str(fl_ctx.get_engine().get_workspace().get_root_dir())
        return cls(fl_ctx.get_identity_name(), fl_ctx.get_job_id(), root)

    def context(self, gate: GateOfParent | None) -> FLContext:
        """A context for the child, with what stands for the site's gate."""
        context = FLContextManager(_Engine(self), self.site, self.job).new_context()
        context.set_prop(TRAINING_GATE, gate, private=True, sticky=False)
        return context


class _Engine:
    """FLARE's engine as far as a task needs it."""

    def __init__(self, identity: SiteIdentity) -> None:
        self._workspace = Workspace(identity.root, identity.site)

    def get_workspace(self) -> Workspace:
        """The site's own, as FLARE's engine gives it."""
        return self._workspace

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """No component listens in the child."""


@dataclass(frozen=True)
class GateOfParent:
    """The :class:`~grandrounds.protocol.spending.TrainingGate` of a child, whose parent alone has the site's.

    Attributes:
        frames: to the parent.
        hides_failures: as the gate says.
        counts_updates: as the gate says.
    """

    frames: Frames
    hides_failures: bool
    counts_updates: bool

    def _ask(self, method: str, *arguments: Any) -> Any:
        """What the privacy gate answers, or raises."""
        self.frames.send(messages.question_message(method, arguments))
        header, _ = self.frames.receive()
        if header["kind"] != messages.ANSWER:
            raise messages.read_error(header)
        return header["value"]

    admit_training = partialmethod(_ask, "admit_training")
    begin_reading = partialmethod(_ask, "begin_reading")
    note_failure = partialmethod(_ask, "note_failure")
    row_noise = partialmethod(_ask, "row_noise")
    release_minimum = partialmethod(_ask, "release_minimum")


class _ToParent(logging.Handler):
    """Sends log records to the parent, which has the site's log."""

    def __init__(self, frames: Frames) -> None:
        super().__init__()
        self._frames = frames

    def emit(self, record: logging.LogRecord) -> None:
        """Send the words of a record."""
        text = self.format(record)[: messages.LONGEST_TEXT]
        self._frames.send({"kind": messages.LOG, "name": record.name, "level": record.levelno, "text": text})


def serve_tasks(frames: Frames, start: Mapping[str, Any]) -> None:
    """Do the tasks of a job until the parent closes the connection."""
    logging.basicConfig(format="%(message)s", handlers=[_ToParent(frames)], level=start["level"], force=True)
    keep_freed_memory()
    _do_without_shared_files()
    work = _Work(frames, start)
    while True:
        try:
            header, body = frames.receive()
        except EOFError:
            return
        try:
            answer = work.answer(header, body)
        except Exception as error:
            answer = messages.error_message(error), b""
        del body
        frames.send(*answer)
        del answer
        gc.collect()


class _Work:
    """The job's executor, from the first task on, and its last training until that has left."""

    def __init__(self, frames: Frames, start: Mapping[str, Any]) -> None:
        self._frames, self._identity = frames, SiteIdentity(**start["identity"])
        self._executor: Callable[[], SiteExecutor] = cache(partial(_built, start["executor"], start["options"]))
        self._done: tuple[Payload, SiteStore] | None = None

    def answer(self, header: Mapping[str, Any], body: bytearray) -> messages.Message:
        """Do a task, or keep the state after one."""
        executor = self._executor()
        if header["kind"] == messages.LEFT and self._done is not None:
            executor.keep_state(messages.result_from(header, body), *self._done)
            return {"kind": messages.DONE}, b""
        if header["kind"] != messages.TASK:
            raise ValueError(f"a training child does no {header['kind']} now")
        payload, self._done = messages.task_payload(header, body), None
        enter_round(payload.round_number)
        gate = GateOfParent(self._frames, **header["gate"]) if header["gate"] else None
        result, _, store = executor.work(header["task"], payload, self._identity.context(gate), Signal())
        self._done = payload, store
        return messages.result_message(messages.RESULT, result)


def _built(path: str, options: Mapping[str, Any]) -> SiteExecutor:
    """The job's executor; what there is by then is left out of later garbage collections."""
    module, _, name = path.rpartition(".")
    executor: SiteExecutor = getattr(import_module(module), name)(**options)
    forget_networks()
    gc.collect()
    gc.freeze()
    return executor


class _Semaphore(_multiprocessing.SemLock):
    """Python's, in memory that forks share: a semaphore with a name is a file beside those of all other processes."""

    def __new__(cls, kind: int, value: int, most: int, name: str, unlink: bool) -> _Semaphore:
        """As Python's processes make it; the name is not used."""
        memory = mmap.mmap(-1, mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        ctypes.CDLL(None).sem_init(ctypes.c_void_p(address), 1, value)
        semaphore: _Semaphore = cls._rebuild(address, kind, most, None)
        semaphore.memory = memory
        return semaphore

    def __init__(self, *arguments: Any) -> None:
        self.memory: mmap.mmap


def _require_fork(semaphore: multiprocessing.synchronize.SemLock) -> NoReturn:
    raise RuntimeError("processes of a training child must be forked: another process has other memory")


def _do_without_shared_files() -> None:
    """Let processes of this one share memory and tensors without ``/dev/shm``, in which those of other jobs could look."""
    multiprocessing.synchronize._multiprocessing = SimpleNamespace(SemLock=_Semaphore)  # type: ignore[attr-defined]
    multiprocessing.synchronize.SemLock.__getstate__ = _require_fork  # type: ignore[method-assign,assignment]
    multiprocessing.heap.Arena._dir_candidates = []  # type: ignore[attr-defined]
    torch.UntypedStorage._new_shared = classmethod(  # type: ignore[method-assign,assignment]
        lambda cls, size, device="cpu": cls(size, device=device)
    )
    ForkingPickler.register(torch.Tensor, _by_value)
    ForkingPickler.register(torch.nn.Parameter, _by_value)


def _by_value(tensor: torch.Tensor) -> tuple[Any, tuple[bytes]]:
    """Between processes of the child tensors travel as bytes: shared memory is handed over by sockets, which it has not."""
    content = io.BytesIO()
    torch.save(tensor.detach(), content)
    return _loaded, (content.getvalue(),)


def _loaded(content: bytes) -> torch.Tensor:
    return torch.load(io.BytesIO(content), weights_only=True)
