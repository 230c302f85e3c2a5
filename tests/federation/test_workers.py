"""Sites that train in forked workers give the same run as in one process."""

import gc

import pytest

from grandrounds.deployment.jobs import write_job
from grandrounds.errors import GrandRoundsError
from grandrounds.federation import engine
from grandrounds.federation.engine import run_in_process

SITES = ["site-1", "site-2", "site-3"]


def test_the_models_are_those_of_one_process_also_after_a_resume(run, tiny, assert_same_run, tmp_path):
    options = ("executor.optimizer=kept", "controller.warm_up=1")
    whole = run(tiny("fedperl", "controller.rounds=2", *options), tmp_path / "one", SITES)
    run(tiny("fedperl", "controller.rounds=1", *options), tmp_path / "three", SITES, workers=3)
    resumed = run(tiny("fedperl", "controller.rounds=2", *options), tmp_path / "three", SITES, workers=2)
    assert_same_run(resumed, whole)


def test_workers_share_the_memory_of_a_run_until_its_end(run, tiny, tmp_path, monkeypatch):
    frozen = []

    class Counting(engine.Workers):
        def __init__(self, count, work):
            frozen.append(gc.get_freeze_count())
            super().__init__(count, work)

    monkeypatch.setattr(engine, "Workers", Counting)
    run(tiny("fedavg", "controller.rounds=1"), tmp_path, SITES, workers=2)
    assert [count > 10_000 for count in (*frozen, gc.get_freeze_count())] == [True, False]


def test_a_site_that_is_slow_is_not_late(run, tiny, tmp_path):
    job = tiny("fedavg", "controller.rounds=1", "controller.min_sites=1", "controller.grace=0")
    assert run(job, tmp_path, SITES, workers=2).summary["contributions"] == dict.fromkeys(SITES, 1)


def test_a_run_whose_workers_are_killed_names_the_sites(tiny, tmp_path, monkeypatch, shared_cache):
    monkeypatch.setenv("GRANDROUNDS_STATE", str(tmp_path / "state"))
    job = tiny("fedperl", "controller.rounds=1", "controller.min_sites=3")
    entry = job.client["executors"][0]["executor"]
    entry["path"] = "crashing.CrashingExecutor"
    entry["args"] |= {"at": "site-2", "in_round": 1, "how": "killed"}
    with pytest.raises(GrandRoundsError, match=r"site-2: its worker has ended: .* SIGKILL"):
        run_in_process(write_job(job, tmp_path / "job"), tmp_path / "flare", SITES, workers=2)
