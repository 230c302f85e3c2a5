"""A site's own model leaves at the end of a run where the job asks for it and the site's policy has a rule."""

import json

import pytest
import torch

SITES = ["site-1", "site-2", "site-3"]
RULE = {"kind": "site_model", "name": "site_model", "treatment": "unmodified"}
SCORES = [
    {"name": f"{name}.*", "part": part, "minimum_support": 2} for name, part in (("own", "test"), ("validation", "val"))
]


@pytest.fixture(scope="module")
def finished(tiny, run, install, policy_of, tmp_path_factory):
    """A run of a site whose policy has no rule, one that has, and one without a gate."""
    place = tmp_path_factory.mktemp("site_models")
    for site, releases in (("site-1", []), ("site-2", [RULE])):
        content = policy_of(releases=releases, scalars=SCORES, facts=["backbone", "architecture"])
        install(place / "flare" / site / "local", content, site)
    networks = 'executor.backbones={"site-3": "narrow"}'
    found = run(tiny("local", "controller.rounds=1", "executor.release_model=true", networks), place, sites=SITES)
    (server,) = {path.parents[1] for path in (place / "flare").glob("**/site-3/own.pt")}
    return found, server, place


def test_models_leave_by_a_rule_only_and_are_those_of_the_sites(finished):
    found, server, _ = finished
    assert sorted(path.parent.name for path in server.glob("*/own.json")) == ["site-2", "site-3"]
    for site, backbone in (("site-2", "small"), ("site-3", "narrow")):
        own, sent = (
            torch.load(folder / site / "own.pt", weights_only=True) for folder in (found.record.parent, server)
        )
        assert own.keys() == sent.keys()
        assert all(torch.equal(value, sent[name]) for name, value in own.items())
        described = [json.loads((folder / site / "own.json").read_text()) for folder in (found.record.parent, server)]
        assert described[0] == described[1]
        assert described[0]["model"]["backbone"] == backbone
        assert described[0]["run_id"] == found.summary["run_id"] != ""
    assert {site for site, sent in found.summary["bytes"].items() if "up.site_model" in sent} == {"site-2", "site-3"}


def test_without_a_rule_the_model_stays_and_the_scores_leave(finished):
    found, _, place = finished
    lines = (place / "flare/site-1/local/privacy/audit.jsonl").read_text().splitlines()
    (line,) = [line for line in map(json.loads, lines) if line["task"] == "test"]
    assert "site_model" in line["withheld"]
    assert found.summary["records"]["site-1"]["own"]["images"] > 0
