"""Jobs that try to get around a hospital's rules: FLARE's own deployment and configuration judge them, with our overlay."""

import io
import json
import stat
import zipfile
from argparse import Namespace
from contextlib import nullcontext

import pytest
from nvflare.apis.fl_constant import FLContextKey, SiteType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.fuel.common.excepts import ComponentNotAuthorized
from nvflare.fuel.sec.authz import AuthorizationService
from nvflare.private.fed.app.default_app_validator import DefaultAppValidator
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.fed.client.client_json_config import ClientJsonConfigurator
from nvflare.private.fed.utils.app_authz import AppAuthzService
from nvflare.private.fed.utils.app_deployer import AppDeployer
from nvflare.private.fed.utils.fed_utils import authorize_build_component
from nvflare.private.privacy_manager import PrivacyService
from nvflare.security.security import FLAuthorizer

from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.kit.overlay import apply_overlay
from grandrounds.files import read_json_object, write_json

JOB = "0d8fba9f-0e7e-4b0a-9b62-3c7f9b1f3a11"
CLIENT_CONFIG = "config/config_fed_client.json"
RESEARCHER = {"submitter_name": "ann@elsewhere.example", "submitter_org": "elsewhere", "submitter_role": "lead"}


@pytest.fixture
def site(make_kit):
    """A hospital whose kit allows FLARE's own classes and, by the overlay, ours."""
    kit = make_kit("site")
    default = kit.local / "resources.json.default"
    write_json(default, {**read_json_object(default), "class_allow_list": list(DEFAULT_CLASS_ALLOW_LIST)})
    apply_overlay(kit)
    return kit


def app(*more):
    """A job's app as it travels: FedPerl's configuration, and further entries of the archive by name."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(CLIENT_CONFIG, json.dumps(load_job("fedperl").client))
        for name in more:
            archive.writestr(name, "raise SystemExit")
    return stream.getvalue()


def link(name):
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


@pytest.fixture
def deploy(site, monkeypatch):
    """Submits a job to FLARE as its client does; returns FLARE's refusal, or nothing if it accepts the job."""
    workspace = Workspace(str(site.folder), site.name)
    rights = FLAuthorizer("hospital_a", read_json_object(site.local / "authorization.json"))
    monkeypatch.setattr(AuthorizationService, "the_authorizer", rights)
    monkeypatch.setattr(AppAuthzService, "app_validator", DefaultAppValidator(SiteType.CLIENT))
    monkeypatch.setattr(PrivacyService, "manager", create_privacy_manager(workspace, names_only=True))

    def go(content, **meta):
        return AppDeployer().deploy(workspace, JOB, {**RESEARCHER, **meta}, "app", content, FLContext()) or ""

    return go


def test_an_honest_job_is_taken(deploy):
    assert deploy(app()) == ""


def test_that_a_job_calls_its_code_its_own_gives_it_no_freedom(deploy, site):
    """FLARE asks the list of allowed classes only for jobs without code: the word of the job must not count."""
    assert deploy(app(), byoc=True) == ""
    assert "byoc" not in read_json_object(site.folder / JOB / "meta.json")


@pytest.mark.parametrize("entry", ["custom/spy.py", "custom/", "custom/grandrounds/__init__.py"])
def test_code_is_found_however_the_archive_names_it(deploy, site, entry):
    """Also a file without an entry for its folder, and a job that claims to have no code."""
    assert deploy(app(entry), byoc=False) == "BYOC not permitted"
    assert not (site.folder / JOB).exists()


@pytest.mark.parametrize(
    "meta",
    [
        {"launcher_spec": {"hospital-a": {"docker": {"image": "spy"}}}},
        {"launcher_spec": {"default": {"docker": {"entrypoint": ["sh"]}}}},
        {"launcher_spec": {"hospital-a": {"slurm": {"python_path": "/tmp/spy"}}}},
        {"resource_spec": {"hospital-a": {"docker": {"image": "spy"}}}},
        {"resource_spec": {"hospital-a": {"k8s": {"python_path": "/tmp/spy"}}}},
    ],
)
def test_another_image_or_interpreter_is_code(deploy, meta):
    assert deploy(app(), **meta) == "BYOC not permitted"


@pytest.mark.parametrize("scope", ["none", "public", "STANDARD", "standard ", "../standard"])
def test_only_the_sites_own_scopes_are_there(deploy, scope):
    assert deploy(app(), scope=scope) == f"privacy scope '{scope}' is not allowed"


@pytest.mark.parametrize(
    "name",
    ["../../local/privacy.json", "../local/resources.json", "/etc/grandrounds", "a/../../b", link("custom")],
    ids=str,
)
def test_nothing_is_unpacked_outside_the_jobs_folder(deploy, site, name):
    before = {path: path.read_bytes() for path in site.folder.rglob("*") if path.is_file()}
    with pytest.raises(Exception, match="when deploying app"):
        deploy(app(name))
    after = {path: path.read_bytes() for path in site.folder.rglob("*") if path.is_file()}
    assert {path: content for path, content in after.items() if JOB not in path.parts} == before


def configure(site, content):
    """Build a job's components as FLARE's job process does at this site."""
    root = site.folder / JOB / f"app_{site.name}"
    write_json(root / CLIENT_CONFIG, content)
    write_json(site.folder / JOB / "meta.json", RESEARCHER)
    workspace, context = Workspace(str(site.folder), site.name), FLContext()
    context.set_prop(FLContextKey.WORKSPACE_OBJECT, workspace, private=True)
    context.set_prop(FLContextKey.CURRENT_JOB_ID, JOB, private=False, sticky=True)
    arguments = {"sp_scheme": "", "sp_target": "", "client_name": site.name, "job_id": JOB, "set": []}
    configurator = ClientJsonConfigurator(
        workspace_obj=workspace,
        config_file_name=str(root / CLIENT_CONFIG),
        app_root=str(root),
        args=Namespace(**arguments, workspace=str(site.folder)),
        kv_list=[],
    )
    configurator.set_component_build_authorizer(authorize_build_component, fl_ctx=context, event_handlers=[])
    configurator.configure()


def as_component(entry, job):
    return {**job, "components": [{"id": "spy", **entry}]}


def as_plain_values(entry, job):
    return {**job, "components": [{"id": "spy", "config_type": "dict", **entry}]}


def as_filter_of_answers(entry, job):
    return {**job, "task_result_filters": [{"tasks": ["train"], "filters": [entry]}]}


def as_filter_of_tasks(entry, job):
    return {**job, "task_data_filters": [{"tasks": ["train"], "filters": [entry]}]}


def as_executor(entry, job):
    return {**job, "executors": [{"tasks": ["*"], "executor": entry}]}


def as_argument(entry, job):
    job["executors"][0]["executor"]["args"]["device"] = entry
    return job


def in_a_list(entry, job):
    job["executors"][0]["executor"]["args"]["strong_levels"] = [entry]
    return job


def as_argument_of_an_argument(entry, job):
    inner = {"path": "grandrounds.federation.job_noise.GaussianPrivacy", "args": {"clip": entry}}
    return as_component({"path": inner["path"], "args": {"clip": inner}}, job)


@pytest.mark.parametrize(
    "place",
    [
        as_component,
        as_plain_values,
        as_filter_of_answers,
        as_filter_of_tasks,
        as_executor,
        as_argument,
        in_a_list,
        as_argument_of_an_argument,
    ],
)
@pytest.mark.parametrize("key", ["path", "class_path"])
def test_a_program_is_not_run_wherever_the_job_names_it(site, place, key, monkeypatch):
    ran = []
    monkeypatch.setattr("subprocess.Popen", lambda **arguments: ran.append(arguments))
    entry = {key: "subprocess.Popen", "args": {"args": ["true"]}}
    with pytest.raises(ComponentNotAuthorized, match=r"'subprocess.Popen' .* is not in allow_list"):
        configure(site, place(entry, load_job("fedperl").client))
    assert ran == []


def test_a_class_without_its_module_is_refused(site):
    with pytest.raises(ComponentNotAuthorized, match="name is not allowed"):
        configure(site, as_component({"name": "FedPerlExecutor"}, load_job("fedperl").client))


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("grandrounds.federation.job_noise.GaussianPrivacy", True),
        ("grandrounds.privacy.gate.filters.SitePrivacyGate", False),
        ("grandrounds.deployment.processes.run_logged", False),
        ("swarm.SwarmController", False),
        ("nvflare.app_common.logging.job_log_streamer.JobLogStreamer", False),
        ("nvflare.app_common.executors.client_api_executor.ClientAPIExecutor", False),
    ],
)
def test_only_allowed_classes_may_be_added_to_a_job(site, path, allowed):
    arguments = {"clip": 1.0, "noise_multiplier": 1.0} if allowed else {}
    refused = pytest.raises(ComponentNotAuthorized, match="is not in allow_list")
    with nullcontext() if allowed else refused:
        configure(site, as_component({"path": path, "args": arguments}, load_job("fedperl").client))
