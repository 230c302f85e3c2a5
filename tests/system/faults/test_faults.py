"""Processes of a federation are killed by their ids: the run ends with a model, and its record says what was lost."""

import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
import torch

from grandrounds.deployment.jobs import load_job, with_options
from grandrounds.deployment.kit import processes_of
from grandrounds.deployment.local_federation import await_sites, prepare, start, stop
from grandrounds.deployment.simulate import simulate
from grandrounds.deployment.submission import submit_and_watch
from grandrounds.federation.record import EVENTS, read_events

pytestmark = pytest.mark.faults

HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
VICTIM = "hospital-c"
ROUNDS = 4
TINY = [
    *("executor.steps=2", "executor.batch_size=8", "executor.device=cpu", "executor.cpu_threads=1"),
    *("controller.warm_up=1", "executor.threshold=0.26", f"controller.rounds={ROUNDS}", "controller.min_sites=2"),
]
LIMIT_SECONDS = 400
SITE_JOB, SITE_PARENT, SERVER_JOB, SERVER_PARENT = "worker_process", "client_train", "runner_process", "server_train"


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    made = prepare(tmp_path_factory.mktemp("consortium") / "federation", HOSPITALS, free_port())
    try:
        start(made)
        yield made
    finally:
        stop(made)
    assert processes_of(made.folder) == []


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


class Run:
    """A submitted run that goes on while the test does harm."""

    def __init__(self, federation, folder, name, grace=None, attempts=1):
        self.federation = federation
        limits = ["controller.round_timeout=120", *([f"controller.grace={grace}"] if grace else [])]
        options = [*TINY, f"controller.run_name={name}", *limits]
        self.job = with_options(load_job("fedperl"), options)
        self.record = federation.kits / federation.server / "grandrounds" / name / "server"
        self.told, self.outcome, self._folder = [], None, folder
        await_sites(federation, HOSPITALS)
        self._thread = threading.Thread(target=self._submit, args=(attempts,), daemon=True)
        self._thread.start()

    def _submit(self, attempts):
        kit = self.federation.kit(self.federation.researcher)
        self.outcome = submit_and_watch(kit, self.job, self._folder / "results", self.told.append, attempts)

    def await_round(self, number):
        """Wait until the record says that this round has begun."""
        self.wait_until(lambda: any(e["event"] == "round_start" and e["round"] >= number for e in self.events()))

    def events(self):
        return read_events(self.record) if (self.record / EVENTS).is_file() else []

    def wait_until(self, condition):
        deadline = time.monotonic() + LIMIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.told
            assert self._thread.is_alive(), self.told
            time.sleep(0.1)

    def end(self):
        self._thread.join(LIMIT_SECONDS)
        assert self.outcome is not None, self.told
        assert self.outcome.finished, self.told
        assert self.outcome.summary["rounds_done"] == ROUNDS
        return self.outcome

    def undisturbed(self):
        """Models of the same run in one process, where nothing goes wrong."""
        simulate(self.job, self._folder / "alone", list(HOSPITALS))
        return torch.load(self._folder / "alone" / "results" / "last.pt", weights_only=True)

    def model(self):
        return torch.load(self.outcome.download / "workspace" / "results" / "last.pt", weights_only=True)


def process(federation, participant, module):
    """The one process of a participant that runs this module of FLARE."""
    found = [p for p in processes_of(federation.kits / participant) if module in Path(f"/proc/{p}/cmdline").read_text()]
    assert len(found) == 1, found
    return found[0]


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("participant", "module"),
    [(VICTIM, SITE_JOB), ("server", SERVER_JOB), ("server", SERVER_PARENT)],
    ids=["site's job process", "server's job process", "server's parent process"],
)
def test_a_killed_job_is_resumed_and_gives_the_same_model(federation, tmp_path, shared_cache, participant, module):
    """FLARE ends or forgets the job; submitted again, it goes on after the last complete round, and no bit differs."""
    run = Run(federation, tmp_path, f"killed-{module}-{participant}", attempts=2)
    run.await_round(3)
    os.kill(process(federation, participant, module), signal.SIGKILL)
    outcome = run.end()
    assert len(outcome.jobs) == 2
    assert any(event["event"] == "resume" and event["after_round"] >= 2 for event in run.events())
    assert outcome.summary["contributions"] == dict.fromkeys(HOSPITALS, ROUNDS)
    assert same(run.model(), run.undisturbed())


def test_a_lost_site_is_named_and_the_others_finish(federation, tmp_path):
    """FLARE starts the site again, but does not let it join the job that runs."""
    run = Run(federation, tmp_path, "lost-parent", grace=25)
    run.await_round(3)
    os.kill(process(federation, VICTIM, SITE_PARENT), signal.SIGKILL)
    summary = run.end().summary
    assert summary["contributions"][VICTIM] < ROUNDS
    assert all(summary["contributions"][site] == ROUNDS for site in HOSPITALS if site != VICTIM)
    dropped = [entry["dropped"] for entry in summary["rounds"] if entry["dropped"]]
    assert dropped
    assert all(list(reasons) == [VICTIM] for reasons in dropped)
    await_sites(federation, HOSPITALS)


def test_a_straggler_is_dropped_and_comes_back(federation, tmp_path):
    """Its process stands still for longer than a round may take, as on a machine that swaps."""
    run = Run(federation, tmp_path, "straggler", grace=25)
    run.await_round(2)
    worker = process(federation, VICTIM, SITE_JOB)
    os.kill(worker, signal.SIGSTOP)
    try:
        run.await_round(3)
    finally:
        os.kill(worker, signal.SIGCONT)
    summary = run.end().summary
    dropped = {site for entry in summary["rounds"] for site in entry["dropped"]}
    assert dropped == {VICTIM}
    assert all(summary["contributions"][site] == ROUNDS for site in HOSPITALS if site != VICTIM)
