"""Runs are started a few at a time; processes are found by who started them, and their memory is the system's."""

import os
import subprocess
import sys
import time

import pytest

from benchmarks.processes import machine, resident_bytes, run_all
from benchmarks.rehearsal.kit_processes import children_of, running_module, training_child
from grandrounds.errors import GrandRoundsError


def touching(path, status=0):
    return [sys.executable, "-c", f"open({str(path)!r}, 'w').close(); raise SystemExit({status})"]


def test_all_commands_run(tmp_path):
    run_all([touching(tmp_path / name) for name in "abc"], workers=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_a_failure_is_raised_when_the_others_are_done(tmp_path):
    commands = [touching(tmp_path / "a", status=3), touching(tmp_path / "b")]
    with pytest.raises(GrandRoundsError, match=r"1 runs failed: .*\(exit status 3\)"):
        run_all(commands, workers=1)
    assert (tmp_path / "b").exists()


def test_the_machine_has_a_processor_and_cores():
    found = machine()
    assert found["processor"]
    assert found["cores"] >= 1


def test_no_command_starts_when_there_is_to_be_no_more(tmp_path):
    run_all(
        [touching(tmp_path / "a"), touching(tmp_path / "late")], workers=1, more=lambda: not list(tmp_path.iterdir())
    )
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.fixture
def sleeper():
    child = subprocess.Popen([sys.executable, "-c", "import time; block = bytearray(64 << 20); time.sleep(60)"])
    yield child.pid
    child.kill()
    child.wait()


def test_a_child_is_found_and_is_gone_with_its_end(sleeper):
    assert sleeper in children_of(os.getpid())
    assert children_of(sleeper) == []


def test_memory_is_counted_in_bytes(sleeper):
    deadline = time.monotonic() + 300
    while resident_bytes(sleeper) < 64 << 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert 64 << 20 <= resident_bytes(sleeper) < 200 << 20
    assert resident_bytes(2**22 + 1) == 0


def test_a_training_child_is_found_while_it_works():
    assert training_child(os.getpid()) is None
    code = "import os; child = os.fork(); child and print(child, flush=True); os.read(0, 1)"
    program = [sys.executable, "-c", code, "training_child"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        child = int(keeper.stdout.readline())
        assert training_child(os.getpid()) == child


def test_a_folder_without_processes_has_none(tmp_path):
    assert running_module(tmp_path, "worker_process") == []
