"""A site that is late, refuses, has no room or answers nonsense loses its own rounds and costs no other site any."""

import contextlib
import json
import os
import signal

import pytest

from benchmarks.rehearsal.kit_processes import running_module
from grandrounds.errors import Fault

pytestmark = pytest.mark.faults
HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
LEDGER = "the site's privacy ledger cannot be used"
LOGS = ("log.txt", "log.json", "error_log.txt", "log_fl.txt", "audit.log")
"""FLARE's, of a site's own process."""


def test_a_straggler_is_dropped_and_the_others_go_on(run):
    """Its process is stopped for longer than a round may take, as on a machine that swaps."""
    run = run("straggler", grace=25)
    run.await_round(2)
    worker = run.process(run.VICTIM, run.SITE_JOB)
    os.kill(worker, signal.SIGSTOP)
    try:
        run.await_round(3)
    finally:
        os.kill(worker, signal.SIGCONT)
    run.end()
    assert {site for site, _ in run.dropped()} == {run.VICTIM}
    assert all(reason.startswith("no sign of life for 25 s") for _, reason in run.dropped())
    assert run.others_gave_all()
    assert any("round 2 of 4" in line for line in run.reported), "the researcher sees the progress of the run"


def test_a_site_that_refuses_the_job_is_left_out(run):
    """The job asks for a privacy scope that this site does not have."""
    run = run("refused", scope="study", grace=25)
    outcome = run.end()
    summary = outcome.summary
    assert set(outcome.refused) == {run.VICTIM}
    assert "scope" in outcome.refused[run.VICTIM]
    assert summary["contributions"] == {site: run.ROUNDS for site in run.HOSPITALS if site != run.VICTIM}
    assert sorted(summary["records"]) == [site for site in run.HOSPITALS if site != run.VICTIM]


def test_a_site_with_a_damaged_policy_refuses_by_name_and_the_others_finish(federation, run):
    """A class that does not load, written into the file while the site runs, ended every job of every site."""
    path = federation.kits / "hospital-c" / "local" / "privacy.json"
    before = path.read_text()
    content = json.loads(before)
    content["scopes"][0]["task_result_filters"].append({"path": "sabotage.Missing", "args": {}})
    path.write_text(json.dumps(content))
    try:
        run = run("damaged-policy", grace=25)
        outcome = run.end()
    finally:
        path.write_text(before)
    assert set(outcome.refused) == {run.VICTIM}
    assert "privacy.json" in outcome.refused[run.VICTIM]
    assert outcome.summary["contributions"] == {site: run.ROUNDS for site in run.HOSPITALS if site != run.VICTIM}


def test_a_site_with_a_full_disk_reports_an_error_and_rejoins(run, limited):
    run = run("disk-full", "controller.rounds=6", "executor.optimizer=kept")
    run.ROUNDS = 6
    run.await_round(2)
    worker = run.process(run.VICTIM, run.SITE_JOB)
    limited(worker, 1000)
    run.await_drop()
    limited(worker, -1)
    summary = run.end().summary
    assert {site for site, _ in run.dropped()} == {run.VICTIM}
    assert {reason for _, reason in run.dropped()} <= {run.ERROR, Fault.DISK, LEDGER}
    assert run.others_gave_all()
    last = [entry["answered"] for entry in summary["rounds"]][-1]
    assert run.VICTIM in last


def test_an_answer_of_nan_is_not_used(run, spoilt):
    run = run("nan", "controller.rounds=6")
    run.ROUNDS = 6
    run.await_round(2)
    spoilt.touch()
    run.await_drop()
    spoilt.unlink()
    summary = run.end().summary
    assert {site for site, _ in run.dropped()} == {run.VICTIM}
    assert all("NaN or infinite" in reason for _, reason in run.dropped())
    assert run.others_gave_all()
    assert run.VICTIM in summary["records"]


def test_an_absurd_update_does_not_end_the_run(run, spoilt):
    """Its numbers are finite: whether it is bounded, or every site fails with the model it made, the run ends well."""
    run = run("absurd", "controller.rounds=6", attempts=4)
    run.ROUNDS = 6
    run.await_round(3)
    spoilt.write_text("1e30")
    run.wait_until(lambda: run.events()[-1]["event"] == "failed" or any(e.get("round") == 5 for e in run.events()))
    spoilt.unlink()
    summary = run.end().summary
    assert summary["contributions"] == dict.fromkeys(run.HOSPITALS, run.ROUNDS)


def test_a_full_disk_of_the_server_is_the_reason_and_a_later_attempt_finishes(federation, run, small_disk):
    """Half a line of the events, no checkpoint, and a record that is closed all the same."""
    disk = small_disk(federation.kits / federation.server / "grandrounds" / "server-full")
    run = run("server-full", attempts=5)
    run.await_round(3)
    fill(disk)
    run.wait_until(lambda: any("the server's disk" in line for line in run.reported))
    (disk / "filler").unlink()
    outcome = run.end()
    assert 1 < len(outcome.jobs) <= 5
    assert outcome.summary["contributions"] == dict.fromkeys(run.HOSPITALS, run.ROUNDS)
    assert run.same_as_undisturbed()


def test_logs_on_a_full_disk_cost_a_site_nothing(federation, run, restart, small_disk):
    """FLARE's own trail of commands is among them. The site registers, the disk fills, and a run goes well."""
    kit = federation.kits / "hospital-c"
    disk = small_disk(federation.folder / "small-disk")
    restart(kit.name, stopped=True)
    before = {path: path.with_name(f"{path.name}.before") for path in map(kit.joinpath, LOGS) if path.is_file()}
    for path, kept in before.items():
        path.rename(kept)
        path.symlink_to(disk / path.name)
        (disk / path.name).touch()
    try:
        restart(kit.name)
        fill(disk)
        parent = running_module(kit, "client_train")
        outcome = run("logs-full").end()
        assert outcome.summary["contributions"] == dict.fromkeys(HOSPITALS, 4)
        assert running_module(kit, "client_train") == parent
        console = (federation.folder / "logs" / f"{kit.name}.txt").read_text()
        assert "cannot be written (No space left on device)" in console
        (disk / "filler").unlink()
    finally:
        restart(kit.name, stopped=True)
        for path, kept in before.items():
            path.unlink()
            kept.rename(path)


def fill(disk):
    """Leave no byte on a disk."""
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))


def test_a_site_whose_images_are_gone_loses_its_rounds_alone(federation, run):
    """Its own file names a folder that does not exist any more; the gate and the doctor name the file."""
    path = federation.kits / "hospital-c" / "local" / "grandrounds.json"
    run = run("no-images", "controller.rounds=6", grace=25)
    run.ROUNDS = 6
    run.await_round(2)
    path.write_text('{"datasets": {"phantom": {"manifest": "gone.csv", "root": "gone"}}}')
    try:
        summary = run.end().summary
    finally:
        path.unlink()
    assert run.others_gave_all()
    assert set(summary["contributions"]) == set(run.HOSPITALS)
