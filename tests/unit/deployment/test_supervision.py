"""The service of a kit answers the service manager, ends what hangs, and bounds its output while it runs."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from grandrounds.deployment import supervision
from grandrounds.deployment.supervision import Pulse, Watchdog, bound, notify, older, seconds_between

LIMIT_SECONDS = 600
SERVE = """
import sys
from pathlib import Path
from types import SimpleNamespace
from grandrounds.deployment.kit import service

folder = Path(sys.argv[1])
service.MAX_CONSOLE, service.HANG_SECONDS, service.RESTART_PAUSES = 4000, float(sys.argv[2]), (0.1,)
kit = SimpleNamespace(folder=folder, startup=folder / "startup", name="hospital-a")
with service.stoppable():
    service.serve(kit, lambda line: print(line, flush=True))
"""
"""The service with small limits, and a program in FLARE's place."""


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def manager(tmp_path):
    """A service manager's socket: ``manager.received()``."""

    class Manager:
        def __init__(self, address):
            self.address = address
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.socket.bind(address)
            self.socket.settimeout(LIMIT_SECONDS)

        def receive(self):
            return self.socket.recv(4096).decode()

        def await_message(self, wanted):
            """All messages up to this one."""
            found, deadline = [], time.monotonic() + LIMIT_SECONDS
            while not found or not found[-1].startswith(wanted):
                assert time.monotonic() < deadline, f"{wanted} did not come after {found[-9:]}"
                found.append(self.receive())
            return found

    found = Manager(str(tmp_path / "notify"))
    yield found
    found.socket.close()


def test_states_reach_the_service_manager_one_a_line(manager):
    assert notify("READY=1", "STATUS=two\nlines", environment={"NOTIFY_SOCKET": manager.address})
    assert manager.receive() == "READY=1\nSTATUS=two lines"


def test_the_socket_can_be_one_without_a_file():
    name = f"grandrounds-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name)
        receiver.settimeout(LIMIT_SECONDS)
        assert notify("STOPPING=1", environment={"NOTIFY_SOCKET": "@" + name})
        assert receiver.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("address", ["", "relative", "/no/such/socket", "/" + "x" * 200])
def test_a_manager_that_is_not_there_is_no_error(address):
    assert not notify("READY=1", environment={"NOTIFY_SOCKET": address})


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 1.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 1.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_manager_says_how_often_it_wants_to_hear_of_this_process(variables, seconds):
    assert seconds_between(variables) == seconds


def test_the_watchdog_is_fed_three_times_in_its_interval_and_not_at_every_call(manager):
    clock = Clock()
    watchdog = Watchdog({"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "30000000"}, clock)
    for _ in range(300):
        watchdog.alive()
        clock.now += 0.1
    manager.socket.setblocking(False)
    assert [manager.receive() for _ in range(3)] == ["WATCHDOG=1"] * 3
    with pytest.raises(BlockingIOError):
        manager.receive()


def test_a_pulse_is_lost_when_the_file_stays_as_it_is(tmp_path):
    clock, path = Clock(), tmp_path / "alive"
    pulse = Pulse(path, 10, clock)
    clock.now += 1000
    assert not pulse.lost()  # nothing has touched it yet: it may start for long
    path.touch()
    assert not pulse.lost()
    clock.now += 9
    assert not pulse.lost()
    os.utime(path, ns=(1, 1))  # a clock that was set back is a sign of life as well
    assert not pulse.lost()
    clock.now += 11
    assert pulse.lost()


def test_a_log_is_cut_and_its_last_bytes_are_kept_once(tmp_path):
    log = tmp_path / "console.txt"
    log.write_bytes(b"0123456789")
    assert not bound(log, 10)
    with log.open("ab", buffering=0) as program:  # as the program that runs
        program.write(b"abcdef")
        assert bound(log, 10)
        program.write(b"later")
    assert older(log).read_bytes() == b"6789abcdef"
    assert log.read_bytes() == b"later"
    log.write_bytes(b"x" * 11)
    assert bound(log, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["console.1.txt", "console.txt"]
    assert older(log).read_bytes() == b"x" * 10


def test_a_log_on_a_full_disk_is_cut_without_a_copy(tmp_path, monkeypatch):
    def copy(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(supervision, "_copy_end", copy)
    log = tmp_path / "console.txt"
    log.write_bytes(b"x" * 11)
    assert bound(log, 10)
    assert log.stat().st_size == 0
    assert not older(log).exists()


def test_a_log_that_is_gone_is_small_enough(tmp_path):
    assert not bound(tmp_path / "console.txt", 10)


@pytest.fixture
def serve(tmp_path, manager):
    """Starts the service with a shell script as FLARE: ``serve(script)``; stops it at the end. ``hangs``: after how long."""
    started = []
    folder = tmp_path / "kit"
    (folder / "startup").mkdir(parents=True)

    def start(script, stdout=None, hangs=600.0):
        (folder / "startup" / "sub_start.sh").write_text(script)
        environment = {**os.environ, "NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "600000"}
        with (folder / "console.txt").open("ab") if stdout is None else open(stdout, "wb") as stream:
            command = [sys.executable, "-c", SERVE, folder, str(hangs)]
            process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=environment)
        started.append(process)
        return process

    start.folder = folder
    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_SECONDS)


def test_the_manager_hears_of_start_life_and_stop(serve, manager):
    process = serve('test -z "$NOTIFY_SOCKET$WATCHDOG_USEC" || exit 7\nwhile :; do touch alive.fl; sleep .05; done\n')
    before = manager.await_message("WATCHDOG=1")
    assert before[0] == "READY=1"
    assert before[1].startswith("STATUS=hospital-a: FLARE runs as process")
    process.send_signal(signal.SIGTERM)
    after = manager.await_message("STATUS=hospital-a: stopped")
    assert after[-3:] == ["STOPPING=1", "STATUS=hospital-a: stopping", "STATUS=hospital-a: stopped"]
    assert process.wait(LIMIT_SECONDS) == 0


def test_a_program_that_hangs_is_ended_and_started_again(serve, manager):
    serve("echo $$ >> starts\ntouch alive.fl\nwhile :; do sleep .05; done\n", hangs=1.0)
    told = manager.await_message("STATUS=hospital-a: FLARE ended with status -")
    assert "STATUS=hospital-a: FLARE gives no sign of life for 1 s; it is ended" in told
    manager.await_message("READY=1")


def test_one_that_has_given_no_sign_yet_is_waited_for(serve, manager):
    """A kit whose FLARE does not touch the file, for example one without an overlay."""
    process = serve("while :; do sleep .05; done\n", hangs=1.0)
    manager.await_message("WATCHDOG=1")
    time.sleep(1.5)
    process.send_signal(signal.SIGTERM)
    assert not any("no sign" in message for message in manager.await_message("STOPPING=1"))


def test_the_console_stays_bounded_while_the_program_runs(serve, manager):
    serve("while :; do touch alive.fl; printf '%0100d\\n' {1..10}; sleep .02; done\n")
    console = serve.folder / "console.txt"
    deadline = time.monotonic() + LIMIT_SECONDS
    while not older(console).is_file():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    largest = 0
    for _ in range(40):
        largest = max(largest, console.stat().st_size)
        time.sleep(0.05)
    assert largest < 400_000, "a flood of 50 kB a second, which is looked at five times a second"
    assert older(console).stat().st_size <= 4000


def test_a_full_disk_under_the_console_stops_neither_service_nor_program(serve, manager):
    process = serve("while :; do touch alive.fl; echo line; sleep .05; done\n", stdout="/dev/full")
    told = [*manager.await_message("WATCHDOG=1"), *manager.await_message("WATCHDOG=1")]
    assert not any("ended" in message for message in told)
    process.send_signal(signal.SIGTERM)
    manager.await_message("STATUS=hospital-a: stopped")
    process.wait(LIMIT_SECONDS)
