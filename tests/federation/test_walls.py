"""What a method tries in its training child stops at a wall, or at the parent's check of what it has sent."""

import socket

import pytest

from grandrounds.deployment.jobs import write_job
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.engine import run_in_process
from grandrounds.federation.site import walls, worker
from grandrounds.federation.site.isolation import Isolation
from grandrounds.federation.site.walls import LANDLOCK, SECCOMP, missing_walls

MISSING = missing_walls()
needs_seccomp = pytest.mark.skipif(SECCOMP in MISSING, reason=f"seccomp: {MISSING.get(SECCOMP)}")
needs_landlock = pytest.mark.skipif(LANDLOCK in MISSING, reason=f"Landlock: {MISSING.get(LANDLOCK)}")
SITE = "site-1"


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


@needs_seccomp
@pytest.mark.parametrize("name", ["socket", "netlink", "unix", "datagrams", "io_uring"])
def test_a_socket_is_refused(attempt, name):
    assert "PermissionError in task train" in attempt(name)


@needs_seccomp
def test_nothing_on_this_machine_is_connected_to(attempt):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        assert "PermissionError in task train" in attempt("connect", server.getsockname()[1])
        with pytest.raises(TimeoutError):
            server.accept()


@needs_seccomp
def test_the_parent_gets_no_signal(attempt):
    assert "PermissionError in task train" in attempt("kill")


@needs_seccomp
@pytest.mark.parametrize("name", ["group", "limits", "semaphores"])
def test_the_parent_and_what_outlives_the_child_are_out_of_reach(attempt, name):
    assert "PermissionError in task train" in attempt(name)


@needs_seccomp
def test_a_child_sees_its_own_limits(attempt):
    assert attempt("own limits") == ""


@needs_seccomp
@pytest.mark.parametrize("name", ["mode", "owner", "attribute"])
def test_modes_owners_and_attributes_of_files_stay(attempt, name, tmp_path):
    target = tmp_path / "key"
    target.write_text("x")
    target.chmod(0o600)
    assert "PermissionError in task train" in attempt(name, target)
    assert target.stat().st_mode & 0o777 == 0o600


@needs_landlock
@pytest.mark.parametrize("name", ["append", "create", "truncate", "read", "link"])
def test_the_ledger_the_record_and_other_images_are_out_of_reach(attempt, name, tmp_path):
    target = tmp_path / "flare" / SITE / "local" / "privacy" / "ledger.jsonl"
    target.parent.mkdir(parents=True)
    target.write_text("a line\n")
    assert "PermissionError in task train" in attempt(name, target)
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
