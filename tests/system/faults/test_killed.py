"""Processes of a federation are killed by their ids: the run ends with a model, and its record names what was lost."""

import json
import math
import os
import re
import signal
import time
import uuid

import pytest

from grandrounds.deployment import submission
from grandrounds.deployment.kit.read import processes_of, supervisor
from grandrounds.deployment.local_federation import await_clients
from grandrounds.errors import Fault
from grandrounds.federation.server.record import EVENTS, SUMMARY

pytestmark = pytest.mark.faults

A_SITES_JOB, SERVERS_JOB, SERVERS_PARENT = (
    ("hospital-c", "worker_process"),
    ("server", "runner_process"),
    ("server", "server_train"),
)


def test_a_killed_training_costs_the_site_its_round(run):
    """As when the system needs its memory: the job lives on, and the site comes back."""
    run = run("killed-training")
    run.await_round(2)
    os.kill(run.wait_until(lambda: run.training_child(run.VICTIM)), signal.SIGKILL)
    outcome = run.end()
    ((site, reason),) = run.dropped()
    assert site == run.VICTIM
    assert reason in (run.ERROR, Fault.OTHER), "it was killed after it had read an image, or before"
    assert re.search("the child process (was ended by SIGKILL|ended before it had begun)", run.log_of(run.VICTIM))
    assert len(outcome.jobs) == 1
    assert outcome.status == "FINISHED:COMPLETED"
    assert run.others_gave_all()
    assert outcome.summary["contributions"][run.VICTIM] == run.ROUNDS - 1
    assert run.VICTIM in outcome.summary["records"]


@pytest.mark.parametrize(
    ("participant", "module"),
    [A_SITES_JOB, SERVERS_JOB, SERVERS_PARENT],
    ids=["site's job process", "server's job process", "server's parent process"],
)
def test_a_killed_job_is_resumed_and_gives_the_same_model(run, participant, module):
    """FLARE ends or forgets the job; submitted again, it goes on after the last complete round, and no bit differs."""
    run = run(f"killed-{module}", attempts=2)
    run.await_round(3)
    os.kill(run.process(participant, module), signal.SIGKILL)
    outcome = run.end()
    assert len(outcome.jobs) == 2
    assert any(event["event"] == "resume" and event["after_round"] >= 2 for event in run.events())
    assert outcome.summary["contributions"] == dict.fromkeys(run.HOSPITALS, run.ROUNDS)
    assert run.same_as_undisturbed()


def test_a_server_that_is_killed_while_it_writes_a_checkpoint_goes_on_from_the_one_before(run):
    """It is stopped when the temporary file is seen; if the file is complete by then, a later round is waited for."""
    run = run("torn-checkpoint", "controller.rounds=12", attempts=2)
    run.ROUNDS = 12
    run.await_round(2)
    job = run.process("server", "runner_process")
    torn = run.wait_until(lambda: stopped_at(job, run.record, ".round_*.pt.*"))
    os.kill(job, signal.SIGKILL)
    outcome = run.end()
    done = int(re.search(r"round_(\d+)", torn.name).group(1)) - 1
    assert any(event["event"] == "resume" and event["after_round"] == done for event in run.events())
    assert outcome.summary["contributions"] == dict.fromkeys(run.HOSPITALS, run.ROUNDS)
    assert not torn.exists(), "half a checkpoint is removed"


def with_other_bytes(content):
    return content[:9000] + bytes(value ^ 0xFF for value in content[9000:13096]) + content[13096:]


def halved(content):
    return content[: len(content) // 2]


@pytest.mark.parametrize("damage", [with_other_bytes, halved])
def test_a_damaged_newest_checkpoint_costs_one_round_and_is_told(run, damage):
    """It changes on the disk while the server is away; the watching researcher reads it, and both records agree."""
    run = run(f"damaged-{damage.__name__}", "controller.rounds=8", attempts=2)
    run.ROUNDS = 8
    run.await_round(5)
    os.kill(run.process("server", "runner_process"), signal.SIGKILL)
    newest = max(run.record.glob("round_*.pt"))
    newest.write_bytes(damage(newest.read_bytes()))
    outcome = run.end()
    (remark,) = outcome.summary["remarks"]
    assert remark.startswith(f"the checkpoint after round {int(newest.stem[-5:])} is marked bad")
    assert remark in run.reported
    assert json.loads((run.record / SUMMARY).read_text()) == outcome.summary
    assert outcome.summary["contributions"] == dict.fromkeys(run.HOSPITALS, run.ROUNDS)
    assert run.same_as_undisturbed()


def test_a_job_that_the_server_does_not_know_is_lost_at_once(federation):
    """As after the server was restored from an archive: the answer will not change, so nobody waits for another one."""
    reported, kit = [], federation.kit(federation.researcher)
    assert submission._watch(kit, str(uuid.uuid4()), reported.append, patience=math.inf, rejoin=False) == "lost"
    assert len(reported) == 1


def stopped_at(process, folder, pattern):
    """Stop a process and return the file of this pattern that it is writing; if there is none, it goes on."""
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        if any(folder.glob(pattern)):
            os.kill(process, signal.SIGSTOP)
            if found := next(iter(folder.glob(pattern)), None):
                return found
            os.kill(process, signal.SIGCONT)
    return None


def test_two_jobs_at_once_wait_for_a_hospital_that_stands_still(federation, run):
    """All its processes are stopped for a minute while both train, as on a machine that sleeps; nothing is lost."""
    runs = [run(name, "controller.round_timeout=300") for name in ("still-1", "still-2")]
    for each in runs:
        each.await_round(2)
    stopped = processes_of(federation.kits / "hospital-c")
    assert len(stopped) == 4, "the start script, the client, and a process for each job"
    signal_all(stopped, signal.SIGSTOP)
    try:
        time.sleep(60)
    finally:
        signal_all(stopped, signal.SIGCONT)
    for each in runs:
        summary = each.end().summary
        assert summary["contributions"] == dict.fromkeys(each.HOSPITALS, each.ROUNDS)
        assert len(each.outcome.jobs) == 1
    assert runs[0].same_as_undisturbed()


def test_a_server_that_stands_still_for_more_than_a_minute_goes_on(federation, run):
    """All its processes, as on a machine that sleeps."""
    run = run("server-still", "controller.round_timeout=300")
    run.await_round(2)
    stopped = processes_of(federation.kits / federation.server)
    signal_all(stopped, signal.SIGSTOP)
    try:
        time.sleep(75)
    finally:
        signal_all(stopped, signal.SIGCONT)
    summary = run.end().summary
    assert summary["contributions"] == dict.fromkeys(run.HOSPITALS, run.ROUNDS)
    assert len(run.outcome.jobs) == 1
    assert run.same_as_undisturbed()


def test_a_killed_start_script_costs_no_round_and_the_health_tells_it(federation, run, restart, grandrounds):
    """Nobody would start the site again, which otherwise goes on."""
    kit = federation.kits / "hospital-c"
    run = run("killed-script")
    run.await_round(2)
    os.kill(*supervisor(federation.kit("hospital-c")), signal.SIGKILL)
    assert run.end().summary["contributions"] == dict.fromkeys(run.HOSPITALS, run.ROUNDS)
    status, reported = grandrounds("status", "--kit", kit)
    assert status == 1, reported
    assert "what starts it again after a crash has ended" in reported
    restart("hospital-c")


def test_a_site_that_is_stopped_while_it_starts_leaves_nothing_and_starts_again(federation, run, restart, grandrounds):
    kit = federation.kits / "hospital-c"
    restart("hospital-c", wait=False)
    status, reported = grandrounds("kit", "stop", kit)
    assert status == 0, reported
    assert processes_of(kit) == []
    restart("hospital-c")
    run = run("stopped-at-start")
    assert run.end().summary["contributions"] == dict.fromkeys(run.HOSPITALS, run.ROUNDS)


def signal_all(processes, number):
    for process in processes:
        os.kill(process, number)


def test_a_submission_that_is_killed_is_taken_up_by_the_same_command(run, submission):
    """The job goes on without it; further ones are refused until it has ended. No round is done again."""
    rounds = "controller.rounds=30"  # longer than the command waits between two looks
    with submission("taken-up", rounds) as killed:
        assert any(re.search(r"round \d+ of 30", line) for line in killed.stderr)
        killed.kill()
    run = run("taken-up", rounds, again=True, attempts=5)
    run.ROUNDS = 30
    run.end()
    assert (run.record / EVENTS).read_text().count('"round_end"') == 30


def test_a_returning_site_rejoins_with_the_same_model(run):
    """FLARE does not let it into the job that runs: this is stopped, and the next goes on with all sites."""
    run = run("lost-and-back", "controller.rounds=6", grace=100, attempts=2)
    run.ROUNDS = 6
    run.await_round(3)
    os.kill(run.process(run.VICTIM, run.SITE_PARENT), signal.SIGKILL)
    outcome = run.end()
    assert len(outcome.jobs) == 2
    assert any(f"{run.VICTIM} is back" in line for line in run.reported)
    assert outcome.summary["contributions"] == dict.fromkeys(run.HOSPITALS, run.ROUNDS)
    assert run.same_as_undisturbed()


def test_a_lost_site_is_named_and_the_others_finish(federation, run):
    """FLARE starts the site again, but does not let it join the job that runs."""
    run = run("lost-parent", grace=25)
    run.await_round(3)
    os.kill(run.process(run.VICTIM, run.SITE_PARENT), signal.SIGKILL)
    summary = run.end().summary
    assert summary["contributions"][run.VICTIM] < run.ROUNDS
    assert run.others_gave_all()
    assert {site for site, _ in run.dropped()} == {run.VICTIM}
    await_clients(federation, run.HOSPITALS)
