"""A site that is late, refuses, has no room or answers nonsense loses its own rounds and costs no other site any."""

import json
import os
import signal

import pytest

pytestmark = pytest.mark.faults


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
    assert all(reason.startswith("no answer within 25 s") for _, reason in run.dropped())
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
    assert sorted(summary["test"]) == [site for site in run.HOSPITALS if site != run.VICTIM]


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
    assert set(run.dropped()) == {(run.VICTIM, run.ERROR)}
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
    assert run.VICTIM in summary["test"]
