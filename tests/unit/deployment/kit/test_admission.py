"""A site refuses jobs of others than it has listed, and while a file of its own is damaged; the doctor finds the same."""

import io
import json
import shutil
import zipfile

import pytest
from nvflare.apis.workspace import Workspace
from nvflare.lighter.utils import load_private_key, sign_folders
from nvflare.private.fed.utils.app_deployer import AppDeployer

from grandrounds.deployment.kit.admission import CheckedDeployer, privacy_fault
from grandrounds.deployment.kit.overlay import OVERLAYS, apply_overlay
from grandrounds.deployment.kit.safeguards import privacy
from grandrounds.deployment.kit.signers import SUBMITTERS

JOB = "0d8fba9f-0e7e-4b0a-9b62-3c7f9b1f3a11"


@pytest.fixture
def site(make_kit):
    kit = make_kit("site")
    apply_overlay(kit)
    return kit


def test_the_roles_of_submitters_are_those_of_startup_kits():
    assert json.loads((OVERLAYS / "signers.json").read_text())["roles"] == list(SUBMITTERS)


@pytest.fixture
def signed(tmp_path, authorities, site):
    """A job's files, signed by a person with a role; ``change`` may change them afterwards."""

    def make(name="ann@study.example", role="lead", change=lambda folder: None, authority=None):
        folder = tmp_path / "app"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "config").mkdir(parents=True)
        (folder / "config" / "config_fed_client.json").write_text("{}")
        certificate, key = (authority or authorities["study"]).issue(name, 10, hosts=(), role=role)
        (tmp_path / "person.crt").write_bytes(certificate)
        sign_folders(str(folder), load_private_key(key.decode()), str(tmp_path / "person.crt"))
        change(folder)
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for path in sorted(folder.rglob("*")):
                archive.write(path, path.relative_to(folder))
        return stream.getvalue()

    return make


@pytest.fixture
def deploy(site, signed, monkeypatch):
    """A job arrives at the site; FLARE's own deployer would accept it."""
    monkeypatch.setattr(AppDeployer, "deploy", lambda *arguments: None)
    workspace = Workspace(root_dir=str(site.folder))
    return lambda job=JOB, app=None: CheckedDeployer().deploy(workspace, job, {}, "app", app or signed(), None)


def test_a_site_whose_files_are_in_order_accepts(deploy):
    assert deploy() == ""


@pytest.mark.parametrize("name", ["local", "startup", "grandrounds", JOB.upper(), f"{JOB}/..", "", None])
def test_a_job_cannot_have_the_name_of_a_folder_of_the_kit(deploy, name):
    """FLARE empties the folder of this name before it unpacks the job."""
    assert deploy(name) == "the job's id is none that FLARE gives"


def write_signers(site, **content):
    (site.local / "signers.json").write_text(json.dumps({"roles": [], "names": [], **content}))


def test_a_job_is_run_for_the_roles_and_names_that_the_site_lists(site, deploy, signed):
    assert deploy(app=signed(role="project_admin")) == ""
    refused = "the job is signed by ann@study.example (member), whose jobs this site does not run"
    assert deploy(app=signed(role="member")) == refused
    write_signers(site, names=["bo@study.example"])
    assert "signed by ann@study.example (lead)" in deploy(app=signed(role="lead"))
    assert deploy(app=signed("bo@study.example", role="member")) == ""


def test_the_servers_own_certificate_signs_no_job(deploy, signed):
    assert "signed by server (no role)" in deploy(app=signed("server", role=""))


def test_a_job_that_was_changed_or_lacks_a_signature_is_refused(deploy, signed, make_kit, authorities):
    def change(folder):
        (folder / "config" / "config_fed_client.json").write_text("{ }")

    def unsign(folder):
        for path in folder.rglob(".__nvfl_sig.json"):
            path.unlink()

    make_kit("site", project="another")
    apps = [signed(change=change), signed(change=unsign), signed(authority=authorities["another"])]
    assert [deploy(app=app) for app in apps] == ["the job has no valid signature of a person"] * 3


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
    (lambda site: write_signers(site), "signers.json: ConfigurationError: signers.json allows nobody"),
    (lambda site: (site.local / "signers.json").unlink(), "signers.json: "),
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
