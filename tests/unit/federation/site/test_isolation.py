"""A child process that crashes costs one answer; nothing of it is left."""

import contextlib
import errno
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.site.isolation import WorkerLost, WorkerStopped, ask_parent, run_isolated
from grandrounds.option_annotations import require_type
from grandrounds.privacy.gate.audit import Reason, Refused

CHECK = """
import os, sys
from grandrounds.federation.site.isolation import run_isolated
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


def test_a_child_that_dies_before_it_begins_is_an_error(monkeypatch):
    def die(process):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(multiprocessing.get_context("forkserver").Process, "start", die)
    with pytest.raises(WorkerLost, match="ended before it had begun"):
        run_isolated(os.getpid)


def test_an_exception_keeps_its_kind_and_its_message():
    with pytest.raises(ConfigurationError, match=r"executor\.peers must be an integer, got 'x'"):
        run_isolated(require_type, "x", int, "executor.peers")


def test_an_error_brings_the_place_where_it_was_raised():
    with pytest.raises(ConfigurationError) as caught:
        run_isolated(require_type, "x", int, "executor.peers")
    assert "in require_type" in caught.value.__notes__[0]


def test_tensors_come_back_after_the_child_has_gone():
    """Shared memory would have gone with it."""
    answer = run_isolated(torch.arange, 300_000)
    assert torch.equal(answer, torch.arange(300_000))


def test_the_environment_is_that_of_the_call(monkeypatch):
    run_isolated(os.getpid)
    monkeypatch.setenv("GRANDROUNDS_STATE", "later")
    assert run_isolated(os.getenv, "GRANDROUNDS_STATE") == "later"


def test_log_messages_of_the_child_are_logged_by_the_parent(caplog):
    with caplog.at_level(logging.INFO):
        run_isolated(logging.info, "%s images", 7)
    assert ("root", logging.INFO, "7 images") in caplog.record_tuples


def test_a_child_may_ask():
    assert run_isolated(ask_parent, 20, reply=lambda number: number + 1) == 21


def test_a_question_that_is_refused_is_refused_to_the_child():
    def refuse(question):
        raise ConfigurationError(f"not {question}")

    with pytest.raises(ConfigurationError, match="not this"):
        run_isolated(ask_parent, "this", reply=refuse)


def test_an_error_that_cannot_travel_keeps_its_text_and_stays_one_of_ours():
    def refuse(question):
        raise Refused(Reason.BUDGET, "3 of 2 spent")

    with pytest.raises(GrandRoundsError, match="privacy budget spent: 3 of 2 spent"):
        run_isolated(ask_parent, "may I?", reply=refuse)


def test_only_a_child_has_a_parent_to_ask():
    with pytest.raises(RuntimeError, match="only a child process"):
        ask_parent("anybody?")


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
from grandrounds.federation.site.isolation import run_isolated
if __name__ == "__main__":
    print(os.getpid(), flush=True)
    run_isolated(os.system, "sleep 300 # " + sys.argv[1])
"""


def test_the_child_of_a_killed_process_dies_too(tmp_path):
    """FLARE's job process is killed, and what it had started must not go on training."""
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True)
    parent.stdout.readline()
    assert until(lambda: sleepers(str(tmp_path)))
    parent.kill()
    parent.wait()
    assert until(lambda: not sleepers(str(tmp_path)))


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


def until(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


@pytest.mark.parametrize("length", [0, 120])
def test_a_program_can_use_it_also_where_the_temporary_folder_has_a_long_path(tmp_path, length):
    """Every site of a rehearsal failed, because a socket's path has at most 107 bytes."""
    script = tmp_path / "program.py"
    script.write_text(CHECK)
    folder = tmp_path / "t" if not length else tmp_path / ("t" * length)
    folder.mkdir()
    program = [sys.executable, str(script)]
    surroundings = {**os.environ, "TMPDIR": str(folder)}
    ended = subprocess.run(program, env=surroundings, capture_output=True, text=True, timeout=600, check=True)
    assert ended.stdout.strip() == "True"
