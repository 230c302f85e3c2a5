"""Every executor can be sent to a child process, which finds the site's files and asks the gate in its parent."""

import pickle
from importlib import import_module
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.workspace import Workspace

from grandrounds.deployment.jobs import job_names, load_job
from grandrounds.federation.site.worker import SiteIdentity
from grandrounds.protocol.paths import result_folder, state_folder
from grandrounds.protocol.spending import TRAINING_GATE


@pytest.mark.parametrize("name", job_names())
def test_every_jobs_executor_can_be_sent(name):
    entry = load_job(name).executor
    module, _, class_name = entry["path"].rpartition(".")
    executor = getattr(import_module(module), class_name)(**entry["args"])
    twin = pickle.loads(pickle.dumps(executor))
    assert type(twin) is type(executor)
    assert twin.options() == executor.options()


@pytest.fixture
def context(tmp_path, monkeypatch):
    """FLARE's, at a site."""
    monkeypatch.delenv("GRANDROUNDS_STATE", raising=False)
    for folder in ("local", "startup"):
        (tmp_path / "kit" / folder).mkdir(parents=True)
    workspace = Workspace(str(tmp_path / "kit"), "hospital-a")
    engine = SimpleNamespace(get_workspace=lambda: workspace)
    return FLContextManager(engine, "hospital-a", "job-1").new_context()


def test_the_child_finds_the_sites_files_where_the_parent_does(context):
    identity = pickle.loads(pickle.dumps(SiteIdentity.of(context)))
    childs = identity.context()
    assert childs.get_identity_name() == "hospital-a"
    for folder in (lambda c: state_folder(c, "run", "hospital-a"), result_folder):
        assert folder(childs) == folder(context)
    config = [c.get_engine().get_workspace().get_site_config_dir() for c in (context, childs)]
    assert config[0] == config[1]


def test_the_gate_is_asked_in_the_parent(context):
    """In a test there is no parent: the attempt fails."""
    gate = SimpleNamespace(hides_failures=True, counts_updates=False)
    context.set_prop(TRAINING_GATE, gate, private=True, sticky=False)
    admission = SiteIdentity.of(context).context().get_prop(TRAINING_GATE)
    with pytest.raises(RuntimeError, match="only a child process of run_isolated has a parent to ask"):
        admission.admit_training(None)
    assert (admission.hides_failures, admission.counts_updates) == (True, False)


def test_the_child_of_a_site_without_a_gate_has_none(context):
    assert SiteIdentity.of(context).context().get_prop(TRAINING_GATE) is None
