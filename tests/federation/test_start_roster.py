"""A run starts with all that must be there; one that fails leaves its record where the job's download finds it."""

import json

import pytest

from grandrounds.deployment.simulate import simulate
from grandrounds.errors import GrandRoundsError

SITES = ["site-1", "site-2"]


def published(workspace):
    """The summary that FLARE's download would have."""
    path = workspace / "flare" / "server" / "simulate_job" / "results" / "summary.json"
    return json.loads(path.read_text()) if path.is_file() else None


def test_a_job_without_a_mandatory_site_fails_with_the_reason(tiny, tmp_path):
    job = tiny("fedavg", 'controller.mandatory_sites=["site-1", "site-9"]', "controller.start_timeout=0.1")
    with pytest.raises(GrandRoundsError, match=r"site-9.*after 0.1"):
        simulate(job, tmp_path / "run", SITES)
    summary = published(tmp_path / "run")
    assert (summary["status"], summary["rounds_done"]) == ("failed", 0)
    assert summary["reason"].startswith("site-9 is mandatory and not connected")
    assert summary["configuration"]["mandatory_sites"] == ["site-1", "site-9"]


def test_the_servers_own_rule_holds_for_every_job(tiny, tmp_path):
    local = tmp_path / "run" / "flare" / "local"
    local.mkdir(parents=True)
    (local / "roster.json").write_text(json.dumps({"mandatory_sites": ["site-9"]}))
    job = tiny("fedavg", "controller.start_timeout=0.1")
    assert job.options("controller")["mandatory_sites"] is None
    with pytest.raises(GrandRoundsError, match="site-9 is mandatory and not connected"):
        simulate(job, tmp_path / "run", SITES)


def test_a_damaged_rule_stops_every_job(tiny, tmp_path):
    local = tmp_path / "run" / "flare" / "local"
    local.mkdir(parents=True)
    (local / "roster.json").write_text('{"mandatory": ["site-9"]}')
    with pytest.raises(GrandRoundsError, match=r"roster\.json: 'mandatory_sites' is missing"):
        simulate(tiny("fedavg"), tmp_path / "run", SITES)


def test_a_mistake_in_submitting_again_publishes_the_mistake_and_no_results(tiny, run, tmp_path):
    """Otherwise the finished run's scores would be shown as this job's."""
    run(tiny("fedavg", "controller.rounds=2"), tmp_path / "run", SITES)
    (tmp_path / "run" / "flare" / "server" / "simulate_job" / "results" / "summary.json").unlink()
    with pytest.raises(GrandRoundsError, match="has done 2 rounds, rounds is 1"):
        simulate(tiny("fedavg", "controller.rounds=1"), tmp_path / "run", SITES)
    found = published(tmp_path / "run")
    assert (found["status"], found["rounds_done"], found["records"]) == ("refused", 2, {})
