"""Starts and stops a kit's FLARE: in a container, as a service of the system, or by hand.

FLARE's own start script keeps the process id of its last start in the kit. In a container that id is always 1, so the
script takes itself for a running instance and ends; it also ignores SIGTERM there. Here stale ids are removed, signals are
passed on, and FLARE is started again when it dies or hangs. The service manager is notified of what happens, and that this
process lives.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from grandrounds.deployment.kit.read import OWN_PID, Kit, running_processes, supervisor
from grandrounds.deployment.processes import await_end, signal_processes, start_program
from grandrounds.deployment.retrying import pause_after
from grandrounds.deployment.supervision import VARIABLES, Pulse, Watchdog, bound, notify
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.files import PRIVATE
from grandrounds.protocol.paths import ALIVE, START_KEY

COMMAND = (sys.executable, "-m", "grandrounds.cli")
SHUTDOWN = "shutdown.fl"
STALE = (OWN_PID, "pid.fl", SHUTDOWN, "restart.fl", ALIVE, START_KEY)
CONSOLE = "console.txt"
MAX_CONSOLE = 10 * 1024**2
"""Bytes of the console's file, and of its older part."""
SERVICE_STOP_SECONDS = 8.0
"""A container engine kills after ten."""
RESTART_PAUSES = (5.0, 10.0, 20.0, 40.0, 60.0)
"""Seconds before FLARE is started again; the last one counts for all later times."""
GOOD_SECONDS = 300.0
HANG_SECONDS = 300.0
"""Without a sign of life of FLARE, after which it is ended and started again."""
SERVICE_POLL_SECONDS = 0.2
SERVICE_START_SECONDS = 300.0
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""Whether torch imports whatever has an entry point for it."""
OUTCOME_WAIT, OUTCOME_SECONDS = "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT", "15"
"""How long FLARE's server delays the end of a job for a lost site; its default is a quarter of an hour."""
Report = Callable[[str], None]


class Stopped(Exception):
    """This process was asked to end."""


@contextmanager
def stoppable() -> Iterator[None]:
    """A block that SIGTERM and SIGINT end by :class:`Stopped`; process 1 of a container would ignore SIGTERM otherwise."""

    def handle(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # what follows must not be interrupted
        raise Stopped

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except Stopped:
        return
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def remove_stale_files(kit: Kit) -> None:
    """Remove FLARE's files of an earlier start, whose processes are gone.

    Raises:
        ConfigurationError: if FLARE runs in this kit.
    """
    if processes := running_processes(kit):
        raise ConfigurationError(
            f"{kit.name} is already running (process {processes[0]}); stop it by grandrounds kit stop {kit.folder}"
        )
    for name in STALE:
        (kit.folder / name).unlink(missing_ok=True)


def require_running(kit: Kit) -> None:
    """Run the doctor without the network, and print its findings if there is a failure.

    It is a process of its own, because it imports torch: the service stays small and ends at once.

    Raises:
        ConfigurationError: if there is a failure.
    """
    doctor = subprocess.run(
        [*COMMAND, "doctor", "--no-network", "--kit", str(kit.folder)], capture_output=True, text=True, check=False
    )
    if doctor.returncode:
        sys.stderr.write(doctor.stdout + doctor.stderr)
        raise ConfigurationError(f"{kit.name} is not started: the doctor finds failures in {kit.folder}")


def serve(kit: Kit, report: Report) -> None:
    """Run FLARE in the foreground until FLARE's own shutdown or :class:`Stopped`, and start it again when it dies.

    Args:
        kit: of a server or a site; it must not be running.
        report: called with a line whenever FLARE starts, ends or is stopped.

    Raises:
        ConfigurationError: if FLARE runs in this kit.
        Stopped: inside :func:`stoppable`, when all processes have ended.
    """
    remove_stale_files(kit)
    (kit.folder / OWN_PID).write_text(f"{os.getpid()}\n")
    watchdog = Watchdog()
    notify_all = _reporting(report)
    deaths = 0
    try:
        while True:
            started = time.monotonic()
            status = _run_once(kit, notify_all, watchdog)
            if (kit.folder / SHUTDOWN).exists():
                notify("STOPPING=1")
                notify_all(f"{kit.name}: FLARE was shut down")
                return
            end_processes(kit)  # a job's process that FLARE had just started would wait for its parent for ever
            deaths = 0 if time.monotonic() - started >= GOOD_SECONDS else deaths
            deaths += 1
            pause = pause_after(deaths, RESTART_PAUSES)
            notify_all(f"{kit.name}: FLARE ended with status {status}; it is started again in {pause:g} s")
            _sleep(pause, watchdog)
    except Stopped:
        notify("STOPPING=1")
        notify_all(f"{kit.name}: stopping")
        end_processes(kit)
        notify_all(f"{kit.name}: stopped")
        raise
    finally:
        for name in STALE:
            (kit.folder / name).unlink(missing_ok=True)


def start_in_background(kit: Kit) -> int:
    """Start :func:`serve` in a process of its own, whose output goes to ``console.txt`` in the kit.

    Returns:
        The process id.

    Raises:
        ConfigurationError: if FLARE runs in this kit.
        GrandRoundsError: if the process ends at once.
    """
    remove_stale_files(kit)
    console = kit.folder / CONSOLE
    bound(console, MAX_CONSOLE)
    with console.open("ab") as stream:
        process = start_program([*COMMAND, "kit", "start", str(kit.folder)], stream, kit.folder, umask=PRIVATE)
    deadline = time.monotonic() + SERVICE_START_SECONDS
    while not supervisor(kit):
        if process.poll() is not None or time.monotonic() > deadline:
            raise GrandRoundsError(f"{kit.name} did not start; see {console}")
        time.sleep(SERVICE_POLL_SECONDS)
    return process.pid


def stop(kit: Kit) -> list[int]:
    """Stop a kit's FLARE, however it was started, with its jobs.

    Returns:
        Ids of the processes that were stopped.
    """
    own = supervisor(kit)
    stopped = [*own, *running_processes(kit)]
    signal_processes(own, signal.SIGTERM)
    await_end(lambda: bool(supervisor(kit)), SERVICE_STOP_SECONDS + 2 if own else 0.0, SERVICE_POLL_SECONDS)
    end_processes(kit)
    return sorted(set(stopped))


def end_processes(kit: Kit, seconds: float = SERVICE_STOP_SECONDS) -> None:
    """End all FLARE processes of a kit: SIGTERM, then SIGKILL after ``seconds``; checkpoints are whole at any moment."""
    signal_processes(running_processes(kit), signal.SIGTERM)
    await_end(lambda: bool(running_processes(kit)), seconds, SERVICE_POLL_SECONDS)
    signal_processes(running_processes(kit), signal.SIGKILL)


def _run_once(kit: Kit, notify_all: Report, watchdog: Watchdog) -> int:
    """Start FLARE, wait for its end and return its exit status; it is ended when it hangs."""
    (kit.folder / ALIVE).unlink(missing_ok=True)
    child = subprocess.Popen(
        ["bash", str(kit.startup / "sub_start.sh"), "--once"],
        stdin=subprocess.DEVNULL,
        cwd=kit.folder,
        env=_environment(),
    )
    notify("READY=1")
    notify_all(f"{kit.name}: FLARE runs as process {child.pid}")
    pulse = Pulse(kit.folder / ALIVE, HANG_SECONDS)
    asked_at: float | None = None
    while (status := _reap(child.pid)) is None:
        _sleep(SERVICE_POLL_SECONDS, watchdog)
        bound(kit.folder / CONSOLE, MAX_CONSOLE)
        if asked_at is None and (kit.folder / SHUTDOWN).exists():
            asked_at = time.monotonic()
        if asked_at is not None and time.monotonic() - asked_at > SERVICE_STOP_SECONDS:
            end_processes(kit, 0.0)  # FLARE's threads can outlive its shutdown
        elif pulse.lost():
            notify_all(f"{kit.name}: FLARE gives no sign of life for {HANG_SECONDS:g} s; it is ended")
            end_processes(kit, 0.0)
    return status


def _reporting(report: Report) -> Report:
    """Report a line to the service manager as well; one that cannot be written, as on a full disk, ends nothing."""

    def notify_all(line: str) -> None:
        notify(f"STATUS={line}")
        with suppress(OSError):
            report(line)

    return notify_all


def _sleep(seconds: float, watchdog: Watchdog) -> None:
    """Sleep, while the service manager hears that this process lives."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        watchdog.alive()
        time.sleep(min(left, 1.0))


def _environment() -> dict[str, str]:
    """This environment, in which FLARE's script finds this Python; folders that it names are made."""
    for name in ("HOME", "TMPDIR"):
        if name in os.environ:
            Path(os.environ[name]).mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return {OUTCOME_WAIT: OUTCOME_SECONDS, **kept, "PATH": path, AUTOLOAD: "0"}


def _reap(child: int) -> int | None:
    """Collect ended children, in a container also those of others; the exit status of ``child`` if it is among them."""
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return -1
        if ended == 0:
            return None
        if ended == child:
            return os.waitstatus_to_exitcode(status)
