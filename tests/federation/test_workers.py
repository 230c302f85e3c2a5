"""Sites that train in forked workers give the same run as in one process."""

import gc
import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from grandrounds.deployment.jobs import write_job
from grandrounds.errors import GrandRoundsError
from grandrounds.federation import engine
from grandrounds.federation.engine import run_in_process
from grandrounds.federation.server.record import EVENTS, read_events
from tests.federations import await_true, outcome

SITES = ["site-1", "site-2", "site-3"]


def test_the_models_are_those_of_one_process_also_after_a_resume(run, tiny, assert_same_run, tmp_path):
    options = ("executor.optimizer=kept", "controller.warm_up=1")
    whole = run(tiny("fedperl", "controller.rounds=2", *options), tmp_path / "one", SITES)
    run(tiny("fedperl", "controller.rounds=1", *options), tmp_path / "three", SITES, workers=3)
    resumed = run(tiny("fedperl", "controller.rounds=2", *options), tmp_path / "three", SITES, workers=2)
    assert_same_run(resumed, whole)


def test_workers_share_the_memory_of_a_run_until_its_end(run, tiny, tmp_path, monkeypatch, nothing_frozen):
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


def interrupted(command, record, folder):
    """What a command prints whose group of processes gets Ctrl-C after the first round; none of them is left."""
    with (folder / "printed.txt").open("w+") as printed:
        program = subprocess.Popen(
            command,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        await_true(lambda: program.poll() is not None or round_of(record) >= 2)
        os.killpg(program.pid, signal.SIGINT)
        assert program.wait(600) == 130
        await_true(lambda: not processes_of_group(program.pid))
        printed.seek(0)
        return printed.read()


def round_of(record):
    events = read_events(record) if (record / EVENTS).is_file() else []
    return max((event["round"] for event in events if event["event"] == "round_start"), default=0)


def processes_of_group(group):
    with suppress(ProcessLookupError):
        os.killpg(group, 0)
        return True
    return False


def test_ctrl_c_ends_all_processes_and_the_same_command_goes_on(assert_same_run, tmp_path):
    options = ("controller.rounds=6", "executor.steps=4", "executor.cpu_threads=1")
    start = [sys.executable, "-m", "grandrounds.cli", "simulate", "fedperl", "--workers", "2", "--sites", "3"]
    start += [part for option in options for part in ("--set", option)]
    cut, whole = ([*start, "--workspace", str(tmp_path / name)] for name in ("cut", "whole"))
    record = tmp_path / "cut" / "state" / "fedperl" / "server"
    printed = interrupted(cut, record, tmp_path)
    assert "interrupted: run the same command to resume" in printed
    assert "Traceback" not in printed
    for command in (cut, whole):
        subprocess.run(command, check=True, capture_output=True)
    (resumed,) = (event for event in read_events(record) if event["event"] == "resume")
    assert 1 <= resumed["after_round"] < 6
    assert_same_run(outcome(tmp_path / "cut"), outcome(tmp_path / "whole"))
