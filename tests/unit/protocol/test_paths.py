"""In a kit a job names no files of its participant, and without a gate nothing is trained."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.workspace import Workspace

from grandrounds.errors import ConfigurationError
from grandrounds.federation.site.worker import require_gate
from grandrounds.protocol import paths
from grandrounds.protocol.paths import LOCK, claimed_folder, in_kit, job_part, require_confined
from grandrounds.protocol.spending import TRAINING_GATE


@pytest.fixture
def kit(tmp_path):
    """FLARE's context in a kit; ``lock`` makes it one with this project's overlay."""
    for name in ("local", "startup"):
        (tmp_path / name).mkdir()
    engine = SimpleNamespace(get_workspace=lambda: Workspace(str(tmp_path), "site-1"))
    context = FLContextManager(engine=engine, identity_name="site-1", job_id="job").new_context()
    return SimpleNamespace(context=context, local=tmp_path / "local", lock=(tmp_path / "local" / LOCK).touch)


def test_a_kit_is_known_by_its_lock(kit):
    assert not in_kit(kit.context)
    kit.lock()
    assert in_kit(kit.context)


def test_a_lock_that_cannot_be_looked_for_is_no_simulation(kit, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(paths, "os", SimpleNamespace(path=os.path, stat=refuse))
    with pytest.raises(PermissionError):
        in_kit(kit.context)


def test_a_kit_without_a_gate_works_on_no_task(kit):
    require_gate(kit.context)
    kit.lock()
    with pytest.raises(ConfigurationError, match="no privacy gate"):
        require_gate(kit.context)
    kit.context.set_prop(TRAINING_GATE, object(), private=True, sticky=False)
    require_gate(kit.context)


@pytest.mark.parametrize("path", ["/etc/passwd", "../other/state.pt", "{local}/../storage/model.pt"])
def test_a_job_names_files_of_the_folder_local_only(kit, path):
    path = path.format(local=kit.local)
    require_confined(path, "problem.weights", kit.context)
    kit.lock()
    with pytest.raises(ConfigurationError, match=r"problem\.weights.*files"):
        require_confined(path, "problem.weights", kit.context)
    require_confined(str(kit.local / "start.pt"), "problem.weights", kit.context)
    require_confined("imagenet", "problem.weights", kit.context)


def test_a_runs_name_belongs_to_the_submitter_and_job_that_used_it_first(kit):
    def submitted(submitter, job):
        path = Path(kit.context.get_engine().get_workspace().get_job_meta_path("job"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"submitter_name": submitter, "name": job}))
        return claimed_folder(kit.context, "run", "site-1")

    assert claimed_folder(kit.context, "run", "site-1") == submitted("anna", "fedavg") == submitted("anna", "fedavg")
    for other in (("bert", "fedavg"), ("anna", "fedperl")):
        with pytest.raises(ConfigurationError, match="is of job 'fedavg' by 'anna'; choose another"):
            submitted(*other)


@pytest.mark.parametrize("folder", ["config", ""], ids=["provision", "package"])
def test_a_jobs_part_is_found_in_kits_of_both_kinds(tmp_path, folder):
    """``nvflare package`` starts FLARE without a folder of configurations, and its workspace then names another place."""
    for part in ("startup", "local"):
        (tmp_path / part).mkdir()
    workspace = Workspace(str(tmp_path), "site-1", folder)
    found = tmp_path / "job-1" / "app_site-1" / "config" / "config_fed_client.json"
    assert job_part(workspace, "job-1", "client") == found
