"""A run whose newest model cannot be trained from goes back by itself, and its record is closed on a full disk."""

import errno
import json
import shutil
from collections import namedtuple

import pytest

from grandrounds.deployment.jobs import write_job
from grandrounds.deployment.simulate import simulate
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.checkpoints import CheckpointFolder
from grandrounds.federation.engine import run_in_process
from grandrounds.federation.server import record, subscribers
from grandrounds.federation.server.record import read_events
from grandrounds.files import exclusive

SITES = ["site-1", "site-2", "site-3"]
OPTIONS = ["controller.rounds=4", "controller.warm_up=1"]


@pytest.fixture
def unusable(tiny, tmp_path):
    """Makes the job, in which every site fails in a round for as long as the trigger is there."""
    trigger = tmp_path / "trigger"
    trigger.touch()

    def make(*options, rounds=(4,)):
        job = tiny("fedperl", *OPTIONS, *options)
        entry = job.client["executors"][0]["executor"]
        entry["path"] = "faulty.Unusable"
        entry["args"] |= {"trigger": str(trigger), "rounds": list(rounds)}
        return job

    make.trigger = trigger
    return make


def failed(job, workspace):
    """The error of a run that fails, and its summary."""
    with pytest.raises(GrandRoundsError) as error:
        simulate(job, workspace, SITES)
    return str(error.value), json.loads((workspace / "state" / "fedperl" / "server" / "summary.json").read_text())


def test_a_round_that_fails_at_every_site_marks_the_checkpoint_and_the_next_start_goes_back_one(
    tiny, run, assert_same_run, unusable, tmp_path
):
    error, summary = failed(unusable(), tmp_path / "run")
    assert "round 4: all 3 sites failed" in error
    assert "the checkpoint after round 3 is marked bad, and the next start goes on after round 2" in error
    assert [(entry["round"], entry["bad"]) for entry in summary["checkpoints"]] == [(1, False), (2, False), (3, True)]
    events = read_events(tmp_path / "run" / "state" / "fedperl" / "server")
    scores = {event["round"]: event["score"] for event in events if event["event"] == "score"}
    assert [entry["score"] for entry in summary["checkpoints"][:2]] == [scores[1], scores[2]]
    unusable.trigger.unlink()
    found = run(unusable(), tmp_path / "run")
    (resumed,) = [event for event in read_events(found.record) if event["event"] == "resume"]
    assert resumed["after_round"] == 2
    assert_same_run(found, run(tiny("fedperl", *OPTIONS), tmp_path / "undisturbed"))


def test_every_further_failure_goes_back_one_more_and_the_oldest_is_kept(unusable, tmp_path):
    errors = [failed(unusable(), tmp_path)[0] for _ in range(3)]
    assert "after round 3 is marked bad, and the next start goes on after round 2" in errors[0]
    assert "after round 2 and 3 is marked bad, and the next start goes on after round 1" in errors[1]
    assert "goes on after round 1" in errors[2]


def test_a_site_that_was_dropped_in_the_round_before_is_named(unusable, tmp_path):
    job = unusable()
    job.client["components"].append(
        {"id": "late", "path": "faulty.FailsOnce", "args": {"at": "site-2", "round_number": 3}}
    )
    error, _ = failed(job, tmp_path)
    assert "in round 3 site-2 was dropped" in error


def test_a_checkpoint_can_be_chosen_also_one_that_is_marked_bad(run, unusable, tmp_path):
    failed(unusable(), tmp_path)
    unusable.trigger.unlink()
    found = run(unusable("controller.resume_from=3"), tmp_path)
    assert [e["after_round"] for e in read_events(found.record) if e["event"] == "resume"] == [3]
    again = run(unusable("controller.resume_from=2"), tmp_path)
    assert [e["round"] for e in read_events(again.record) if e["event"] == "round_end"] == [1, 2, 3, 4]


def test_a_checkpoint_that_is_not_kept_is_refused_with_those_that_are(run, unusable, tmp_path):
    unusable.trigger.unlink()
    run(unusable(), tmp_path)
    with pytest.raises(GrandRoundsError, match=r"has no checkpoint of round 1; kept are 2, 3, 4"):
        simulate(unusable("controller.resume_from=1"), tmp_path, SITES)


def test_sites_that_refuse_say_nothing_about_the_model(tiny, tmp_path):
    job = tiny("fedperl", *OPTIONS)
    job.client["task_result_filters"] = [
        {"tasks": ["train"], "filters": [{"path": "faulty.RefuseFrom", "args": {"round_number": 3}}]}
    ]
    error, _ = failed(job, tmp_path)
    assert "0 of 3 sites gave a valid result" in error
    assert CheckpointFolder(tmp_path / "state" / "fedperl" / "server", {}).rounds() == [1, 2]


Usage = namedtuple("Usage", "total used free")


def test_a_disk_without_room_for_the_next_checkpoint_stops_before_the_round(tiny, run, tmp_path, monkeypatch):
    run(tiny("fedavg", "controller.rounds=2"), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(subscribers.shutil, "disk_usage", lambda folder: Usage(1, 1, 1024**2))
        with pytest.raises(GrandRoundsError, match=r"disk has 1 MiB free .* it goes on after round 2"):
            simulate(tiny("fedavg", "controller.rounds=3"), tmp_path, SITES)
    summary = json.loads((tmp_path / "state" / "fedavg" / "server" / "summary.json").read_text())
    assert (summary["status"], summary["rounds_done"]) == ("failed", 2)
    assert run(tiny("fedavg", "controller.rounds=3"), tmp_path).summary["rounds_done"] == 3


def test_a_full_disk_closes_the_record_from_the_reserve(tiny, run, tmp_path, monkeypatch):
    """The events cannot be appended from round 2 on; only what the reserve gives back can be written."""
    original, reserve = record.append_line, tmp_path / "state" / "fedavg" / "server" / subscribers.RESERVE

    def append(path, content):
        if content.get("round") == 2 and reserve.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        original(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(record, "append_line", append)
        with pytest.raises(OSError, match="No space left"):
            simulate(tiny("fedavg", "controller.rounds=3"), tmp_path, SITES)
    summary = json.loads((reserve.parent / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["reason"].startswith("no room on the server's disk")
    assert not reserve.exists()
    assert run(tiny("fedavg", "controller.rounds=3"), tmp_path).summary["rounds_done"] == 3


def test_torchs_error_on_a_full_disk_is_explained(tmp_path, monkeypatch):
    error = RuntimeError("[enforce fail at inline_container.cc:672] unexpected pos 528384 vs 528280")
    assert subscribers.described(error, tmp_path).startswith("RuntimeError")
    monkeypatch.setattr(subscribers.shutil, "disk_usage", lambda folder: Usage(1, 1, 0))
    assert subscribers.described(error, tmp_path).startswith("no room on the server's disk")


def test_the_reserve_occupies_its_space(tmp_path):
    reserve = subscribers.DiskReserve(tmp_path, lambda: 0)
    reserve.run_started()
    assert (tmp_path / subscribers.RESERVE).stat().st_blocks * 512 >= subscribers.RESERVE_BYTES
    reserve.run_ended()
    assert list(tmp_path.iterdir()) == []
    assert shutil.disk_usage(tmp_path).free


def test_a_job_that_is_refused_for_the_lock_has_a_summary_of_its_own(tiny, run, tmp_path, monkeypatch):
    first = run(tiny("ssfl", "controller.rounds=1"), tmp_path)
    monkeypatch.setenv("GRANDROUNDS_STATE", str(tmp_path / "state"))
    job = write_job(tiny("ssfl", "controller.rounds=2"), tmp_path / "second")
    with exclusive(first.record), pytest.raises(GrandRoundsError):
        run_in_process(job, tmp_path / "other", SITES)
    (own,) = (tmp_path / "other").rglob("results/summary.json")
    summary = json.loads(own.read_text())
    assert summary["status"] == "refused"
    assert "another job is using this run" in summary["reason"]
    assert (summary["rounds_done"], summary["in_use"]) == (1, True)
    assert json.loads((first.record / "summary.json").read_text()) == first.summary
