import json

import pytest
from typer.testing import CliRunner

from grandrounds.cli import build_app
from grandrounds.privacy.accounting import gaussian_epsilon

GATE = [{"path": "grandrounds.privacy.gate.filters.SitePrivacyGate"}]
UPDATE = {"kind": "model_update", "name": "update", "treatment": "clip_and_noise", "clip": 1.0, "noise_multiplier": 16}
ROWS = {"kind": "soft_labels", "name": "rows", "treatment": "quantise", "levels": 20, "entries": ["rows"]}


@pytest.fixture
def check(tmp_path):
    """Check a policy with these releases."""

    def go(*releases, arguments=(), **changes):
        policy = {"unit": "site", "delta": 1e-5, "releases": list(releases)} | changes
        scope = {"name": "strict", "properties": {"grandrounds": policy}}
        scope |= {"task_data_filters": GATE, "task_result_filters": GATE}
        path = tmp_path / "privacy.json"
        path.write_text(json.dumps({"scopes": [scope], "default_scope": "strict"}))
        return CliRunner().invoke(build_app("doctor"), ["doctor", "--policy", str(path), *arguments])

    return go


def test_permitted_releases_are_listed_with_the_rounds_that_fit(check):
    result = check(UPDATE, ROWS | {"outside_budget": True}, arguments=["--json"], target_epsilon={"skin": 2.0})
    strict = json.loads(result.stdout)["strict"]
    update, rows = strict["releases"]
    assert gaussian_epsilon(16.0, 1e-5, update["rounds"]) <= 2.0 < gaussian_epsilon(16.0, 1e-5, update["rounds"] + 1)
    assert (rows["treatment"], rows["outside_budget"], rows["rounds"]) == ("quantise", True, None)
    assert strict["protects"] == "all data of the site, replaced"


def test_a_table_for_people(check):
    scalars = [{"name": "validation.*", "part": "val", "minimum_support": 20}]
    shown = check(UPDATE, scalars=scalars, target_epsilon={"skin": 2.0}).stdout
    assert "scope strict (default): protects all data of the site, replaced" in shown
    assert "target epsilon (target_epsilon) at delta 1e-05: skin: 2" in shown
    assert "20 patients in val" in shown
    assert "everything else is denied" in shown
    assert "a task must have: nothing (demands)" in shown
    assert "images of at most 1024 pixels a side; answers leave at once" in " ".join(shown.split())


def test_without_a_target_nothing_is_said_to_be_protected(check):
    shown = " ".join(check(UPDATE).stdout.split())
    assert "scope strict (default): no limit of epsilon, so none is promised" in shown
    assert "(target_epsilon) not set; with it all data of the site, replaced, would be protected" in shown
    assert json.loads(check(UPDATE, arguments=["--json"]).stdout)["strict"]["protects"] is None


def test_a_mistake_is_an_error(check, tmp_path):
    result = check(UPDATE | {"clip": 0})
    assert result.exit_code == 1
    assert "clip must be positive" in result.stderr
