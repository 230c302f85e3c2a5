"""Hospitals whose gates mask updates, in one process."""

import json

import pytest

from grandrounds.privacy.ledger.ledger import Ledger

GATE = "grandrounds.privacy.gate.filters.SitePrivacyGate"
RULE = {"kind": "model_update", "name": "update", "treatment": "masked"}


@pytest.fixture(scope="session")
def masking():
    """Give sites of a workspace a policy that masks updates."""

    def give(workspace, sites, rule=RULE, **changes):
        for site in sites:
            local = workspace / "flare" / site / "local"
            local.mkdir(parents=True, exist_ok=True)
            content = {
                "unit": "record",
                "delta": 1e-5,
                "releases": rule if isinstance(rule, list) else [rule],
            } | changes
            filters = [{"path": GATE}]
            scope = {"name": "sums", "properties": {"grandrounds": content}, "task_data_filters": filters}
            scope["task_result_filters"] = filters
            (local / "privacy.json").write_text(json.dumps({"scopes": [scope], "default_scope": "sums"}))
            Ledger.create(local / "privacy", site)

    return give
