"""A site whose part of the job was edited takes no part; the server names the site and the option."""

import json

import pytest

from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import simulate
from grandrounds.errors import GrandRoundsError
from grandrounds.federation import engine
from grandrounds.federation.server.record import read_events
from grandrounds.federation.site import executor

SITES = ["site-1", "site-2", "site-3"]
QUICK = ["controller.rounds=1", "executor.steps=2", "executor.batch_size=8", "executor.device=cpu"]


@pytest.fixture
def edited(monkeypatch):
    """Change arguments of the executor in the files that FLARE has put at a site."""

    def edit(site, **arguments):
        deploy = engine._deploy

        def deploy_edited(app, workspace, name):
            folder = deploy(app, workspace, name)
            if name == site:
                (path,) = folder.glob("*/app_*/config/config_fed_client.json")
                content = json.loads(path.read_text())
                content["executors"][0]["executor"]["args"] |= arguments
                path.write_text(json.dumps(content))
            return folder

        monkeypatch.setattr(engine, "_deploy", deploy_edited)

    return edit


def dropped(found):
    return {event["site"]: event["reason"] for event in read_events(found.results) if event["event"] == "dropped"}


@pytest.mark.parametrize(
    ("method", "option", "value"),
    [("fedavg", "learning_rate", 0.5), ("fedirm", "learning_rate", 0.5), ("fedavg", "inference", "auto")],
)
def test_a_site_with_another_option_is_refused_by_name(method, option, value, edited, run, tmp_path):
    edited("site-2", **{option: value})
    found = run(with_options(load_job(method), QUICK), tmp_path, SITES)
    reason = dropped(found)["site-2"]
    assert f"site-2: executor.{option} is {value!r} here and" in reason
    assert "site-2" not in {site for entry in found.summary["rounds"] for site in entry["answered"]}
    assert set(found.summary["contributions"]) == {"site-1", "site-3"}


def test_what_an_executor_was_built_with_is_compared_and_not_the_text_of_a_file(monkeypatch, run, tmp_path):
    """As where FLARE has put another value into a text."""
    built = executor.SiteExecutor.__init__

    def build(self, **options):
        built(self, **options)
        self._given = {**options, "steps": 1}

    monkeypatch.setattr(executor.SiteExecutor, "__init__", build)
    with pytest.raises(GrandRoundsError):
        run(with_options(load_job("fedavg"), QUICK), tmp_path, SITES)
    reasons = {event["reason"] for event in read_events(tmp_path / "results") if event["event"] == "dropped"}
    assert all("executor.steps is 1 here and 2 in the server's job" in reason for reason in reasons)
    assert reasons


def test_options_of_a_sites_machine_may_differ(edited, run, tmp_path):
    edited("site-2", cpu_threads=1, prefetch="off", feature_cache_mib=100)
    found = run(with_options(load_job("fedavg"), QUICK), tmp_path, SITES)
    assert dropped(found) == {}


def test_the_summary_has_the_digest_of_each_sites_options(run, tmp_path):
    found = run(with_options(load_job("fedirm"), QUICK), tmp_path / "a", SITES)
    digests = {site: one["facts"]["options"] for site, one in found.summary["registered"].items()}
    assert set(digests) == set(SITES)
    (same,) = set(digests.values())
    other = run(with_options(load_job("fedirm"), [*QUICK, "executor.steps=3"]), tmp_path / "b", SITES)
    assert same not in {one["facts"]["options"] for one in other.summary["registered"].values()}


def test_a_server_with_another_rule_for_names_is_refused_by_every_site(monkeypatch, tmp_path):
    monkeypatch.setattr("grandrounds.federation.server.controller.KEY_RULE", 2)
    job = with_options(load_job("fedavg"), QUICK)
    with pytest.raises(GrandRoundsError):
        simulate(job, tmp_path, SITES)
    events = read_events(tmp_path / "results")
    reasons = {event["site"]: event["reason"] for event in events if event["event"] == "dropped"}
    assert set(reasons) == set(SITES)
    assert "site-1 makes keys" in reasons["site-1"]
    assert "by rule 1, the server by rule 2" in reasons["site-1"]
