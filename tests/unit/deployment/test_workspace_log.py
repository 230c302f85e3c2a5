import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback

import pytest

from grandrounds.deployment.processes import run_logged
from grandrounds.deployment.workspace import logging_to


def test_output_goes_to_the_log_and_the_status_comes_back(tmp_path):
    code = "import os, sys; print(os.environ['WORD'], os.getcwd()); print('bad', file=sys.stderr); sys.exit(3)"
    status = run_logged([sys.executable, "-c", code], tmp_path / "log", {**os.environ, "WORD": "hello"}, tmp_path)
    assert status == 3
    assert sorted((tmp_path / "log").read_text().split()) == sorted(["hello", str(tmp_path), "bad"])


@pytest.fixture
def interruptible():
    """A program that a shell has put into the background may ignore interruptions."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_stops_the_program_before_it_is_passed_on(tmp_path):
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    log, main = tmp_path / "log", threading.get_ident()

    def waits():
        frames = [frame for frame, _ in traceback.walk_stack(sys._current_frames()[main])]
        return any(frame.f_code is subprocess.Popen.wait.__code__ for frame in frames)

    def interrupt_when_started():
        while not (log.exists() and log.read_text() and waits()):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt_when_started, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run_logged([sys.executable, "-c", code], log, os.environ, tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text().split()[0]), 0)


def test_messages_logged_in_the_block_are_only_in_the_file(tmp_path, capsys):
    before = list(logging.getLogger().handlers)
    with logging_to(tmp_path / "deep" / "run.log"):
        logging.getLogger("grandrounds.somewhere").warning("look at %s", "site-2")
    logging.getLogger("grandrounds.somewhere").warning("later")
    text = (tmp_path / "deep" / "run.log").read_text()
    assert "WARNING grandrounds.somewhere: look at site-2" in text
    assert "later" not in text
    assert logging.getLogger().handlers == before
    assert "site-2" not in capsys.readouterr().err
