"""A site's privacy policy and ledger, as the tests here install them."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from nvflare.apis.filter import FilterChainType
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.workspace import Workspace
from nvflare.private.privacy_manager import Scope

sys.path.insert(0, str(Path(__file__).parent))  # tests of the gate share gated_site

from gated_site import gated

from grandrounds.privacy.gate.filters import SitePrivacyGate
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.protocol.messages import Payload
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.wire import encode_payload

GATE = "grandrounds.privacy.gate.filters.SitePrivacyGate"
UPDATE = {
    "kind": "model_update",
    "name": "update",
    "treatment": "clip_and_noise",
    "clip": 1.0,
    "noise_multiplier": 16.0,
    "running_statistics": "drop",
}


@pytest.fixture(autouse=True, scope="module")
def few_images():
    """Policies withhold what few images give: sites draw as many as those of users."""


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


@pytest.fixture(scope="module")
def site(tmp_path_factory, shared_cache, install, policy_of):
    """A site with phantoms, a policy and a ledger; ``admit`` passes a training task through the gate."""
    root = tmp_path_factory.mktemp("site")
    (root / "startup").mkdir()
    content = policy_of(scalars=[{"name": "validation.*", "part": "val", "minimum_support": 2}], facts=["backbone"])
    install(root / "local", content)
    engine = SimpleNamespace(get_workspace=lambda: Workspace(str(root), "site-1"))
    manager = FLContextManager(engine=engine, identity_name="site-1", job_id="job-1")
    scope = Scope()
    scope.set_name("strict")
    scope.set_props({"grandrounds": content})
    scope.add_task_result_filter(SitePrivacyGate(), FilterKey.OUT)
    problem = Problem("phantom", ("a", "b"), backbone="resnet10").to_dict()
    values = {"problem": problem, "run_name": "run", "run_id": "r-1", "seed": 0}
    asked = Payload(1, values, {"global": {"w": torch.zeros(3), "b": torch.zeros(2), "n": torch.tensor(1)}})

    def admit(task="train", message=None):
        context = manager.new_context()
        context.set_prop(FLContextKey.SCOPE_OBJECT, scope, private=True, sticky=False)
        context.set_prop(FLContextKey.TASK_NAME, task, private=True, sticky=False)
        came_in = gated(FilterChainType.TASK_DATA_CHAIN).process(message or encode_payload(asked), context)
        return context, came_in

    return SimpleNamespace(root=root, admit=admit, asked=asked, scope=scope, folder=root / "local" / "privacy")
