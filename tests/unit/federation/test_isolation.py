"""A child process that crashes costs one answer; nothing of it is left."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grandrounds.errors import ConfigurationError
from grandrounds.federation.isolation import WorkerLost, WorkerStopped, run_isolated
from grandrounds.options import require_type

CHECK = """
import os, sys
from grandrounds.federation.isolation import run_isolated
if __name__ == "__main__":
    print(run_isolated(os.getpid) != os.getpid())
"""


def test_the_answer_comes_back():
    assert run_isolated(divmod, 17, 5) == (3, 2)


def test_it_is_another_process():
    assert run_isolated(os.getpid) != os.getpid()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_child_is_an_error_that_names_the_signal(number):
    with pytest.raises(WorkerLost, match=number.name):
        run_isolated(signal.raise_signal, number)


def test_a_child_that_exits_is_an_error():
    with pytest.raises(WorkerLost, match="exit status 7"):
        run_isolated(os._exit, 7)


def test_an_exception_keeps_its_kind_and_its_message():
    with pytest.raises(ConfigurationError, match=r"executor\.peers must be an integer, got 'x'"):
        run_isolated(require_type, "x", int, "executor.peers")


def test_an_abort_kills_the_child():
    started = time.monotonic()
    with pytest.raises(WorkerStopped, match="aborted"):
        run_isolated(time.sleep, 60, aborted=lambda: time.monotonic() - started > 0.5)
    assert time.monotonic() - started < 30


def test_a_child_has_a_deadline():
    with pytest.raises(WorkerStopped, match=r"within 0\.5 s"):
        run_isolated(time.sleep, 60, seconds=0.5)


ORPHAN = """
import os, sys, time
from grandrounds.federation.isolation import run_isolated
if __name__ == "__main__":
    print(os.getpid(), flush=True)
    run_isolated(os.system, "sleep 300 # " + sys.argv[1])
"""


def test_the_child_of_a_killed_process_dies_too(tmp_path):
    """FLARE's job process is killed, and what it had started must not go on training."""
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    parent = subprocess.Popen([sys.executable, str(script), tmp_path.name], stdout=subprocess.PIPE, text=True)
    parent.stdout.readline()
    assert until(lambda: sleepers(tmp_path.name))
    parent.kill()
    parent.wait()
    assert until(lambda: not sleepers(tmp_path.name))


def sleepers(mark):
    """Processes of the child: the shell that it has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if b"sleep 300" in command and mark.encode() in command:
                    found.append(entry.name)
    return found


def until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


def test_a_program_without_threads_of_its_own_can_use_it(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(CHECK)
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "True"
