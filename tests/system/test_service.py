"""The service of a kit comes back after every kind of end, also where it is process 1, as in a container."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from grandrounds.deployment.kit.read import processes_of
from grandrounds.deployment.kit.service import SERVICE_STOP_SECONDS
from grandrounds.deployment.local_federation import prepare
from tests.federations import await_true

pytestmark = pytest.mark.provisioned

START = [sys.executable, "-m", "grandrounds.cli", "kit"]
LIMIT_SECONDS = 400
STOP_SECONDS = 10.0


@pytest.fixture(scope="module")
def kit(tmp_path_factory, free_port):
    """The kit of a server; nothing of it runs at the end."""
    federation = prepare(tmp_path_factory.mktemp("service") / "federation", ["hospital-a"], free_port())
    yield federation.kit(federation.server)
    for process in processes_of(federation.kits):
        os.kill(process, signal.SIGKILL)


@pytest.fixture
def in_container(kit):
    """Starts the service as process 1 of a namespace of its own: the ids there begin anew each time."""
    namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], check=False).returncode != 0:
        pytest.skip("this machine allows no pid namespaces")
    started = []

    def start():
        process = subprocess.Popen([*namespace, *START, "start", kit.folder], stdin=subprocess.DEVNULL)
        started.append(process)
        await_listening(kit, process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait(LIMIT_SECONDS)
    await_true(lambda: not processes_of(kit.folder))


def await_listening(kit, process=None):
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        assert process is None or process.poll() is None, f"the service ended with status {process.returncode}"
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", kit.port)) == 0:
                return
        time.sleep(0.2)
    pytest.fail("FLARE's server does not listen")


def inner(process):
    """The namespace's process 1, by its id here."""
    (found,) = subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    return int(found)


def test_a_container_comes_up_after_every_kind_of_end_and_stops_in_time(kit, in_container):
    """FLARE dies, the container is killed, and it is stopped: each time what follows is a listening server, or nothing."""
    first = in_container()
    (server,) = servers(kit)
    os.kill(server, signal.SIGKILL)
    await_true(lambda: servers(kit) not in ([], [server]))
    await_listening(kit)

    os.kill(inner(first), signal.SIGKILL)
    first.wait(LIMIT_SECONDS)
    await_true(lambda: not processes_of(kit.folder))
    assert (kit.folder / "daemon_pid.fl").read_text().strip() == "1", "FLARE's script takes itself for this process"

    second = in_container()
    asked = time.monotonic()
    os.kill(inner(second), signal.SIGTERM)
    assert second.wait(LIMIT_SECONDS) == 0
    assert SERVICE_STOP_SECONDS < STOP_SECONDS
    assert time.monotonic() - asked < 2 * STOP_SECONDS, "a machine with other work takes longer for the rest"
    assert processes_of(kit.folder) == []


def servers(kit):
    """The processes of FLARE's server."""
    return [process for process in processes_of(kit.folder) if b"server_train" in arguments(process)]


def arguments(process):
    try:
        with open(f"/proc/{process}/cmdline", "rb") as stream:
            return stream.read()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return b""


def test_a_start_in_the_background_is_quiet_and_ends_by_one_command(kit):
    started = subprocess.run(
        [*START, "start", kit.folder, "--background"], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True
    )
    assert len((started.stdout + started.stderr).splitlines()) == 1
    await_listening(kit)
    again = subprocess.run(
        [*START, "start", kit.folder], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert again.returncode == 1
    assert "already running" in again.stderr
    assert (kit.folder / "console.txt").stat().st_size
    job = subprocess.Popen([sys.executable, "-c", "input()", "nvflare.private", kit.folder], stdin=subprocess.PIPE)
    (server,) = servers(kit)
    os.kill(server, signal.SIGKILL)
    assert job.wait(LIMIT_SECONDS) < 0, "what FLARE has started ends with it"
    subprocess.run([*START, "stop", kit.folder], timeout=LIMIT_SECONDS, check=True)
    assert processes_of(kit.folder) == []
