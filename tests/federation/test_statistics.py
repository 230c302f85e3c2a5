"""A site reports only the statistics that its policy allows, and no job can ask for more."""

import json
from collections import Counter

import pytest

from grandrounds.data.manifest import read_manifest
from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.disclosure import statistics_of, withheld_scores
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import Execution, simulate
from grandrounds.errors import ConfigurationError
from grandrounds.methods.statistics.controller import StatisticsController
from grandrounds.protocol.messages import Result

SITES = ["site-1", "site-2"]


def reported(tmp_path, *options, engine="in-process"):
    summary = simulate(
        with_options(load_job("statistics"), options), tmp_path / "run", SITES, execution=Execution(engine)
    )
    assert summary["status"] == "finished"
    return summary["rounds"][0]["statistics"], summary


def counted(site, tmp_path):
    """The phantoms' labels, counted in their manifest."""
    records = read_manifest(phantom_site(site, tmp_path / "phantoms").parent / "manifest.csv")
    return Counter(record.label for record in records if record.split == "test" and record.label)


def test_the_counts_are_those_of_the_manifests(tmp_path, shared_cache):
    found, summary = reported(tmp_path, "executor.min_count=1")
    expected = {site: counted(site, tmp_path) for site in SITES}
    for site in SITES:
        here = {name.split(".")[2]: n for name, n in found["sites"][site].items() if name.startswith("images.test.")}
        assert here == {name: expected[site][name] for name in here}
        assert expected[site].keys() <= here.keys()
    total = expected["site-1"] + expected["site-2"]
    for label, count in total.items():
        assert found["overall"][f"images.test.{label}"] == {"value": count, "reported_by": 2}
    shares = [entry["value"] for name, entry in found["overall"].items() if name.startswith("intensity.0.")]
    assert sum(shares) == pytest.approx(1.0, abs=0.05)
    assert summary["bytes"].get("site-1", {}) == {}, "no tensor travels"
    assert statistics_of(summary) == found["sites"]
    classes = summary["configuration"]["problem"]["classes"]
    fewest = min(min(filter(None, counts.values())) for counts in expected.values())
    assert not withheld_scores(found["sites"], classes, fewest), "what was released is read by its own names"
    assert withheld_scores(found["sites"], classes, fewest + 1)


def test_a_site_that_asks_for_more_patients_reports_less(tmp_path, shared_cache, monkeypatch):
    for site, minimum in (("site-1", 0), ("site-2", 10_000)):
        path = phantom_site(site, tmp_path / "sites")
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "privacy": {"min_support": minimum}}))
    monkeypatch.setenv("GRANDROUNDS_SITES", str(tmp_path / "sites"))
    found, _ = reported(tmp_path, "executor.min_count=1")
    assert found["sites"]["site-2"] == {}
    assert found["overall"]["images.test.round"]["reported_by"] == 1


@pytest.mark.parametrize("option", ["controller.rounds=2", "controller.validate_every=1"])
def test_it_is_one_round_without_a_model(option):
    with pytest.raises(ConfigurationError, match="one round without a model"):
        with_options(load_job("statistics"), [option]).checked()


def test_an_invalid_statistic_is_refused():
    controller = StatisticsController(**load_job("statistics").controller["args"])
    with pytest.raises(Exception, match=r"'patient\.7' is not a statistic"):
        controller.check("site-1", Result(metrics={"images.test.0": 7.0, "patient.7": 1.0}))
    controller.check("site-1", Result(metrics={"images.test.0": 7.0, "size.256": 1.0, "train_seconds": 0.1}))
