"""The process of a job does not outlive the process that has started it."""

import os
import subprocess
import sys
import time

import pytest

from grandrounds.federation.channels import runs_a_job

CHILD = "from grandrounds.federation.channels import end_with_parent; end_with_parent(0.0, 0.01); print(flush=True); input()"
PARENT = f"""
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=0, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
os._exit(0)
"""


def test_a_process_ends_when_its_parent_is_gone():
    """Its input stays open, so that nothing else ends it."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        deadline = time.monotonic() + 60
        while os.path.exists(f"/proc/{child}"):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("program", "job"),
    [("/nvflare/worker_process.py", True), ("/nvflare/runner_process.py", True), ("/nvflare/client_train.py", False)],
)
def test_only_the_process_of_a_job_is_ended(monkeypatch, program, job):
    monkeypatch.setattr(sys, "argv", [program, "-m", "kit"])
    assert runs_a_job() is job
