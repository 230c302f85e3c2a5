"""A job's training child: a process with walls that does all tasks of the job, while FLARE and the site's gate are here.

The child has the images of one data set, a folder for itself and a socket to this process. It has no network, and neither
the site's keys nor its ledger. What it sends is JSON and tensors, checked here; its questions to the gate are answered here.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal

from grandrounds.data.site import CONFIG_NAME, DatasetLocation, site_datasets
from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.federation.site import child_messages as messages
from grandrounds.federation.site import training_child
from grandrounds.federation.site.context import TaskAborted
from grandrounds.federation.site.features import VARIABLE as FEATURES_VARIABLE
from grandrounds.federation.site.frames import Frames
from grandrounds.federation.site.isolation import SECONDS_TO_STOP, WorkerLost, WorkerStopped, described_end, kill_group
from grandrounds.federation.site.outcomes import gate_of
from grandrounds.federation.site.serving import SiteIdentity
from grandrounds.federation.site.store import clear_other_run
from grandrounds.plugins import PLUGINS_VARIABLE, plugin_modules
from grandrounds.protocol.messages import Payload, Result
from grandrounds.protocol.paths import (
    CACHE_VARIABLE,
    OWNER,
    PRIVACY_FOLDER,
    STATES,
    cache_folder,
    claimed_folder,
    data_folders,
    in_kit,
    weights_folder,
)
from grandrounds.protocol.spending import TRAINING_GATE
from grandrounds.walls import ACCELERATORS, Isolation, device_paths, program_paths

SCRATCH, OUTPUT = "scratch", "output.txt"
"""The child's folder for temporary files, in the site's folder of the run; and what the child prints."""
LAST_BYTES = 2000
KEPT_VARIABLES = {"PATH", "HOME", "LANG", "LANGUAGE", "TZ", "USER", "LOGNAME", "LD_LIBRARY_PATH"}
KEPT_PREFIXES = ("LC_", "GRANDROUNDS_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "CUDA_", "NVIDIA_", "TORCH", "PYTORCH_")
NEVER_KEPT = {"GRANDROUNDS_PROXY", FEATURES_VARIABLE}
"""The first may hold a password, and the child has no network; the second is a folder that jobs would share."""
SECONDS_TO_KEEP, SECONDS_TO_END = 300.0, 60.0
"""For the child: to keep its state after an answer has left, and to end with all that it has started."""
_logger = logging.getLogger(__name__)


class TrainingChild:
    """The child of one job, which lives from its first task to the job's end.

    Args:
        executor: the class of the job's executor.
        options: its arguments.
        isolation: whether a system that lacks a wall is refused.
    """

    def __init__(self, executor: type, options: Mapping[str, Any], isolation: Isolation) -> None:
        self._work = {"executor": f"{executor.__module__}.{executor.__qualname__}", "options": dict(options)}
        self._isolation = isolation
        self._running: _Running | None = None

    def work(self, task: str, payload: Payload, fl_ctx: FLContext, abort_signal: Signal) -> Result:
        """Have a task done; a child is started if there is none for this run.

        Raises:
            TaskAborted: if the server gives the task up.
            WorkerLost: if the child dies, or is ended because what it sends is not what was agreed.
            WorkerStopped: if it takes longer than the server waits for.
            Exception: whatever keeps the task from being done.
        """
        gate, gated = gate_of(fl_ctx), fl_ctx.get_prop(TRAINING_GATE) is not None
        known = {"hides_failures": gate.hides_failures, "counts_updates": gate.counts_updates} if gated else {}
        check = _limit(seconds_left(payload), abort_signal)
        run = (payload.values["run_name"], payload.values["run_id"], payload.values["problem"]["dataset"])
        if self._running is None or self._running.run != run:
            self.close()
            self._running = _Running(run, self._work, payload, fl_ctx)
            self._talk(lambda child: self._require_walls(child.begin(), fl_ctx), check)
        self._running.admitted = False
        message = messages.task_message(task, payload, known)
        return self._talk(lambda child: child.ask(message, messages.RESULT, fl_ctx, messages.result_from), check)

    @property
    def admitted(self) -> bool:
        """Whether the gate has admitted the last task as a training: from then on a failure may be of the images."""
        return self._running is not None and self._running.admitted

    def keep_state(self, left: Result, fl_ctx: FLContext) -> None:
        """Tell the child that the answer to its training has left, as filters have made it.

        Raises:
            WorkerLost: if the child is no more: the state after this training is lost, and the next round starts without.
            WorkerStopped: if it takes too long, with the same consequence.
        """
        if self._running is None:
            raise WorkerLost("the child process ended before its answer had left; its state after this round is lost")
        message = messages.result_message(messages.LEFT, left)
        self._talk(
            lambda child: child.ask(message, messages.DONE, fl_ctx, lambda *nothing: None), _limit(SECONDS_TO_KEEP)
        )

    def close(self) -> None:
        """End the child, if there is one.

        Raises:
            WorkerLost: if it does not end: no other one takes its place.
        """
        if self._running is not None:
            self._running.end()
            self._running = None

    def _talk(self, talk: Callable[[_Running], Any], check: Callable[[], None]) -> Any:
        """Talk to the child, and end it if that fails; an error that it has sent leaves it alive."""
        assert self._running is not None
        self._running.frames.check = check
        try:
            answer = talk(self._running)
        except (EOFError, OSError):
            reason = self._running.described_end()
            self.close()
            raise WorkerLost(reason) from None
        except MessageError as error:
            self.close()
            raise WorkerLost(f"the child process was ended: {error}") from error
        except BaseException:
            self.close()
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _require_walls(self, missing: Mapping[str, str], fl_ctx: FLContext) -> None:
        """Refuse a child without walls where they are required, else say which are missing."""
        if lacking := self._isolation.require(missing, "the training child"):
            gate_of(fl_ctx).note_missing_walls(lacking)
            _logger.warning("the training child lacks walls, so method and libraries must be trusted: %s", lacking)


class _Running:
    """A child process and the connection to it."""

    def __init__(self, run: tuple[Any, ...], work: Mapping[str, Any], payload: Payload, fl_ctx: FLContext) -> None:
        self.run, self.admitted = run, False
        site = SiteIdentity.of(fl_ctx)
        folder = claimed_folder(fl_ctx, payload.values["run_name"], site.site)
        clear_other_run(folder, payload.values["run_id"])
        cache = _cache(fl_ctx, str(payload.values["problem"]["dataset"]))
        self._scratch = folder / SCRATCH
        for needed in (self._scratch, cache):
            needed.mkdir(parents=True, exist_ok=True)
        read, write = readable_paths(payload, fl_ctx, folder), writable_paths(folder, cache)
        level = logging.getLogger().level
        self._start = {**work, "identity": asdict(site), "level": level, "read": read, "write": write}
        surroundings = {
            CACHE_VARIABLE: str(cache),
            "TMPDIR": str(self._scratch),
            "PYTHONPATH": os.pathsep.join(sys.path),
            PLUGINS_VARIABLE: ",".join(module for module in plugin_modules() if module != "__main__"),
        }
        mine, childs = socket.socketpair()
        with childs, (self._scratch / OUTPUT).open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", training_child.__name__, str(childs.fileno()), str(os.getpid())],
                pass_fds=(childs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**_kept_variables(), **surroundings},
            )
        self.frames = Frames(mine)

    def begin(self) -> dict[str, str]:
        """Have the walls raised; return those that are missing."""
        self.frames.send(self._start)
        header, _ = self.frames.receive()
        missing = header.get("missing")
        if header.get("kind") != messages.READY or not isinstance(missing, dict):
            raise MessageError("the training child has not begun as it must")
        return {str(name): str(reason) for name, reason in missing.items()}

    def ask(
        self,
        message: messages.Message,
        wanted: str,
        fl_ctx: FLContext,
        read: Callable[[dict[str, Any], bytearray], Any],
    ) -> Any:
        """Send a message and answer questions until the wanted kind of message comes, or an error, which is returned."""
        self.frames.send(*message)
        while True:
            header, body = self.frames.receive()
            kind = header.get("kind")
            if kind == wanted:
                return read(header, body)
            if kind == messages.ERROR:
                return messages.read_error(header)
            if kind == messages.LOG:
                _log(header)
            elif kind == messages.QUESTION:
                method, arguments = messages.read_question(header)
                answer = _reply(method, arguments, fl_ctx)
                self.admitted |= method == "admit_training" and answer["kind"] == messages.ANSWER
                self.frames.send(answer)
            else:
                raise MessageError(f"the training child has sent {str(kind)[:80]!r}, expected {wanted}")

    def described_end(self) -> str:
        """How the process has ended; its last lines go to the site's log, because they may be about images."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(SECONDS_TO_STOP)
        with suppress(OSError), (self._scratch / OUTPUT).open("rb") as output:
            output.seek(max(0, output.seek(0, os.SEEK_END) - LAST_BYTES))
            if lines := output.read(LAST_BYTES).decode(errors="replace").strip():
                _logger.error("the last lines of the child process: %s", lines)
        return described_end(self._process.returncode)

    def end(self) -> None:
        """End the process with all that it has started, and remove its temporary files.

        Raises:
            WorkerLost: if it does not end in time.
        """
        if sys.platform == "linux":
            self._process.terminate()  # its keeper does it
        else:
            kill_group(self._process.pid)
        try:
            self._process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            raise WorkerLost(f"the child process {self._process.pid} did not end within {SECONDS_TO_END:g} s") from None
        self.frames.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def _limit(seconds: float | None, abort_signal: Signal | None = None) -> Callable[[], None]:
    started = time.monotonic()

    def check() -> None:
        if abort_signal is not None and abort_signal.triggered:
            raise TaskAborted
        if seconds is not None and time.monotonic() - started > seconds:
            raise WorkerStopped(f"the child process did not answer within {seconds:g} s")

    return check


def _reply(method: str, arguments: tuple[Any, ...], fl_ctx: FLContext) -> dict[str, Any]:
    """What the site's gate answers to a question of the child, or its refusal."""
    try:
        return {"kind": messages.ANSWER, "value": getattr(gate_of(fl_ctx), method)(*arguments)}
    except Exception as error:
        return messages.error_message(error)


def _log(header: Mapping[str, Any]) -> None:
    level, name = header.get("level"), str(header.get("name"))[: messages.LONGEST_NAME]
    known = level if type(level) is int and 0 <= level <= logging.CRITICAL else logging.WARNING
    logger = logging.getLogger(name)
    if logger.isEnabledFor(known):
        logger.handle(logger.makeRecord(name, known, "", 0, str(header.get("text"))[: messages.LONGEST_TEXT], (), None))


def _cache(fl_ctx: FLContext, dataset: str) -> Path:
    """Where the child keeps decoded images: at a real site those of each data set are apart, so that no job reads others."""
    cache = cache_folder(fl_ctx)
    return cache / hashlib.sha256(dataset.encode()).hexdigest()[:16] if in_kit(fl_ctx) else cache


def _kept_variables() -> dict[str, str]:
    kept = (name for name in os.environ if name in KEPT_VARIABLES or name.startswith(KEPT_PREFIXES))
    return {name: os.environ[name] for name in kept if name not in NEVER_KEPT}


def require_gate(fl_ctx: FLContext) -> None:
    """Check that a kit with a lock has a gate that has seen the task.

    Raises:
        ConfigurationError: if it has none: nothing would decide what leaves.
    """
    if in_kit(fl_ctx) and fl_ctx.get_prop(TRAINING_GATE) is None:
        raise ConfigurationError(
            "this kit has no privacy gate, so it works on no task: see local/privacy.json, and run grandrounds doctor"
        )


def seconds_left(payload: Payload) -> float | None:
    """How long the server waits for the answer to a task; None if the task does not have it."""
    seconds: Any = payload.values.get("round_timeout")
    limited = isinstance(seconds, int | float) and math.isfinite(seconds) and seconds > 0
    return float(seconds) if limited else None


def readable_paths(payload: Payload, fl_ctx: FLContext, folder: Path) -> list[str]:
    """Files and folders that the child of a job may read.

    Of the site's data sets these are the job's and those that the site calls public, whose files must be in the folder that
    the site names: a symbolic link out of it cannot be followed. A folder around the keys, the ledger, other runs or another
    data set is opened without them.

    Args:
        payload: of a task of the job.
        fl_ctx: FLARE's context of the site.
        folder: the site's of the run.
    """
    workspace, site = fl_ctx.get_engine().get_workspace(), fl_ctx.get_identity_name()
    root, local = Path(workspace.get_root_dir()), Path(workspace.get_site_config_dir())
    problem = payload.values["problem"]
    known = site_datasets(site, data_folders(fl_ctx))
    readable = [location for name, location in known.items() if name == problem["dataset"] or location.public]
    opened = list(chain.from_iterable(map(_of, readable)))
    others = chain.from_iterable(map(_of, known.values()))
    hidden = [path for path in others if not any(other.is_relative_to(path) for other in opened)]
    hidden += [path.resolve() for path in (root / "startup", local / PRIVACY_FOLDER, root / STATES)]
    chosen = [path for path in _files_in(problem) if not in_kit(fl_ctx) or path.is_relative_to(local.resolve())]
    asked = (
        *opened,
        *_of_every_job(fl_ctx),
        *chosen,
        *(path for path in program_paths() if not root.is_relative_to(path)),
    )
    within = (inside for path in asked for inside in _without(path.resolve(), hidden))
    return list(dict.fromkeys((*map(str, within), str(folder.parent / OWNER))))


def _of_every_job(fl_ctx: FLContext) -> list[Path]:
    """Descriptions of data sets, the job's own files, and weights."""
    workspace, site, job = fl_ctx.get_engine().get_workspace(), fl_ctx.get_identity_name(), fl_ctx.get_job_id()
    named = [place / name for place in data_folders(fl_ctx) for name in (CONFIG_NAME, f"{site}/{CONFIG_NAME}")]
    named += [Path(workspace.get_app_dir(job)), Path(workspace.get_job_meta_path(job))]
    return [*named, weights_folder(), Path(torch.hub.get_dir()) / "checkpoints"]


def writable_paths(folder: Path, cache: Path) -> list[str]:
    """Files and folders that the child may read and write: its own, and devices."""
    return [str(folder), str(cache), *device_paths(*ACCELERATORS, *_shared_memory())]


def _shared_memory() -> list[str]:
    """Shared by all jobs, so only where an accelerator's driver may need it."""
    return ["shm"] if device_paths(*ACCELERATORS) != device_paths() else []


def _of(location: DatasetLocation) -> list[Path]:
    chosen = _files_in(location.model.changes) if location.model else []
    return [Path(location.manifest).resolve(), Path(location.root).resolve(), *chosen]


def _files_in(values: Any) -> list[Path]:
    """Paths of files among plain values, at any depth."""
    if isinstance(values, str) and os.sep in values and "\0" not in values:
        return [Path(values).resolve()]
    inner = values.values() if isinstance(values, dict) else values if isinstance(values, list | tuple) else ()
    return [path for value in inner for path in _files_in(value)]


def _without(path: Path, hidden: Collection[Path]) -> Iterator[Path]:
    """A folder, or where something hidden is in it, all else that is in it; nothing of what is hidden itself."""
    if any(path.is_relative_to(other) for other in hidden):
        return
    if not path.is_dir() or not any(other.is_relative_to(path) for other in hidden):
        yield path
        return
    for inside in path.iterdir():
        yield from _without(inside, hidden)
