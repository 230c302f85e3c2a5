"""A child process ends with its parent, and its end has words."""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grandrounds.errors import ConfigurationError
from grandrounds.federation.site.isolation import described_end
from grandrounds.walls import Isolation

ORPHAN = """
import os, subprocess, sys, time
from grandrounds.federation.site.isolation import become_child
if len(sys.argv) == 3:
    become_child(os.getppid())
    os.system("sleep 300 # " + sys.argv[1])
else:
    subprocess.Popen([sys.executable, __file__, sys.argv[1], "child"])
    print("begun", flush=True)
    time.sleep(300)
"""


@pytest.mark.parametrize(
    ("status", "words"), [(-signal.SIGKILL, "SIGKILL; the system"), (-signal.SIGSEGV, "SIGSEGV"), (7, "exit status 7")]
)
def test_an_end_has_words(status, words):
    assert words in described_end(status)


def test_a_word_that_is_no_choice_is_refused(monkeypatch):
    monkeypatch.setenv("GRANDROUNDS_ISOLATION", "off")
    with pytest.raises(ConfigurationError, match="GRANDROUNDS_ISOLATION"):
        Isolation.chosen(real=True)


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
