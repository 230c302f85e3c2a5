"""Who takes part, what a job will do, and when it is lost."""

import json
import os
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.resource_managers.gpu_resource_manager import GPUResourceManager
from nvflare.utils.job_launcher_utils import get_resource_manager_spec

from grandrounds.deployment.disclosure import announced_scores, disclosure, releases_of, withheld_scores
from grandrounds.deployment.job_watch import JobWatch, run_statistics, summary_in
from grandrounds.deployment.jobs import Job, load_job, write_job
from grandrounds.deployment.presets import with_options, with_preset
from grandrounds.deployment.submission import (
    Outcome,
    _progress,
    require_gpu_sites,
    require_roster,
    with_gpu_memory,
    with_roster,
)
from grandrounds.errors import ConfigurationError, GrandRoundsError


def test_a_roster_is_what_flare_will_read(tmp_path):
    job = with_roster(load_job("fedperl"), ["a", "b", "c"], ["a"], 3)
    folder = write_job(job, tmp_path / "job")
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["deploy_map"] == {"app": ["server", "a", "b", "c"]}
    assert meta["mandatory_clients"] == ["a"]
    assert meta["min_clients"] == 3
    server = json.loads((folder / "app" / "config" / "config_fed_server.json").read_text())
    assert server["workflows"][0]["args"]["min_sites"] == 3
    assert server["workflows"][0]["args"]["mandatory_sites"] == ["a"]


def test_a_gpu_is_asked_for_only_where_the_job_runs():
    job = with_gpu_memory(with_roster(load_job("fedperl"), ["a", "b"], [], 2), {"a": 8.0, "bb": 8.0})
    with pytest.raises(ConfigurationError, match=r"GPU .* at bb, which does not take part \(a, b\)"):
        require_gpu_sites(job, ["a", "b", "bb"])


def test_a_job_for_all_asks_for_gpus_of_sites_that_are_connected():
    job = with_gpu_memory(load_job("fedperl"), {"a": 8.0, "bb": 8.0, "@default": 4.0})
    require_gpu_sites(job, ["bb", "b", "a"])
    require_gpu_sites(job, [])
    with pytest.raises(ConfigurationError, match=r"GPU .* at bb, which is not connected \(a, b\)"):
        require_gpu_sites(job, ["b", "a"])


def test_the_given_job_does_not_change():
    job = load_job("fedperl")
    with_roster(job, ["a", "b"], ["a"], 2)
    assert job == load_job("fedperl")


def test_a_mandatory_site_must_take_part():
    with pytest.raises(ConfigurationError, match="z is mandatory, but does not take part"):
        with_roster(load_job("fedperl"), ["a", "b"], ["z"])


def test_two_jobs_do_not_take_the_same_memory_of_a_gpu():
    """FLARE's own manager of a site with one GPU of 24 GiB is asked."""
    job = with_gpu_memory(load_job("fedperl"), {"a": 16.0})
    assert get_resource_manager_spec(job.meta, "b") == {}
    asked = get_resource_manager_spec(job.meta, "a")
    manager, context = GPUResourceManager(1, 24.0, ignore_host=True), FLContext()
    enough, token = manager.check_resources(asked, context)
    assert enough
    assert not manager.check_resources(asked, context)[0]
    manager.cancel_resources(asked, token, context)
    assert manager.check_resources(asked, context)[0]
    assert "  reserves at a: num_of_gpus=1, mem_per_gpu_in_GiB=16.0" in disclosure(job)


def test_fewer_sites_than_needed_are_refused_before_submission():
    with pytest.raises(ConfigurationError, match="needs 3 sites"):
        with_roster(load_job("fedperl"), ["a", "b"], min_sites=3)


@pytest.mark.parametrize(
    ("connected", "reason"),
    [
        (["b", "c"], "a is mandatory and not connected"),
        (["a", "z"], "needs 2 sites, 1 are connected"),
        ([], "none"),
    ],
)
def test_a_job_is_not_submitted_without_those_it_needs(connected, reason):
    job = with_roster(load_job("fedperl"), ["a", "b", "c"], ["a"], 2)
    with pytest.raises(GrandRoundsError, match=reason):
        require_roster(job, connected)


def test_a_job_for_all_counts_all():
    job = with_roster(load_job("fedperl"), min_sites=2)
    require_roster(job, ["x", "y"])
    with pytest.raises(GrandRoundsError, match="needs 2 sites"):
        require_roster(job, ["x"])


def test_the_disclosure_names_what_leaves():
    job = load_job("fedperl")
    assert {name: str(kind) for name, kind in releases_of(job).items()} == {"update": "model_update"}
    assert "data set 'phantom'" in disclosure(job)[0]
    relations = releases_of(load_job("fedirm"))
    assert "class_statistics" in {str(kind) for kind in relations.values()}


@pytest.mark.parametrize(("preset", "found"), [("recommended", 1), ("scratch", 0)])
def test_the_model_that_the_server_must_have_is_named(preset, found):
    lines = disclosure(with_preset(load_job("fedavg"), preset))
    assert sum("starts from: run 'ridge' of yours that the server has finished" in line for line in lines) == found


@pytest.mark.parametrize("released", ["true", "false"])
def test_a_model_that_stays_is_not_among_the_releases_of_a_round(released):
    job = with_options(load_job("local"), ["executor.model=own", f"executor.release_model={released}"])
    assert "update" not in releases_of(job)
    assert any("nothing; and scalar metrics" in line for line in disclosure(job))
    assert any("the site's own model (site_model)" in line for line in disclosure(job)) is (released == "true")


CLASSES = list(load_job("fedperl").value("problem", "classes"))
ENOUGH = {f"images.test.{name}": 31.0 for name in CLASSES}


def write_statistics(runs, folder, sites, dataset="phantom", classes=None):
    """The downloaded summary of a run of the job ``statistics``."""
    path = runs / folder / "workspace" / "results" / "summary.json"
    path.parent.mkdir(parents=True)
    problem = {"dataset": dataset, "classes": classes or CLASSES}
    rounds = [{"statistics": {"sites": sites}}]
    path.write_text(json.dumps({"configuration": {"problem": problem}, "rounds": rounds}))
    return path


@pytest.mark.parametrize("folder", ["statistics/job-1", "skin-1/job-1"])
def test_a_training_is_told_which_scores_will_be_withheld(tmp_path, folder):
    write_statistics(tmp_path, folder, {"a": {}, "b": ENOUGH})
    first, site, remedy = announced_scores(load_job("fedperl"), tmp_path / "skin-1")
    assert str(tmp_path / folder) in first
    assert site.strip().startswith("a:")
    assert "give more patients the split test" in remedy


def test_a_roster_is_heeded_before_a_training(tmp_path):
    write_statistics(tmp_path, "statistics/job-1", {"a": {}, "b": ENOUGH})
    (line,) = announced_scores(with_roster(load_job("fedperl"), ["b"], min_sites=1), tmp_path / "skin-1")
    assert "withheld: no score" in line


def test_statistics_of_others_and_damaged_ones_say_nothing(tmp_path):
    assert announced_scores(load_job("statistics"), tmp_path / "statistics") == []
    write_statistics(tmp_path, "one/job-1", {"a": ENOUGH}, dataset="skin")
    write_statistics(tmp_path, "two/job-1", {"a": ENOUGH}, classes=["nevus"])
    write_statistics(tmp_path, "three/job-1", {"a": ENOUGH}).write_text("{")
    write_statistics(tmp_path, "four/job-1", {"a": ENOUGH}).write_text("{}")
    (line,) = announced_scores(load_job("fedperl"), tmp_path / "skin-1")
    assert "grandrounds submit statistics" in line


def test_the_newest_statistics_count(tmp_path):
    old = write_statistics(tmp_path, "statistics/job-1", {"a": {}})
    write_statistics(tmp_path, "statistics/job-2", {"a": ENOUGH})
    os.utime(old, (1, 1))
    (line,) = announced_scores(load_job("fedperl"), tmp_path / "skin-1")
    assert "job-2" in line


def test_a_count_below_the_minimum_is_few_also_where_it_was_released():
    (line, _) = withheld_scores({"a": {"images.test.nv": 3.0, "images.test.mel": 40.0}}, ["nv", "mel"], 10)
    assert line.startswith("a:")


def test_further_classes_of_a_job_are_named():
    job = load_job("fedperl")
    noise = {"path": "grandrounds.federation.job_noise.GaussianPrivacy", "args": {"clip": {"class_path": "a.B"}}}
    client = {
        **job.client,
        "components": [{"id": "x", "path": "nvflare.x.Recorder"}],
        "task_result_filters": [{"tasks": ["train"], "filters": [noise]}],
    }
    lines = disclosure(Job(job.meta, job.server, client))
    (line,) = (line for line in lines if "further classes" in line)
    assert {*line.removeprefix("  further classes: ").split(", ")} == {"nvflare.x.Recorder", noise["path"], "a.B"}
    assert not any("further classes" in line for line in disclosure(job))


def test_the_lines_name_the_sites_and_the_policy():
    job = with_roster(load_job("fedperl"), ["a", "b"], ["a"])
    text = "\n".join(disclosure(job))
    assert "runs at: a, b (minimum 2; mandatory: a)" in text
    assert "each site's default scope" in text
    assert "hospital-x" in "\n".join(disclosure(load_job("fedperl"), ["hospital-x"]))
    asked = Job({**job.meta, "scope": "strict"}, job.server, job.client)
    assert any("privacy: scope strict" in line for line in disclosure(asked))


@pytest.mark.parametrize(
    ("stats", "shown"),
    [
        (
            {"controller": {"tasks": {"train": ["a", "b"]}}, "x": {"round": 3, "rounds": 9}},
            "round 3 of 9; waiting for a, b (train)",
        ),
        ({"controller": {"tasks": {"test": ["a"]}, "round": 10, "rounds": 9}}, "testing; waiting for a (test)"),
        ({"controller": {"tasks": {"train": []}, "round": 1, "rounds": 9}}, "round 1 of 9"),
        (
            {"controller": {"round": 5, "rounds": 9, "silent": {"c": 3}, "paused": {"c": 6}, "lost": {"d": 2}}},
            "round 5 of 9; d is lost: not connected, last update in round 2; c is silent: no answer since round 3, asked "
            "again in round 6",
        ),
        ({"controller": {"tasks": {}, "round": 0, "rounds": 9}}, ""),
        ({}, ""),
        ("not running", ""),
    ],
)
def test_how_far_a_running_job_is(stats, shown):
    session = SimpleNamespace(show_stats=lambda job, target: {"server": stats})
    assert _progress(run_statistics(session, "j")) == shown


def test_a_job_that_cannot_be_asked_is_not_lost():
    def fail(job, target):
        raise RuntimeError("not running")

    assert run_statistics(SimpleNamespace(show_stats=fail), "j") == {}
    assert _progress({}) == ""


def observed(*seen, patience=20):
    watch = JobWatch("j", patience)
    return [watch.observe(status, alive, seconds) for status, alive, seconds in seen]


def test_a_job_that_ends_normally_is_never_lost():
    """Between its last process and FLARE's final status lie seconds."""
    seen = [("SUBMITTED", [], 0), ("RUNNING", ["j"], 2), ("RUNNING", [], 30), ("FINISHED:COMPLETED", [], 40)]
    assert observed(*seen) == ["waiting", "running", "running", "ended"]


def test_a_job_without_processes_for_long_is_lost():
    assert observed(("RUNNING", ["j"], 0), ("RUNNING", ["k"], 5), ("RUNNING", [], 25)) == ["running", "running", "lost"]


def test_a_job_that_reappears_is_not_lost():
    seen = [("RUNNING", [], 0), ("RUNNING", ["j"], 15), ("RUNNING", [], 30), ("RUNNING", [], 45)]
    assert observed(*seen) == ["running"] * 4


def test_the_runs_own_summary_decides(tmp_path):
    place = tmp_path / "workspace" / "results"
    place.mkdir(parents=True)
    assert summary_in(tmp_path) == {}
    (place / "summary.json").write_text('{"status": "fini')
    assert summary_in(tmp_path) == {}
    (place / "summary.json").write_text('{"status": "finished"}')
    assert Outcome(("j",), "FINISHED:ABNORMAL", summary_in(tmp_path)).finished
    assert not Outcome(("j",), "FINISHED:COMPLETED", {}).finished
