"""Training in a child process gives the same models, and a crash in it costs one answer."""

import json

import pytest
import torch

from grandrounds.deployment.jobs import write_job
from grandrounds.federation.engine import run_in_process
from grandrounds.federation.site.worker import seconds_left
from grandrounds.protocol.messages import Payload

SITES = ["site-1", "site-2"]
COMPACT = "problem.backbone=compact"  # a child process knows the networks of the package alone


@pytest.fixture(autouse=True, scope="module")
def few_images():
    """Sites in new processes draw as many images as those of users, so all do here."""


@pytest.fixture
def start(tmp_path, monkeypatch, shared_cache):
    """Run a job whose executor crashes at a site, without the checks that ``simulate`` makes; the summary and the states."""

    def go(job, **crash):
        monkeypatch.setenv("GRANDROUNDS_STATE", str(tmp_path / "state"))
        entry = job.client["executors"][0]["executor"]
        entry["path"] = "crashing.CrashingExecutor"
        entry["args"] |= crash
        run_in_process(write_job(job, tmp_path / "job"), tmp_path / "flare", SITES)
        state = tmp_path / "state" / "fedperl"
        return json.loads((state / "server" / "summary.json").read_text()), state

    return go


def test_the_models_are_those_of_one_process_bit_for_bit(run, tiny, assert_same_run, tmp_path, monkeypatch):
    kept = ("executor.optimizer=kept", "executor.cpu_threads=1")
    job = tiny("fedperl", "controller.rounds=2", "controller.warm_up=1", COMPACT, *kept)
    plain = run(job, tmp_path / "plain", SITES)
    monkeypatch.setenv("GRANDROUNDS_ISOLATION", "process")
    assert_same_run(run(job, tmp_path / "isolated", SITES), plain)


def test_a_method_without_state_gives_the_same_models(run, tiny, assert_same_run, tmp_path, monkeypatch):
    job = tiny("fedavg", "controller.rounds=2", "executor.cpu_threads=1", COMPACT)
    plain = run(job, tmp_path / "plain", SITES)
    monkeypatch.setenv("GRANDROUNDS_ISOLATION", "process")
    assert_same_run(run(job, tmp_path / "isolated", SITES), plain)


def test_sites_with_own_models_keep_them(run, tiny, assert_same_run, tmp_path, monkeypatch):
    job = tiny("local", "executor.model=own", "controller.rounds=2", "executor.cpu_threads=1", COMPACT)
    plain = run(job, tmp_path / "plain", SITES)
    monkeypatch.setenv("GRANDROUNDS_ISOLATION", "process")
    assert_same_run(run(job, tmp_path / "isolated", SITES), plain)
    for site in SITES:
        kept = [torch.load(tmp_path / name / "state" / "local" / site / "own.pt") for name in ("plain", "isolated")]
        assert all(torch.equal(kept[0][entry], kept[1][entry]) for entry in kept[0])


@pytest.mark.parametrize(("how", "signal"), [("killed", "SIGKILL"), ("segfault", "SIGSEGV")])
def test_a_crash_costs_the_site_its_round_and_nothing_else(start, tiny, how, signal, monkeypatch):
    monkeypatch.setenv("GRANDROUNDS_ISOLATION", "process")
    job = tiny("fedperl", "controller.rounds=4", "controller.min_sites=1", COMPACT)
    summary, _ = start(job, at="site-2", in_round=2, how=how)
    assert summary["status"] == "finished"
    assert [entry["dropped"].keys() for entry in summary["rounds"]] == [set(), {"site-2"}, set(), set()]
    assert signal in summary["rounds"][1]["dropped"]["site-2"]
    assert summary["contributions"] == {"site-1": 4, "site-2": 3}
    assert sorted(summary["records"]) == SITES


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(90, 90.0), (0.5, 0.5), (None, None), ("90", None), (0, None), (float("nan"), None)]
)
def test_a_training_lasts_no_longer_than_its_answer_is_waited_for(timeout, seconds):
    assert seconds_left(Payload(1, {"round_timeout": timeout})) == seconds
