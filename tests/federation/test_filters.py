"""Filters of the job and of the site are applied to what travels, and events reach the components."""

import json

import pytest
import torch

SITES = ["site-1", "site-2"]
ONE_ROUND = ["controller.rounds=1", "controller.validate_every=0"]


def filtered(job, path, tasks=("train",), server=False, **arguments):
    """The job with a filter of results."""
    configuration = job.server if server else job.client
    configuration["task_result_filters"].append({"tasks": list(tasks), "filters": [{"path": path, "args": arguments}]})
    return job


def site_policy(workspace, site, path, **arguments):
    """A policy in the site's own folder, which no job can change."""
    local = workspace / "flare" / site / "local"
    local.mkdir(parents=True)
    scope = {"name": "strict", "task_result_filters": [{"path": path, "args": arguments}]}
    (local / "privacy.json").write_text(json.dumps({"scopes": [scope], "default_scope": "strict"}))


@pytest.fixture(scope="module")
def plain(tiny, run, tmp_path_factory):
    """One round without filters."""
    return run(tiny("ssfl", *ONE_ROUND), tmp_path_factory.mktemp("plain"), sites=SITES).models["last"]


@pytest.fixture(scope="module")
def initial(tiny, run, tmp_path_factory):
    """The model before the first round: what it is when all updates are zero."""
    job = filtered(tiny("ssfl", *ONE_ROUND), "faulty.ScaleUpdate", factor=0.0)
    return run(job, tmp_path_factory.mktemp("initial"), sites=SITES).models["last"]


def moved(model, initial, plain, factor):
    """Assert that every weight moved by ``factor`` times what it moves without a filter."""
    floating = [name for name, value in plain.items() if value.is_floating_point()]
    assert any(not torch.equal(plain[name], initial[name]) for name in floating)
    for name in floating:
        expected = initial[name] + factor * (plain[name] - initial[name])
        torch.testing.assert_close(model[name], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("server", [False, True])
def test_a_filter_of_the_job_scales_the_update(tiny, run, tmp_path, plain, initial, server):
    job = filtered(tiny("ssfl", *ONE_ROUND), "faulty.ScaleUpdate", server=server, factor=0.5)
    moved(run(job, tmp_path, sites=SITES).models["last"], initial, plain, 0.5)


def test_a_filter_for_other_tasks_is_not_applied(tiny, run, tmp_path, plain, identical):
    job = filtered(tiny("ssfl", *ONE_ROUND), "faulty.ScaleUpdate", tasks=("validate",), factor=0.5)
    found = run(job, tmp_path, sites=SITES).models["last"]
    assert identical({"last": found}, {"last": plain})


def test_flares_own_filter_finds_the_update(tiny, run, tmp_path, initial, identical):
    """It takes an entry out, and the server misses it."""
    job = filtered(
        tiny("ssfl", *ONE_ROUND, "controller.min_sites=1"),
        "nvflare.app_common.filters.exclude_vars.ExcludeVars",
        exclude_vars=["head.weight"],
    )
    with pytest.raises(Exception, match=r"update lacks 'head.weight' \(1 missing"):
        run(job, tmp_path, sites=SITES)


def test_a_policy_of_the_site_is_applied_before_the_jobs_filters(tiny, run, tmp_path, plain, initial):
    """Both sites: half of a third."""
    for site in SITES:
        site_policy(tmp_path, site, "faulty.ScaleUpdate", factor=0.5)
    job = filtered(tiny("ssfl", *ONE_ROUND), "faulty.ScaleUpdate", factor=1 / 3)
    moved(run(job, tmp_path, sites=SITES).models["last"], initial, plain, 1 / 6)


def test_a_policy_binds_its_own_site_only(tiny, run, tmp_path):
    site_policy(tmp_path, "site-2", "faulty.Refuse")
    found = run(tiny("ssfl", *ONE_ROUND, "controller.min_sites=1"), tmp_path, sites=SITES)
    (entry,) = found.summary["rounds"]
    assert entry["answered"] == ["site-1"]
    assert entry["dropped"] == {"site-2": "the site replied TASK_RESULT_FILTER_ERROR"}
    assert "site-2" not in found.summary["records"], "the policy covers all tasks"
    assert "up.update" not in found.summary["bytes"].get("site-2", {})


def test_a_filter_that_fails_drops_the_site_with_a_reason(tiny, run, tmp_path):
    job = filtered(tiny("ssfl", *ONE_ROUND, "controller.min_sites=2"), "faulty.Refuse")
    with pytest.raises(Exception, match=r"0 of 2 sites gave a valid result.*TASK_RESULT_FILTER_ERROR"):
        run(job, tmp_path, sites=SITES)


def test_a_failing_filter_at_the_server_drops_the_site_too(tiny, run, tmp_path):
    job = filtered(tiny("ssfl", *ONE_ROUND, "controller.min_sites=2"), "faulty.Refuse", server=True)
    with pytest.raises(Exception, match=r"0 of 2 sites gave a valid result.*TASK_RESULT_FILTER_ERROR"):
        run(job, tmp_path, sites=SITES)


def test_what_a_filter_spoils_on_the_way_is_refused_by_the_server(tiny, run, tmp_path):
    job = filtered(tiny("ssfl", *ONE_ROUND), "faulty.ScaleUpdate", server=True, factor=float("nan"))
    with pytest.raises(Exception, match=r"0 of 2 sites gave a valid result.*NaN or infinite"):
        run(job, tmp_path, sites=SITES)


def test_events_reach_the_components_of_all_parties(tiny, run, tmp_path):
    job = tiny("ssfl", *ONE_ROUND)
    diary = tmp_path / "diary"
    for configuration in (job.server, job.client):
        configuration["components"].append({"id": "diary", "path": "faulty.Diary", "args": {"path": str(diary)}})
    run(job, tmp_path / "run", sites=SITES)
    heard = [line.split() for line in diary.read_text().splitlines()]
    for party in ("server", *SITES):
        own = [event for name, event in heard if name == party]
        assert own[0] == "_start_run"
        assert own[-1] == "_end_run"
    assert [event for name, event in heard if name == "server" and "round" in event] == [
        "_round_started",
        "_round_done",
    ]
    tasks = [event for name, event in heard if name == "site-1" and event.startswith("_before_task_")]
    assert tasks[:3] == ["_before_task_data_filter", "_before_task_execution", "_before_task_result_filter"]


def test_what_a_site_does_not_let_out_does_not_count_there_either(tiny, run, tmp_path):
    """A site's own model and optimizer stay as they were when the answer about them is refused."""
    site_policy(tmp_path, "site-2", "faulty.Refuse")
    found = run(tiny("local", *ONE_ROUND, "controller.min_sites=1"), tmp_path, sites=SITES)
    assert found.summary["rounds"][0]["answered"] == ["site-1"]
    states = {site: list((found.record.parent / site / "state").glob("*.pt")) for site in SITES}
    assert [len(states[site]) for site in SITES] == [1, 0]
