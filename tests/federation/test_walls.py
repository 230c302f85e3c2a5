"""What a method tries in its training child stops at a wall, or at the parent's check of what it has sent."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from grandrounds import walls
from grandrounds.deployment.jobs import write_job
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.engine import run_in_process
from grandrounds.federation.site import worker
from grandrounds.federation.site.isolation import WorkerLost, WorkerStopped
from grandrounds.walls import ACCELERATORS, LANDLOCK, SECCOMP, Isolation, device_paths, missing_walls

MISSING = missing_walls()
needs_seccomp = pytest.mark.skipif(SECCOMP in MISSING, reason=f"seccomp: {MISSING.get(SECCOMP)}")
needs_landlock = pytest.mark.skipif(LANDLOCK in MISSING, reason=f"Landlock: {MISSING.get(LANDLOCK)}")
SITE = "site-1"
ALONE = """
import ctypes, os, platform, sys
from grandrounds import walls

walls._landlock_abi = lambda: 5
other = int(sys.argv[1])
os.setpgrp()
walls.raise_walls(walls.Openings(("/",), ("/",), (os.getppid(),)))


def thread(process):
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(walls._NUMBERS[platform.machine()]["tgkill"], process, process, 0):
        raise OSError(ctypes.get_errno(), "")


for send in (
    lambda: os.kill(other, 0),
    lambda: thread(other),
    lambda: os.kill(os.getpid(), 0),
    lambda: thread(os.getpid()),
    lambda: os.kill(0, 0),
):
    try:
        send()
        print("allowed")
    except OSError as error:
        print(type(error).__name__)
"""


def read_if_there(path):
    """The content of a file of a process, which may have ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.fixture(autouse=True, scope="module")
def few_images():
    """Sites in new processes draw as many images as those of users, so all do here."""


@pytest.fixture
def attempt(tmp_path, tiny, monkeypatch, shared_cache):
    """Have the only site train with an attempt: why the run has failed, or nothing."""
    monkeypatch.setenv("GRANDROUNDS_ISOLATION", "process")

    def go(name, target=""):
        job = tiny("fedavg", "controller.rounds=1", "controller.min_sites=1", "problem.backbone=compact")
        entry = job.client["executors"][0]["executor"]
        entry["path"] = "prying.PryingExecutor"
        entry["args"] |= {"attempt": name, "target": str(target)}
        monkeypatch.setenv("GRANDROUNDS_STATE", str(tmp_path / "state"))
        try:
            run_in_process(write_job(job, tmp_path / "job"), tmp_path / "flare", [SITE])
        except GrandRoundsError as error:
            return str(error)
        return ""

    return go


def assert_refused(attempt, caplog, targets):
    """One child tries all; each attempt must end with the kernel's refusal."""
    lines = "\n".join(f"{name}={target}" for name, target in targets.items())
    assert "PermissionError in task train" in attempt("all", lines), caplog.text


@needs_seccomp
def test_calls_that_reach_out_of_the_child_are_refused(attempt, tmp_path, caplog):
    """Sockets, signals to the job and its parent, limits and groups of others, namespaces, modes and owners of files."""
    key = tmp_path / "key"
    key.write_text("x")
    key.chmod(0o600)
    alone = ("socket", "netlink", "unix", "datagrams", "io_uring", "kill", "group", "limits", "semaphores")
    alone += ("join", "signals", "namespace")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        of_files = dict.fromkeys(("mode", "owner", "attribute"), str(key))
        others = {"connect": server.getsockname()[1], "job": os.getpid()}
        assert_refused(attempt, caplog, dict.fromkeys(alone, "") | others | of_files)
        with pytest.raises(TimeoutError):
            server.accept()
    assert key.stat().st_mode & 0o777 == 0o600


@needs_seccomp
def test_what_a_child_is_allowed_to_do_is_named_if_it_must_be_refused(attempt, caplog):
    assert "exit status 7" in attempt("all", "own limits=\nsocket=\nnothing=")
    assert "not refused: own limits, nothing" in caplog.text


@needs_seccomp
@pytest.mark.parametrize("name", ["own limits", "own group", "clone3"])
def test_a_child_works_on_itself_and_libraries_fall_back_to_clone(attempt, name):
    assert attempt(name) == ""


@needs_seccomp
def test_where_landlock_keeps_no_signals_inside_other_processes_get_none(tmp_path):
    script = tmp_path / "alone.py"
    script.write_text(ALONE)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        found = subprocess.run(
            [sys.executable, str(script), str(other.pid)], capture_output=True, text=True, check=True
        )
    assert found.stdout.split() == ["PermissionError", "PermissionError", "allowed", "allowed", "allowed"]


def test_what_leaves_the_childs_group_ends_with_it(attempt, tmp_path):
    assert attempt("escape", tmp_path) == ""
    running = [entry for entry in Path("/proc").glob("[0-9]*/cmdline") if entry.exists()]
    assert not [entry for entry in running if str(tmp_path).encode() in read_if_there(entry)]


def test_a_child_that_does_not_keep_its_state_is_ended(attempt, monkeypatch):
    ended = []
    end = worker._Running.end
    monkeypatch.setattr(worker._Running, "end", lambda child: (ended.append(child), end(child)))
    monkeypatch.setattr(worker, "SECONDS_TO_KEEP", 0.3)
    attempt("hold")
    assert len(ended) == 2  # then another one has tested the model
    assert ended[0].frames.check
    with pytest.raises(WorkerStopped):
        ended[0].frames.check()


def test_a_child_that_does_not_end_has_no_successor(monkeypatch):
    monkeypatch.setattr(worker, "SECONDS_TO_END", 0.1)
    child, running = worker.TrainingChild(object, {}, Isolation.PROCESS), worker._Running.__new__(worker._Running)
    running._process = subprocess.Popen(["sh", "-c", "trap '' TERM; echo; read line"], stdin=PIPE, stdout=PIPE)
    running._process.stdout.readline()
    child._running = running
    try:
        with pytest.raises(WorkerLost):
            child.close()
        assert child._running is running
    finally:
        running._process.kill()
        running._process.communicate()


@needs_landlock
@pytest.mark.skipif(device_paths() != device_paths(*ACCELERATORS), reason="a driver may need it")
def test_memory_that_jobs_share_is_out_of_reach(attempt):
    assert "PermissionError in task train" in attempt("memory")


def test_no_folder_of_features_is_shared_by_jobs(monkeypatch):
    monkeypatch.setenv("GRANDROUNDS_FEATURES", "/features")
    monkeypatch.setenv("GRANDROUNDS_WEIGHTS", "/weights")
    assert {"GRANDROUNDS_FEATURES", "GRANDROUNDS_WEIGHTS"} & worker._kept_variables().keys() == {"GRANDROUNDS_WEIGHTS"}


@needs_landlock
def test_the_ledger_the_record_and_other_images_are_out_of_reach(attempt, tmp_path, caplog):
    target = tmp_path / "flare" / SITE / "local" / "privacy" / "ledger.jsonl"
    target.parent.mkdir(parents=True)
    target.write_text("a line\n")
    names = ("append", "create", "truncate", "read", "link")
    assert_refused(attempt, caplog, dict.fromkeys(names, str(target)))
    assert target.read_text() == "a line\n"
    assert sorted(path.name for path in target.parent.iterdir()) == [target.name]


@pytest.mark.parametrize("name", ["pickle", "list", "oversized", "no tensors", "text", "ask"])
def test_what_is_no_message_is_refused_and_nothing_of_it_is_read(attempt, name, monkeypatch):
    ended = []
    close = worker.TrainingChild.close
    monkeypatch.setattr(worker.TrainingChild, "close", lambda child: (ended.append(child._running), close(child)))
    reason = attempt(name)
    assert SITE in reason
    assert "4711" not in reason
    assert any(ended), "a child that breaks the rules is ended"


def test_the_last_lines_of_a_child_that_ends_are_in_the_sites_log_only(attempt, caplog):
    reason = attempt("exit")
    assert "exit status 7" in reason
    assert "last words" not in reason
    assert "last words" in caplog.text


@pytest.mark.parametrize("name", ["loader", "nothing"])
def test_processes_of_the_child_work(attempt, name):
    assert attempt(name) == ""


@pytest.mark.parametrize(("isolation", "trains"), [("process", True), ("required", False)])
def test_without_walls_a_site_trains_unless_they_are_required(attempt, monkeypatch, isolation, trains, caplog):
    monkeypatch.setenv("GRANDROUNDS_ISOLATION", isolation)
    begin = worker._Running.begin
    monkeypatch.setattr(worker._Running, "begin", lambda child: begin(child) | {SECCOMP: "taken away"})
    assert (attempt("nothing") == "") == trains
    assert "taken away" in caplog.text


@pytest.mark.parametrize(
    ("value", "real", "chosen"), [(None, True, "process"), (None, False, "none"), ("none", True, "none")]
)
def test_the_machine_chooses_and_not_the_job(monkeypatch, value, real, chosen):
    monkeypatch.delenv("GRANDROUNDS_ISOLATION", raising=False)
    if value:
        monkeypatch.setenv("GRANDROUNDS_ISOLATION", value)
    assert Isolation.chosen(real) == chosen


def test_a_machine_of_another_kind_has_no_filter(monkeypatch):
    monkeypatch.setattr(walls.platform, "machine", lambda: "riscv64")
    assert SECCOMP in missing_walls()
