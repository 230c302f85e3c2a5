"""A submitted job is watched to its end, and submitted again as often as was allowed, and no more."""

import itertools
import json
from collections import deque
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from grandrounds.deployment import retrying, submission
from grandrounds.deployment.job_watch import NoSuchJob
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.submission import submit_and_watch, with_roster
from grandrounds.errors import GrandRoundsError
from grandrounds.protocol.refusal import Refusal

BOTH, NOBODY = ("a", "b"), ()
FINE, DEAD = "FINISHED:COMPLETED", "FINISHED:EXECUTION_EXCEPTION"


class Server:
    """Plays FLARE's server: each submitted job goes through the moments of its script.

    A moment is FLARE's status, whether the job has a process, and the sites that are at work in it.
    """

    def __init__(self, *scripts, summaries, connected=BOTH):
        self.scripts, self.summaries = deque(map(deque, scripts)), deque(summaries)
        self.connected = iter([connected] if isinstance(connected, tuple) else connected)
        self.sites, self.submitted, self.aborted, self.deployed = (), [], [], ["server: OK", "a: OK"]

    @contextmanager
    def session(self, kit, *arguments):
        yield self

    def submit_job(self, folder):
        self.submitted.append(folder)
        self.moments = self.scripts.popleft()
        return f"job-{len(self.submitted)}"

    def get_job_meta(self, job):
        status, self.alive, self.working = self.moments[0] if len(self.moments) == 1 else self.moments.popleft()
        if isinstance(status, Exception):
            raise status
        return {"status": status, "job_deploy_detail": self.deployed}

    def get_system_info(self):
        self.sites = next(self.connected, self.sites)
        clients = [SimpleNamespace(name=site) for site in self.sites]
        jobs = [SimpleNamespace(job_id=f"job-{len(self.submitted)}")] if self.submitted and self.alive else []
        return SimpleNamespace(client_info=clients, job_info=jobs)

    def get_client_job_status(self):
        job = f"job-{len(self.submitted)}"
        at_work = [{"client_name": site, "job_id": job} for site in self.working]
        return at_work + [{"client_name": site, "status": "no_jobs"} for site in BOTH if site not in self.working]

    def abort_job(self, job):
        self.aborted.append(job)
        self.moments = deque([("FINISHED:ABORTED", False, NOBODY)])

    def show_stats(self, job, target):
        return {}

    def download_job_result(self, job, out):
        place = Path(out) / job / "workspace" / "results"
        place.mkdir(parents=True)
        left = self.summaries.popleft()
        (place / "summary.json").write_text(json.dumps(left if isinstance(left, dict) else {"status": left}))
        return str(place.parents[1])


@pytest.fixture
def go(monkeypatch, tmp_path):
    """Submits a job to a server, at a clock that advances ten seconds with every look."""
    clock = itertools.count(0, 10)

    def submit(server, attempts=1, mandatory=(), patience=200.0, slept=None, resume_from=None):
        sleep = (lambda _: None) if slept is None else slept.append
        for module in (submission, retrying):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=sleep))
        monkeypatch.setattr(submission, "admin_session", server.session)
        reported = []
        job = with_roster(load_job("fedperl"), mandatory=mandatory, min_sites=1)
        job = job.with_values({("controller", "resume_from"): resume_from})
        return submit_and_watch(None, job, tmp_path / "out", reported.append, attempts, patience), reported

    return submit


RUNS, ENDS, DIES = ("RUNNING", True, BOTH), (FINE, False, NOBODY), (DEAD, False, NOBODY)


def test_a_job_that_finishes_is_submitted_once(go):
    server = Server([RUNS, ENDS], summaries=["finished"])
    outcome, _ = go(server, attempts=5)
    assert (outcome.finished, outcome.jobs, outcome.status) == (True, ("job-1",), FINE)


def test_a_job_that_dies_goes_on_under_another_number(go):
    server = Server([RUNS, DIES], [RUNS, ENDS], summaries=["running", "finished"])
    outcome, reported = go(server, attempts=5)
    assert (outcome.finished, outcome.jobs) == (True, ("job-1", "job-2"))
    assert "submitted as job-2 (attempt 2 of 5)" in reported


@pytest.mark.parametrize("attempts", [1, 3])
def test_no_job_is_submitted_more_often_than_was_allowed(go, attempts):
    server = Server(*[[RUNS, DIES]] * 5, summaries=["failed"] * 5)
    outcome, _ = go(server, attempts)
    assert (outcome.finished, len(outcome.jobs), outcome.status) == (False, attempts, DEAD)


def test_a_job_whose_server_has_died_is_lost_and_goes_on(go):
    """FLARE reports RUNNING for ever."""
    server = Server([RUNS, ("RUNNING", False, NOBODY)], [ENDS], summaries=["finished"])
    outcome, reported = go(server, attempts=2)
    assert outcome.finished
    assert "job job-1 has ended: lost; the run: left no summary" in reported


def test_a_lost_server_is_waited_for(go):
    gone = (GrandRoundsError("no connection"), False, NOBODY)
    outcome, reported = go(Server([RUNS, gone, RUNS, ENDS], summaries=["finished"]))
    assert outcome.finished
    assert "waiting: no connection" in reported


def test_a_server_that_stays_away_is_spoken_of_once(go):
    gone = (GrandRoundsError("no connection"), False, NOBODY)
    _, reported = go(Server([RUNS, gone, gone, gone, RUNS, ENDS], summaries=["finished"]))
    assert reported.count("waiting: no connection") == 1


def test_a_job_that_a_restored_server_does_not_know_is_lost_at_once(go):
    slept = []
    forgotten = (NoSuchJob("the server refuses: no such job"), False, NOBODY)
    server = Server([RUNS, forgotten], [RUNS, ENDS], summaries=["finished"])
    outcome, reported = go(server, attempts=2, slept=slept)
    assert (outcome.finished, outcome.jobs) == (True, ("job-1", "job-2"))
    assert "the server does not know job-1 any more; was it restored from an archive?" in reported
    assert not any(line.startswith("waiting") for line in reported)
    assert len(slept) == 2, "one pause after each look at a running job"


def test_a_job_that_the_server_refuses_is_not_tried_again(go):
    refused = {"status": "refused", "reason": "the checkpoint is of another configuration", "rounds_done": 3}
    outcome, _ = go(Server([RUNS, DIES], summaries=[refused]), attempts=5)
    assert (outcome.not_taken, len(outcome.jobs)) == (True, 1)


def test_a_run_that_another_job_has_is_waited_for(go):
    """The command that had submitted it was killed, and its job goes on."""
    in_use = {"status": "refused", "reason": "another job is using this run", "rounds_done": 3, "in_use": True}
    slept = []
    server = Server([RUNS, DIES], [RUNS, DIES], [RUNS, ENDS], summaries=[in_use, in_use, "finished"])
    outcome, reported = go(server, attempts=5, slept=slept)
    assert (outcome.finished, len(outcome.jobs)) == (True, 3)
    assert "the reason: another job is using this run" in reported
    assert [pause for pause in slept if pause >= 5] == [5.0, 15.0]


def test_a_checkpoint_that_was_asked_for_is_asked_for_again_where_another_job_has_the_run(go, monkeypatch):
    """And in no attempt after one that has taken up the run."""
    asked, write = [], submission.write_job

    def noted(job, folder):
        asked.append(job.value("controller", "resume_from"))
        return write(job, folder)

    monkeypatch.setattr(submission, "write_job", noted)
    in_use = {"status": "refused", "reason": "another job is using this run", "rounds_done": 3, "in_use": True}
    server = Server([RUNS, DIES], [RUNS, DIES], [RUNS, ENDS], summaries=[in_use, "failed", "finished"])
    go(server, attempts=5, resume_from=2)
    assert asked == [2, 2, None]


def test_patience_begins_when_the_server_goes_and_not_when_the_run_began(go):
    gone = (GrandRoundsError("no connection"), False, NOBODY)
    outcome, _ = go(Server([*[RUNS] * 40, gone, RUNS, ENDS], summaries=["finished"]), patience=50.0)
    assert outcome.finished


def test_a_result_is_fetched_when_the_server_is_back(go, monkeypatch):
    server = Server([RUNS, ENDS], summaries=["finished"])
    away, download = iter([True, True, False]), server.download_job_result

    def sometimes(job, out):
        if next(away):
            raise GrandRoundsError("no connection")
        return download(job, out)

    monkeypatch.setattr(server, "download_job_result", sometimes)
    outcome, reported = go(server)
    assert outcome.finished
    assert reported.count("waiting: no connection") == 1


def test_a_server_that_stays_away_ends_the_watch(go):
    with pytest.raises(GrandRoundsError, match="no connection"):
        go(Server([RUNS, (GrandRoundsError("no connection"), False, NOBODY)], summaries=[]), attempts=9)


def test_a_mandatory_site_is_waited_for_before_the_job_continues(go):
    there, gone = BOTH, ("b",)
    # It is looked at once before each submission and at every moment of a job.
    connected = [there, there, there, gone, gone, there]
    server = Server([RUNS, DIES], [ENDS], summaries=["failed", "finished"], connected=connected)
    outcome, reported = go(server, attempts=2, mandatory=["a"])
    assert (outcome.finished, len(outcome.jobs)) == (True, 2)
    assert sum(line.startswith("waiting: a is mandatory") for line in reported) == 1


def test_the_first_submission_does_not_wait_for_sites(go):
    server = Server([ENDS], summaries=[], connected=("b",))
    with pytest.raises(GrandRoundsError, match="a is mandatory and not connected"):
        go(server, attempts=2, mandatory=["a"])
    assert server.submitted == []


def test_attempts_that_get_no_further_are_followed_by_longer_and_longer_pauses(go):
    summaries = [{"status": "failed", "reason": "full", "rounds_done": rounds} for rounds in (2, 2, 2, 3, 3)]
    server, slept = Server(*[[RUNS, DIES]] * 5, summaries=summaries), []
    outcome, reported = go(server, attempts=5, slept=slept)
    assert not outcome.finished
    assert [seconds for seconds in slept if seconds >= 5] == [5.0, 15.0]
    assert "no further round was completed; the next attempt is in 15 s" in reported
    assert reported.count("the reason: full") == 4


ALONE = ("RUNNING", True, ("a",))


def test_a_returning_site_rejoins_in_the_next_job(go):
    server = Server([RUNS, *[ALONE] * 9], [RUNS, ENDS], summaries=["aborted", "finished"])
    outcome, reported = go(server, attempts=2)
    assert (outcome.finished, server.aborted) == (True, ["job-1"])
    assert "b is back; the job is stopped, to continue with all sites" in reported


def test_without_another_attempt_the_job_goes_on_with_those_it_has(go):
    server = Server([RUNS, *[ALONE] * 9, ENDS], summaries=["finished"])
    outcome, _ = go(server, attempts=1)
    assert (outcome.finished, server.aborted) == (True, [])


@pytest.mark.parametrize(
    "moments",
    [
        [ALONE] * 9,  # it has refused the job, and was never at work in it
        [RUNS, *[("RUNNING", True, NOBODY)] * 9],  # the job is ending, and all sites have stopped
    ],
    ids=["a site that refuses", "the end of a job"],
)
def test_a_site_that_is_not_back_stops_no_job(go, moments):
    server = Server([*moments, ENDS], summaries=["finished"])
    assert go(server, attempts=3)[0].finished
    assert server.aborted == []


def test_a_site_that_has_not_taken_the_job_is_named_once_and_in_the_outcome(go):
    server = Server([ALONE, ALONE, ENDS], summaries=["finished"])
    server.deployed = ["server: OK", "a: OK", "b: scope 'study' is not allowed"]
    outcome, reported = go(server)
    assert outcome.refused == {"b": "scope 'study' is not allowed"}
    assert reported.count("b has not accepted the job: scope 'study' is not allowed") == 1


def test_clients_that_cannot_be_asked_stop_no_job(go, monkeypatch):
    server = Server([RUNS, RUNS, ENDS], summaries=["finished"])

    def fail():
        raise RuntimeError("no responses from clients")

    monkeypatch.setattr(server, "get_client_job_status", fail)
    assert go(server, attempts=3)[0].finished


REFUSAL = Refusal("no rule lets sums out", "releases", "{...}")
NOTED = {"a": asdict(REFUSAL), "b": asdict(replace(REFUSAL, final=False))}


@pytest.mark.parametrize(
    ("summary", "at_arrival"),
    [({"status": "failed", "final": True, "refusals": NOTED}, "OK"), ({}, str(REFUSAL))],
)
def test_what_sites_refuse_for_good_is_not_submitted_again(go, summary, at_arrival):
    server = Server(*[[RUNS, DIES]] * 2, summaries=[summary] * 2)
    server.deployed = ["server: OK", f"a: {at_arrival}"]
    outcome, reported = go(server, attempts=5)
    assert (outcome.jobs, outcome.final, outcome.refusals) == (("job-1",), True, {"a": REFUSAL})
    assert any(REFUSAL.cause in line for line in reported) is (at_arrival != "OK")


def test_options_that_do_not_fit_are_not_submitted_again(go):
    server = Server([RUNS, DIES], summaries=[{"status": "failed", "final": True, "reason": "peers are single models"}])
    outcome, _ = go(server, attempts=5)
    assert (outcome.jobs, outcome.final, outcome.refusals) == (("job-1",), True, {})


def test_a_refusal_that_may_pass_is_followed_by_another_attempt(go):
    server = Server([RUNS, DIES], [RUNS, ENDS], summaries=[{"status": "failed", "final": False}, "finished"])
    server.deployed = ["server: OK", "a: the disk is full"]
    assert go(server, attempts=5)[0].jobs == ("job-1", "job-2")
