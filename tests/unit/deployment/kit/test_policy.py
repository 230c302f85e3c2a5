"""What a participant's files must say is put there, once, and the rest stays."""

import contextlib
import json
import re
from importlib import import_module
from pathlib import Path

import pytest
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.workspace import Workspace
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.sec.authz import AuthzContext, Person
from nvflare.security.security import FLAuthorizer

from grandrounds.deployment.kit.classes import added_classes, classes_fault, component_classes
from grandrounds.deployment.kit.policy import (
    component,
    forbidden_rights,
    is_guarded,
    restricted,
    server_resources,
    site_resources,
)
from grandrounds.deployment.kit.shipped import OVERLAYS
from grandrounds.errors import ConfigurationError
from grandrounds.files import read_json_object

SWARM = "nvflare.app_common.ccwf.SwarmClientController"
FLARES = {"class_allow_list": list(DEFAULT_CLASS_ALLOW_LIST)}
RESOURCES = {"class_allow_list": ["a.B"], "components": [{"id": "resource_manager", "args": {"num_of_gpus": 0}}]}


def test_a_site_allows_our_classes_beside_flares_and_keeps_its_logs():
    changed = site_resources(RESOURCES, 2, 24.0)
    assert changed["class_allow_list"] == ["a.B", *component_classes()]
    assert changed["allow_log_streaming"] is False
    assert changed["class_list_enforcement_mode"] == "enforce"
    assert component(changed, "resource_manager")["args"] == {"num_of_gpus": 2, "mem_per_gpu_in_GiB": 24.0}
    assert RESOURCES["class_allow_list"] == ["a.B"], "the input stays as it is"


def test_twice_is_once():
    once = site_resources(RESOURCES, None, None)
    assert site_resources(once, None, None) == once


@pytest.mark.parametrize("before", [["a.B", "grandrounds."], ["a.B", "grandrounds"], ["*", "a.B"]])
def test_a_wider_permission_of_an_older_overlay_is_taken_back(before):
    changed = site_resources({**RESOURCES, "class_allow_list": before}, None, None)
    assert changed["class_allow_list"] == ["a.B", *component_classes()]


@pytest.mark.parametrize(
    ("allowed", "fault"),
    [
        (["a.B"], "^grandrounds.* is not allowed"),
        (["*", *component_classes()], r"^\* must not be allowed"),
        ([*component_classes(), "grandrounds.files."], "grandrounds.files. must not be allowed"),
        ([*component_classes(), "nvflare."], "nvflare. must not be allowed"),
        ([SWARM, *component_classes()], "SwarmClientController must not be allowed"),
        (["a.B", "grandrounds_of_others.C", *component_classes()], "^$"),
    ],
)
def test_a_list_that_is_too_short_or_too_long_is_reported(allowed, fault):
    assert re.search(fault, classes_fault({"class_allow_list": allowed}, at_site=True))


def test_a_server_may_listen_to_what_a_site_may_not_send():
    receiver = "nvflare.app_opt.tracking.tb.tb_receiver.TBAnalyticsReceiver"
    allowed = {"class_allow_list": [receiver, *component_classes()]}
    assert classes_fault(allowed, at_site=False) == ""
    assert classes_fault(allowed, at_site=True) == f"{receiver} must not be allowed"


def test_a_server_builds_of_flares_own_classes_what_writes_tensorboard_files_and_what_its_operator_lists():
    """The others call an address that a job names, store what sites send, or start a job without mandatory sites."""
    tracker = "nvflare.app_opt.tracking.mlflow.mlflow_receiver.MLflowReceiver"

    def built(*listed):
        resources = server_resources(FLARES, None, listed)
        assert classes_fault(resources, at_site=False, listed=listed) == ""
        return [path for path in resources["class_allow_list"] if path.startswith("nvflare")]

    assert built() == ["nvflare.app_opt.tracking.tb.tb_receiver.TBAnalyticsReceiver"]
    assert built(tracker) == [tracker, *built()]
    assert classes_fault(server_resources(FLARES, None, [tracker]), at_site=False) == f"{tracker} must not be allowed"
    with pytest.raises(ConfigurationError, match=r"FedAvg must not be allowed"):
        built("nvflare.app_common.workflows.fedavg.FedAvg")
    with pytest.raises(ConfigurationError, match=r"os\.system.*--plugin"):
        built("os.system")


@pytest.mark.parametrize("added", ["subprocess.Popen", "nvflare.app_common.executors.", "our_hospital.filters.Blur"])
def test_what_a_participant_has_added_is_reported(added):
    assert added_classes(site_resources(FLARES, None, None)) == []
    assert added_classes(site_resources({"class_allow_list": [*FLARES["class_allow_list"], added]}, None, None)) == [
        added
    ]


def test_a_list_that_only_warns_is_no_list():
    content = {"class_allow_list": component_classes(), "class_list_enforcement_mode": "warn"}
    assert classes_fault(content, at_site=True) == "the list of allowed classes is not enforced"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("grandrounds.methods.fedperl.executor.FedPerlExecutor", True),
        ("grandrounds.federation.job_noise.GaussianPrivacy", True),
        ("grandrounds.deployment.processes.run_logged", False),
        ("grandrounds.deployment.jobs.import_module", False),
        ("grandrounds.methods.fedperl.executor.torch", False),
        ("nvflare.app_common.executors.model_learner_executor.ModelLearnerExecutor", False),
        ("nvflare.app_common.widgets.convert_to_fed_event.ConvertToFedEvent", False),
        (SWARM, False),
        ("nvflare.app_opt.tracking.mlflow.mlflow_receiver.MLflowReceiver", False),
    ],
)
def test_flare_itself_builds_components_and_calls_no_function(tmp_path, path, allowed):
    """FLARE's own authoriser reads the list. ``run_logged`` would run any program that a job names, and what swarm learning
    and events send passes no filter of the site.
    """
    (tmp_path / "local").mkdir()
    (tmp_path / "startup").mkdir()
    (tmp_path / "local" / "resources.json").write_text(json.dumps(site_resources(FLARES, None, None)))
    workspace = Workspace(str(tmp_path), "hospital-a")
    refused = contextlib.nullcontext() if allowed else pytest.raises(UnsafeComponentError, match="not in allow_list")
    with refused:
        ComponentPathAuthorizer().authorize_component_config({"path": path, "args": {}}, workspace=workspace)


def test_every_allowed_class_of_ours_is_a_component_of_flare():
    for path in component_classes():
        module, _, name = path.rpartition(".")
        assert issubclass(getattr(import_module(module), name), FLComponent), path


def test_gpus_and_their_memory_are_set_each_by_itself():
    both = site_resources(RESOURCES, 2, 24.0)
    assert component(site_resources(both, 1, None), "resource_manager")["args"] == {
        "num_of_gpus": 1,
        "mem_per_gpu_in_GiB": 24.0,
    }
    assert component(site_resources(both, None, 8.0), "resource_manager")["args"] == {
        "num_of_gpus": 2,
        "mem_per_gpu_in_GiB": 8.0,
    }


@pytest.mark.parametrize("names", ["all", None, {"a.B": True}, ["a.B", 7]])
def test_an_invalid_list_of_classes_is_reported(names):
    with pytest.raises(ConfigurationError, match="class_allow_list must be a list of names of classes, got"):
        site_resources({**RESOURCES, "class_allow_list": names}, None, None)


def test_gpus_need_a_manager():
    with pytest.raises(ConfigurationError, match="no component 'resource_manager'"):
        site_resources({"components": []}, 1, None)


def test_a_server_stores_where_it_is_configured():
    given = {
        "snapshot_persistor": {"args": {"storage": {"args": {"root_dir": "/tmp/x"}}}},
        "components": [{"id": "job_manager", "args": {"uri_root": "/tmp/y"}}],
    }
    changed = server_resources(given, Path("/srv/flare"))
    assert component(changed, "job_manager")["args"]["uri_root"] == "/srv/flare/jobs"
    assert changed["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] == "/srv/flare/snapshots"
    assert "/tmp" not in str(changed)


def test_a_role_with_every_right_loses_the_forbidden_ones_only():
    changed = restricted(
        {"permissions": {"project_admin": "any", "lead": {"byoc": "any", "view": "any", "cat": "any"}}}
    )
    assert forbidden_rights(changed) == []
    assert changed["permissions"]["project_admin"]["operate"] == "any"
    assert changed["permissions"]["lead"] == {"byoc": "none", "shell_commands": "none", "view": "any"}
    assert restricted(changed) == changed


@pytest.mark.parametrize(("right", "command"), [("byoc", "byoc"), ("shell_commands", "cat"), ("cat", "cat")])
@pytest.mark.parametrize(
    "rights",
    [{"*": "any", "RIGHT": "none"}, {"RIGHT": "none", "RIGHT ": "any"}, {" RIGHT ": "o:site"}, ["any"], "any"],
    ids=str,
)
def test_no_way_to_write_a_right_is_overlooked(rights, right, command):
    """FLARE takes ``*`` before every other right, and does not tell upper case from lower: its own authoriser is asked."""
    if isinstance(rights, dict):
        rights = {name.replace("RIGHT", right.upper() if " " in name else right): who for name, who in rights.items()}
    person = Person("ann", "hospital_a", "lead")
    asked = AuthzContext(right=command, user=person, submitter=person)
    before = {"format_version": "1.0", "permissions": {"lead": rights}}
    after = restricted(before)
    assert FLAuthorizer("hospital_a", before).authorize(asked)[0]
    assert "lead" in {role for role, _ in forbidden_rights(before)}
    assert not FLAuthorizer("hospital_a", after).authorize(asked)[0]
    assert forbidden_rights(after) == []
    assert restricted(after) == after


def test_a_kit_gets_the_guard_of_the_channels_once():
    for made in (site_resources(RESOURCES, None, None), server_resources(RESOURCES, None)):
        assert is_guarded(made)
        assert [entry["id"] for entry in made["components"]].count("channel_guard") == 1
        disabled = [{**entry, "disabled": True} for entry in made["components"]]
        assert not is_guarded({**made, "components": disabled})
    assert not is_guarded(RESOURCES)


def test_permissions_must_be_there():
    with pytest.raises(ConfigurationError, match="no permissions"):
        restricted({})


@pytest.mark.parametrize("role", ["project_admin", "org_admin", "lead", "member"])
def test_flare_itself_refuses_own_code_for_every_role(role):
    """FLARE's own authoriser reads the overlay, and is asked."""
    authorizer = FLAuthorizer("hospital_a", read_json_object(OVERLAYS / "authorization.json"))
    person = Person("ann", "elsewhere", role)
    allowed, _ = authorizer.authorize(AuthzContext(right="byoc", user=person, submitter=person))
    assert not allowed


@pytest.mark.parametrize("organisation", ["hospital_a", "elsewhere"])
@pytest.mark.parametrize("role", ["project_admin", "org_admin", "lead", "member"])
def test_nobody_may_look_into_a_hospitals_files(role, organisation):
    authorizer = FLAuthorizer("hospital_a", read_json_object(OVERLAYS / "authorization.json"))
    person = Person("ann", organisation, role)
    for command in ("cat", "grep", "head", "ls", "pwd", "tail"):
        assert not authorizer.authorize(AuthzContext(right=command, user=person, submitter=person))[0]


def test_a_researcher_may_submit_and_the_operator_may_stop():
    authorizer = FLAuthorizer("hospital_a", read_json_object(OVERLAYS / "authorization.json"))
    for role, right in (("lead", "submit_job"), ("project_admin", "shutdown"), ("project_admin", "abort_job")):
        person = Person("ann", "elsewhere", role)
        assert authorizer.authorize(AuthzContext(right=right, user=person, submitter=person))[0], (role, right)
