"""What keeps the processes of a kit up: full logs and slow lines end none, and one that hangs can be found."""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import ConfigVarName
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.comm_config import VarName
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.fuel.sec.audit import Auditor
from nvflare.fuel.utils.config_service import ENV_VAR_PREFIX, ConfigService

from grandrounds.protocol.paths import ALIVE

logger = logging.getLogger(__name__)
REMARK_SECONDS = 600.0
"""Between two remarks that a log cannot be written: on a full disk, what fails must not fill it further."""
BEAT_SECONDS = 5.0
REQUEST_SECONDS = 30.0
"""How long a site waits for a request in which nothing moves before it asks again."""
STREAM_SETTINGS = {
    VarName.STREAMING_CHUNK_SIZE: 1 << 18,
    VarName.STREAMING_WINDOW_SIZE: 1 << 22,
    VarName.STREAMING_ACK_INTERVAL: 1 << 19,
    VarName.STREAMING_ACK_PROGRESS_TIMEOUT: 150.0,
    VarName.STREAMING_RETRY_WAIT: 30.0,
    VarName.STREAMING_RETRY_TIMEOUT: 120.0,
    f"tensor_{ConfigVarName.STREAMING_PER_REQUEST_TIMEOUT}": REQUEST_SECONDS,
    f"np_{ConfigVarName.STREAMING_PER_REQUEST_TIMEOUT}": REQUEST_SECONDS,
}
"""Of FLARE's streams: at most 4 MiB are on their way, which 150 kB/s carry in the 30 s after which they are sent again.

Tensors are fetched by requests inside a request; FLARE 2.9 waits ten minutes for the answer to one whose connection is gone.
"""


def outlive_full_logs(pause: float = REMARK_SECONDS) -> None:
    """Let this process go on where its logs, or FLARE's trail of commands, cannot be written, for example on a full disk.

    The lines are lost, which the standard error says once in a while; without this Python prints several stacks for each
    line, into the same disk, and FLARE ends the task or the command that it wanted to note. The gate's own audit trail is
    not concerned: what it cannot note does not leave the site.
    """
    if hasattr(logging.Handler.handleError, "enduring"):
        return
    remark = _Remark(pause)
    usual = logging.Handler.handleError

    def handle(handler: logging.Handler, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            remark(getattr(handler, "baseFilename", "the console"), error)
        else:
            usual(handler, record)

    handle.enduring = True  # type: ignore[attr-defined]
    logging.Handler.handleError = handle  # type: ignore[method-assign, assignment]
    for name in ("add_event", "add_job_event"):
        setattr(Auditor, name, _enduring(getattr(Auditor, name), remark))


def outlive_slow_lines() -> None:
    """Let large messages of this process arrive on a slow line.

    FLARE 2.9 has 64 MiB on their way, sends again after 5 s what has not arrived, and gives up after 60 s: a tensor of more
    than 60 MB never arrives at 1 MB/s, and of a smaller one most is sent several times. A kit's ``comm_config.json``,
    and FLARE's variables of the environment, override these settings.
    """
    for name, value in STREAM_SETTINGS.items():
        os.environ.setdefault(f"{ENV_VAR_PREFIX}{name}".upper(), str(value))  # processes of jobs inherit it
        ConfigService.get_var_values().pop(name, None)  # FLARE keeps what it has once looked up


def ask_again_soon(fl_ctx: FLContext) -> None:
    """Let a site's process give a request up after ``REQUEST_SECONDS`` without progress, and make it again.

    FLARE 2.9 waits five minutes for the answer to a request whose connection is gone, and the site is idle until then. What
    moves is waited for, however slowly: also an update, which the server fetches before it answers, and of which FLARE sees
    no progress here. What is sent again has the same bits: it passes no filter a second time.
    """
    communicator = getattr(getattr(fl_ctx.get_engine(), "client", None), "communicator", None)
    if communicator is not None:
        communicator.timeout = min(communicator.timeout, REQUEST_SECONDS)
        if not hasattr(Cell._send_request, "patient"):
            Cell._send_request = _patient(Cell._send_request)


def show_life(kit: Path, seconds: float = BEAT_SECONDS) -> None:
    """Touch a file of the kit again and again from a thread, so that who has started this process sees that it moves."""

    def beat() -> None:
        while True:
            with suppress(OSError):  # a full disk takes no new file
                (kit / ALIVE).touch()
            time.sleep(seconds)

    threading.Thread(target=beat, name="show-life", daemon=True).start()


def _patient(send: Callable[..., Any]) -> Callable[..., Any]:
    """FLARE's request, which goes on waiting while something large that this process sends is acknowledged."""

    @functools.wraps(send)
    def attempt(*given: Any, **named: Any) -> Any:
        return send(*given, **{"progress_wait_cb": _Movement(), **named})

    attempt.patient = True  # type: ignore[attr-defined]
    return attempt


class _Movement:
    """Whether bytes of large streams of this process have arrived since it was asked last; the log says how many."""

    def __init__(self) -> None:
        self._before = self._acknowledged()

    def __call__(self) -> bool:
        before, self._before = self._before, self._acknowledged()
        for name, (arrived, size) in self._before.items():
            if (arrived, size) != before.get(name):
                logger.info("%.1f of %.1f MB have arrived", arrived / 1e6, size / 1e6)
        return before != self._before

    @staticmethod
    def _acknowledged() -> dict[Any, tuple[int, int]]:
        with ByteStreamer.map_lock:
            tasks = list(ByteStreamer.tx_task_map.values())
        sizes = [(task, task.stream.get_size()) for task in tasks]
        return {task.sid: (task.offset_ack, size) for task, size in sizes if size > task.chunk_size}


class _Remark:
    """Says on the standard error what cannot be written, and not again before the pause has ended."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._next = 0.0

    def __call__(self, where: str, error: OSError) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._pause
        with suppress(OSError):
            sys.stderr.write(f"{where} cannot be written ({error.strerror}): lines are lost until there is room\n")


def _enduring(write: Callable[..., str], remark: _Remark) -> Callable[..., str]:
    @functools.wraps(write)
    def attempt(*given: Any, **named: Any) -> str:
        try:
            return write(*given, **named)
        except OSError as error:
            remark("audit.log", error)
            return ""

    return attempt
