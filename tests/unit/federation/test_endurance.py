"""A log that cannot be written ends no process, a slow line loses no message, and a process of FLARE shows that it moves."""

import errno
import io
import logging
import os
import threading
from types import SimpleNamespace

import nvflare.fuel.utils.app_config_utils as acu
import pytest
from nvflare.apis.fl_constant import ConfigVarName
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.comm_config import CommConfigurator
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.fuel.sec.audit import Auditor
from nvflare.fuel.utils.config_service import ENV_VAR_PREFIX, ConfigService

from grandrounds.federation import endurance
from grandrounds.federation.endurance import (
    REQUEST_SECONDS,
    STREAM_SETTINGS,
    ask_again_soon,
    outlive_full_logs,
    outlive_slow_lines,
    show_life,
)


class Full(io.StringIO):
    """A file on a full disk."""

    def write(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def enduring(monkeypatch):
    """This process as one of a kit; afterwards Python's and FLARE's functions are the old ones."""
    monkeypatch.setattr(logging.Handler, "handleError", logging.Handler.handleError)
    for name in ("add_event", "add_job_event"):
        monkeypatch.setattr(Auditor, name, getattr(Auditor, name))

    def endure(pause=600.0):
        outlive_full_logs(pause)

    return endure


def logger_to(stream):
    handler = logging.StreamHandler(stream)
    logger = logging.Logger("test")
    logger.addHandler(handler)
    return logger


def test_a_full_log_is_one_remark_and_no_stack(enduring, capsys):
    enduring()
    logger = logger_to(Full())
    for _ in range(1000):
        logger.info("a line")
    assert capsys.readouterr().err == (
        "the console cannot be written (No space left on device): lines are lost until there is room\n"
    )


def test_the_remark_comes_again_after_a_while(enduring, capsys):
    enduring(pause=0.0)
    logger = logger_to(Full())
    logger.info("one")
    logger.info("two")
    assert capsys.readouterr().err.count("cannot be written") == 2


def test_a_rotated_file_on_a_full_disk_writes_again_when_there_is_room(enduring, tmp_path, capsys):
    enduring()
    path = tmp_path / "log.txt"
    handler = logging.FileHandler(path)
    logger = logging.Logger("test")
    logger.addHandler(handler)
    usual = handler.stream
    handler.stream = Full()
    logger.info("lost")
    handler.stream = usual
    logger.info("kept")
    handler.close()
    assert path.read_text() == "kept\n"
    assert str(path) in capsys.readouterr().err


def test_a_full_disk_under_the_standard_error_is_no_error_either(enduring, monkeypatch):
    enduring()
    monkeypatch.setattr("sys.stderr", Full())
    logger_to(Full()).info("a line")


def test_a_wrong_line_is_told_as_before(enduring, capsys):
    enduring()
    logger_to(io.StringIO()).info("%d", "text")
    assert "Logging error" in capsys.readouterr().err


def test_flares_trail_of_commands_on_a_full_disk_ends_no_command(enduring, tmp_path, capsys):
    enduring()
    auditor = Auditor(str(tmp_path / "audit.log"))
    auditor.audit_file.close()
    auditor.audit_file = Full()
    assert auditor.add_event("operator", "list_jobs") == ""
    assert auditor.add_job_event("job", task_name="train") == ""
    assert "audit.log cannot be written" in capsys.readouterr().err


def test_it_is_set_up_once(enduring):
    enduring()
    first = logging.Handler.handleError
    enduring()
    assert logging.Handler.handleError is first


def test_a_living_process_touches_its_file_again_and_again(tmp_path, monkeypatch):
    path, beats, enough = tmp_path / "alive.fl", [], threading.Event()

    def pause(seconds):
        beats.append((seconds, path.exists()))
        path.unlink(missing_ok=True)
        if len(beats) == 3:
            enough.set()
            threading.Event().wait()  # the thread rests

    monkeypatch.setattr(endurance, "time", SimpleNamespace(sleep=pause))
    show_life(tmp_path, seconds=5)
    assert enough.wait(60)
    assert beats == [(5, True)] * 3


@pytest.fixture
def flares_settings(monkeypatch):
    """What FLARE has looked up, which is forgotten afterwards."""
    for name in STREAM_SETTINGS:
        monkeypatch.delenv(f"{ENV_VAR_PREFIX}{name}".upper(), raising=False)
    monkeypatch.setattr(ConfigService, "_var_values", {})
    yield CommConfigurator()
    for name in STREAM_SETTINGS:
        os.environ.pop(f"{ENV_VAR_PREFIX}{name}".upper(), None)


def test_what_is_on_its_way_arrives_on_a_slow_line_before_it_is_sent_again(flares_settings):
    """Also where FLARE had looked its own settings up before."""
    assert flares_settings.get_streaming_retry_wait(5.0) == 5.0
    outlive_slow_lines()
    window, wait = flares_settings.get_streaming_window_size(1), flares_settings.get_streaming_retry_wait(1.0)
    assert window / 150_000 < wait == 30.0
    assert flares_settings.get_streaming_ack_interval(1) < window
    assert flares_settings.get_streaming_chunk_size(1) < window
    assert flares_settings.get_streaming_retry_timeout(1.0) > 2 * wait


@pytest.mark.parametrize("decomposer", [TensorDecomposer, NumpyArrayDecomposer])
def test_what_is_fetched_inside_a_request_is_asked_for_again_as_soon(flares_settings, decomposer):
    name = decomposer()._config_var_name(ConfigVarName.STREAMING_PER_REQUEST_TIMEOUT)
    assert acu.get_positive_float_var(name, 600.0) == 600.0
    outlive_slow_lines()
    assert acu.get_positive_float_var(name, 600.0) == REQUEST_SECONDS


def test_an_operators_own_settings_of_streams_stay(flares_settings, monkeypatch):
    monkeypatch.setenv("NVFLARE_STREAMING_WINDOW_SIZE", "1048576")
    outlive_slow_lines()
    assert flares_settings.get_streaming_window_size(1) == 1048576


@pytest.fixture
def patient(monkeypatch):
    """Lets a process wait as those of our sites: ``patient(300.0)`` gives its seconds, and what asks for progress."""
    monkeypatch.setattr(ByteStreamer, "tx_task_map", {})
    monkeypatch.setattr(Cell, "_send_request", lambda cell, progress_wait_cb=None: progress_wait_cb)

    def prepared(seconds):
        communicator = SimpleNamespace(timeout=seconds)
        engine = SimpleNamespace(client=SimpleNamespace(communicator=communicator))
        for _ in range(2):
            ask_again_soon(SimpleNamespace(get_engine=lambda: engine))
        return communicator.timeout, Cell._send_request(None)

    return prepared


@pytest.mark.parametrize(("flares", "ours"), [(300.0, REQUEST_SECONDS), (5.0, 5.0)])
def test_a_site_asks_again_soon_where_a_request_was_lost(patient, flares, ours):
    seconds, moves = patient(flares)
    assert seconds == ours
    assert not moves()


def sent(number, size):
    """A stream of which nothing has arrived."""
    return SimpleNamespace(sid=number, offset_ack=0, chunk_size=10, stream=SimpleNamespace(get_size=lambda: size))


def test_a_site_waits_while_its_large_update_arrives_and_its_log_says_how_much(patient, caplog):
    """The server answers when it has fetched the update, which may take minutes; small messages come and go meanwhile."""
    _, moves = patient(300.0)
    caplog.set_level("INFO", "grandrounds")
    large, small = sent(1, 200_000_000), sent(2, 8)
    ByteStreamer.tx_task_map[1] = large
    assert moves()
    ByteStreamer.tx_task_map[2] = small
    assert not moves()
    large.offset_ack = 90_000_000
    assert moves()
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("grandrounds")]
    assert ours == ["0.0 of 200.0 MB have arrived", "90.0 of 200.0 MB have arrived"]
    del ByteStreamer.tx_task_map[1]
    assert moves()
    assert not moves()
