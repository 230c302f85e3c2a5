"""Processes are found by who started them, and their memory is that of the system."""

import os
import subprocess
import sys
import time

import pytest

from grandrounds.deployment.process_tree import children_of, resident_bytes, running_module, training_child
from grandrounds.federation.site.isolation import run_isolated


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
    deadline = time.monotonic() + 20
    while resident_bytes(sleeper) < 64 << 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert 64 << 20 <= resident_bytes(sleeper) < 200 << 20
    assert resident_bytes(2**22 + 1) == 0


def test_a_training_child_is_found_while_it_works():
    seen = []
    run_isolated(time.sleep, 1.0, aborted=lambda: seen.append(training_child(os.getpid())) or False)
    assert any(seen)
    assert set(seen) - {None} <= set(range(2**22))


def test_a_folder_without_processes_has_none(tmp_path):
    assert running_module(tmp_path, "worker_process") == []
