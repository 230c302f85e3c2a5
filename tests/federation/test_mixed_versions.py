"""A site of another version of the protocol is refused by name, before it reads an image."""

import json

import pytest

from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.engine import Site
from grandrounds.federation.server.record import read_events
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.protocol.messages import PROTOCOL

GATE = [{"path": "grandrounds.privacy.gate.filters.SitePrivacyGate"}]
RULES = [{"kind": "model_update", "name": "update", "treatment": "unmodified"}]
LABELS = [{"name": "labelled", "part": "train", "minimum_support": 1}]
SITES = ["site-1", "site-2", "site-3"]


@pytest.fixture
def older(monkeypatch):
    """What the server sends site-3 is of the version before, as if that were the server's."""
    work = Site.work

    def worked(self, task, message, server):
        if self.party.name == "site-3":
            message["DXO"]["meta"]["protocol"] = "1"
        return work(self, task, message, server)

    monkeypatch.setattr(Site, "work", worked)


def give_gate(local, site):
    policy = {"unit": "record", "delta": 1e-5, "releases": RULES, "scalars": LABELS}
    scope = {
        "name": "open",
        "properties": {"grandrounds": policy},
        "task_data_filters": GATE,
        "task_result_filters": GATE,
    }
    local.mkdir(parents=True)
    (local / "privacy.json").write_text(json.dumps({"scopes": [scope], "default_scope": "open"}))
    Ledger.create(local / "privacy", site)


@pytest.mark.parametrize("name", ["fedavg", "fedirm"], ids=["without registration", "with registration"])
@pytest.mark.parametrize("gated", [False, True], ids=["simulated", "gated"])
def test_a_site_of_another_version_is_refused_with_both_versions(run, tmp_path, older, name, gated):
    if gated:
        for site in SITES:
            give_gate(tmp_path / "flare" / site / "local", site)
    quick = ("executor.steps=1", "controller.rounds=1", "controller.min_sites=3", "problem.backbone=small")
    job = with_options(load_job(name), quick)
    with pytest.raises(GrandRoundsError, match=f"site-3.*of protocol '1', expected '{PROTOCOL}'"):
        run(job, tmp_path, sites=SITES)
    assert not [event for event in read_events(tmp_path / "results") if event["event"] == "round_end"]
