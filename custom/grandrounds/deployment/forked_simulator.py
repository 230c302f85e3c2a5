"""FLARE's simulator for fewer threads than sites, with workers forked from a process that has made all imports.

With fewer threads than sites FLARE 2.9 starts a program for every task of every site. Each imports torch and FLARE for
seconds, and the simulator pauses for two seconds before each. Here FLARE starts a small substitute program instead. It asks
a server, which made the imports once, to fork a worker; substitute and worker end together. If no worker can be forked, the
substitute becomes the program that FLARE asked for.

    python -m grandrounds.deployment.forked_simulator <job> <further arguments of nvflare simulator>
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

MAX_FORK_PAUSE = 0.05
LOOK_SECONDS = 2.0
ADDRESS_VARIABLE = "GRANDROUNDS_WORKERS"
WORKER = "nvflare.private.fed.app.simulator.simulator_worker"
STREAMS = "nvflare.fuel.f3.streaming.stream_utils"
IMPORTED_LATER = (
    *(f"nvflare.fuel.f3.drivers.{name}_driver" for name in ("aio_grpc", "aio_http", "aio_tcp", "file", "grpc", "tcp")),
    "nvflare.app_common.decomposers.numpy_decomposers",
    "nvflare.app_common.executors.client_api_executor",
    "nvflare.app_common.widgets.convert_to_fed_event",
)
"""Modules that FLARE's worker imports later."""
CLASS_PATH = re.compile(r'"path"\s*:\s*"([\w.]+)\.\w+"')
STAND_IN = """#!{python} -IS
import json, os, socket, sys
arguments = sys.argv[1:]
if arguments[:2] == ["-m", "{worker}"]:
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(os.environ["{variable}"])
        request = {{"arguments": arguments[2:], "environment": dict(os.environ), "folder": os.getcwd()}}
        line.sendall(json.dumps(request).encode() + b"\\n")
        status = line.recv(1)
    except OSError:
        pass
    else:
        sys.exit(status[0] if status else 1)
os.execv("{python}", ["{python}", *arguments])
"""


def main() -> None:
    """Run ``nvflare simulator`` with this program's arguments."""
    with TemporaryDirectory(prefix="grandrounds-") as folder:
        server = start_server(Path(folder), Path(sys.argv[1]))
        try:
            _simulate(sys.argv[1:])
        finally:
            # An interrupted simulator has already ended its child processes.
            with suppress(ProcessLookupError, ChildProcessError):
                if server:
                    os.kill(server, signal.SIGTERM)
                    os.waitpid(server, 0)


def start_server(folder: Path, job: Path) -> int | None:
    """Fork the server of workers, and let FLARE start the substitute where it would start Python.

    Args:
        folder: for the socket and the substitute; private to this user.
        job: FLARE's job folder; its classes are imported in advance.

    Returns:
        The server's process, or None if the folder's name is too long for a socket, or FLARE cannot start a program
        there: FLARE splits its command at spaces, and a disk for temporary files may be ``noexec``.
    """
    substitute = write_substitute(folder)
    if shlex.split(str(substitute)) != [str(substitute)] or not os.access(substitute, os.X_OK):
        return None
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(folder / "workers"))
    except OSError:
        return None
    listener.listen(64)
    server = os.fork()
    if not server:
        _serve(listener, job)
    listener.close()
    os.environ[ADDRESS_VARIABLE] = str(folder / "workers")
    sys.executable = str(substitute)
    return server


def write_substitute(folder: Path) -> Path:
    """Write the program that FLARE starts; it passes everything but the simulator's workers on to Python."""
    program = folder / "python"
    program.write_text(STAND_IN.format(python=sys.executable, worker=WORKER, variable=ADDRESS_VARIABLE))
    program.chmod(0o700)
    return program


def _simulate(arguments: list[str]) -> None:
    from nvflare import cli
    from nvflare.private.fed.app.simulator import simulator_runner

    vars(simulator_runner)["time"] = _ShortPauses()
    sys.argv = ["nvflare", "simulator", *arguments]
    cli.main()


class _ShortPauses:
    """The module ``time`` with short pauses."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        """As ``time.sleep``, but for ``MAX_PAUSE`` at most."""
        time.sleep(min(seconds, MAX_FORK_PAUSE))


def _serve(listener: socket.socket, job: Path) -> None:
    """In the server: import, then fork a worker for each connection until the simulator ends; does not return."""
    simulator = os.getppid()
    try:
        import_module(WORKER)
        for module in (*IMPORTED_LATER, *modules_of(job)):
            with suppress(ImportError):  # an extra that is not installed, or a module that the job brings
                import_module(module)
        listener.settimeout(LOOK_SECONDS)
        while os.getppid() == simulator:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            with suppress(TimeoutError):
                line, _ = listener.accept()
                if not os.fork():
                    listener.close()
                    _work(line)
                line.close()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def modules_of(job: Path) -> list[str]:
    """The modules of the classes that a job names for its sites."""
    texts = [path.read_text(encoding="utf-8") for path in job.glob("*/config/config_fed_client.json")]
    return sorted({module for text in texts for module in CLASS_PATH.findall(text)})


def _work(line: socket.socket) -> None:
    """In the worker: run FLARE's worker with the substitute's arguments, environment and folder; does not return."""
    status = 1
    try:
        # A session of its own, as FLARE gives it: when it ends, a worker may kill its process group.
        os.setsid()
        line.settimeout(None)
        with line.makefile("rb") as stream:
            request = json.loads(stream.readline())
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [path for path in paths if path and path not in sys.path]
        sys.argv = [WORKER, *request["arguments"]]
        threading.Thread(target=_end_with, args=(line,), daemon=True).start()
        # FLARE numbers its streams from the time of the import; two workers of a site must not share a number.
        vars(import_module(STREAMS))["sid_base"] = time.time_ns() // 1000
        worker = import_module(WORKER)
        arguments = worker.parse_arguments()
        status = worker.mpm.run(main_func=worker.main, run_dir=arguments.workspace, args=arguments) or 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            logging.shutdown()
            sys.stdout.flush()
            line.sendall(bytes([status % 256]))
        os._exit(status)


def _end_with(line: socket.socket) -> None:
    """End with the substitute: FLARE ends it, which closes the connection."""
    with suppress(OSError):
        line.recv(1)
    os._exit(1)


if __name__ == "__main__":
    main()
