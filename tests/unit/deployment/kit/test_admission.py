"""A site refuses jobs while one of its own files is damaged, and names it; the doctor finds the same."""

import json

import pytest
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.utils.app_deployer import AppDeployer

from grandrounds.deployment.kit.admission import CheckedDeployer, privacy_fault
from grandrounds.deployment.kit.overlay import apply_overlay
from grandrounds.deployment.kit.safeguards import privacy

JOB = "0d8fba9f-0e7e-4b0a-9b62-3c7f9b1f3a11"


@pytest.fixture
def site(make_kit):
    kit = make_kit("site")
    apply_overlay(kit)
    return kit


@pytest.fixture
def deploy(site, monkeypatch):
    """A job arrives at the site; FLARE's own deployer would accept it."""
    monkeypatch.setattr(AppDeployer, "deploy", lambda *arguments: None)
    workspace = Workspace(root_dir=str(site.folder))
    return lambda job=JOB: CheckedDeployer().deploy(workspace, job, {}, "app", b"", None)


def test_a_site_whose_files_are_in_order_accepts(deploy):
    assert deploy() == ""


@pytest.mark.parametrize("name", ["local", "startup", "grandrounds", JOB.upper(), f"{JOB}/..", "", None])
def test_a_job_cannot_have_the_name_of_a_folder_of_the_kit(deploy, name):
    """FLARE empties the folder of this name before it unpacks the job."""
    assert deploy(name) == "the job's id is none that FLARE gives"


def unknown_class(site):
    path = site.local / "privacy.json"
    content = json.loads(path.read_text())
    content["scopes"][0]["task_result_filters"].append({"path": "grandrounds.privacy.gate.filters.Unknown", "args": {}})
    path.write_text(json.dumps(content))


BROKEN = [
    (unknown_class, "privacy.json: "),
    (lambda site: (site.local / "privacy.json").write_text("{"), "privacy.json: "),
    (lambda site: (site.local / "grandrounds.json").write_text("[]"), "grandrounds.json: "),
    (lambda site: (site.local / "resources.json").write_text("{"), "resources.json: "),
    (lambda site: (site.local / "authorization.json").write_text(""), "authorization.json: "),
]


@pytest.mark.parametrize(("damage", "named"), BROKEN)
def test_a_damaged_file_refuses_the_job_by_name_and_without_the_sites_folders(site, deploy, damage, named):
    damage(site)
    reason = deploy()
    assert reason.startswith("the site's own files are not valid: " + named)
    assert "grandrounds doctor --kit" in reason
    assert str(site.folder) not in reason


def test_the_doctor_fails_for_a_class_that_does_not_load(site):
    assert privacy_fault(site.folder) == ""
    unknown_class(site)
    (finding,) = privacy(site)
    assert finding.level == "failure"
    assert "Unknown" in finding.message


def test_the_overlay_names_the_deployer_once(site):
    apply_overlay(site)
    components = json.loads((site.local / "resources.json").read_text())["components"]
    assert [entry["path"] for entry in components if entry["id"] == "app_deployer"] == [
        "grandrounds.deployment.kit.admission.CheckedDeployer"
    ]
