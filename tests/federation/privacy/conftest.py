"""A site's privacy policy and ledger, as the tests here install them."""

import json

import pytest

from grandrounds.privacy.ledger import Ledger

GATE = "grandrounds.privacy.filters.SitePrivacyGate"
UPDATE = {
    "kind": "model_update",
    "name": "update",
    "treatment": "clip_and_noise",
    "clip": 1.0,
    "noise_multiplier": 16.0,
    "running_statistics": "drop",
}


@pytest.fixture(scope="session")
def update_rule():
    """Make a rule for updates that clips and adds noise."""
    return lambda **changes: UPDATE | changes


@pytest.fixture(scope="session")
def policy_of():
    """Make a policy for the unit ``site``."""
    return lambda **changes: {"unit": "site", "delta": 1e-5, "releases": [UPDATE]} | changes


@pytest.fixture(scope="session")
def install():
    """Write a policy into a site's ``local`` folder, and open its ledger."""

    def write(local, content, ledger_site="site-1"):
        local.mkdir(parents=True, exist_ok=True)
        filters = [{"path": GATE}]
        scope = {"name": "strict", "properties": {"grandrounds": content}, "task_data_filters": filters}
        scope["task_result_filters"] = filters
        (local / "privacy.json").write_text(json.dumps({"scopes": [scope], "default_scope": "strict"}))
        if ledger_site:
            Ledger.create(local / "privacy", ledger_site)

    return write
