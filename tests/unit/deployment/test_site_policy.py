"""What a participant's files must say is put there, once, and the rest stays."""

from pathlib import Path

import pytest
from nvflare.fuel.sec.authz import AuthzContext, Person
from nvflare.security.security import FLAuthorizer

from grandrounds.deployment.kit import read_json_object
from grandrounds.deployment.overlay import OVERLAYS
from grandrounds.deployment.site_policy import (
    component,
    roles_with_own_code,
    server_resources,
    site_resources,
    without_own_code,
)
from grandrounds.errors import ConfigurationError

RESOURCES = {"class_allow_list": ["a.B"], "components": [{"id": "resource_manager", "args": {"num_of_gpus": 0}}]}


def test_a_site_allows_our_classes_beside_flares_and_keeps_its_logs():
    changed = site_resources(RESOURCES, 2, 24.0)
    assert changed["class_allow_list"] == ["a.B", "grandrounds."]
    assert changed["allow_log_streaming"] is False
    assert changed["class_list_enforcement_mode"] == "enforce"
    assert component(changed, "resource_manager")["args"] == {"num_of_gpus": 2, "mem_per_gpu_in_GiB": 24.0}
    assert RESOURCES["class_allow_list"] == ["a.B"], "the input stays as it is"


def test_twice_is_once():
    once = site_resources(RESOURCES, None, None)
    assert site_resources(once, None, None) == once


def test_gpus_need_a_manager():
    with pytest.raises(ConfigurationError, match="no component 'resource_manager'"):
        site_resources({"components": []}, 1, None)


def test_a_server_stores_where_it_is_told():
    given = {
        "snapshot_persistor": {"args": {"storage": {"args": {"root_dir": "/tmp/x"}}}},
        "components": [{"id": "job_manager", "args": {"uri_root": "/tmp/y"}}],
    }
    changed = server_resources(given, Path("/srv/flare"))
    assert component(changed, "job_manager")["args"]["uri_root"] == "/srv/flare/jobs"
    assert changed["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] == "/srv/flare/snapshots"
    assert "/tmp" not in str(changed)


def test_a_role_with_every_right_loses_one_only():
    changed = without_own_code({"permissions": {"project_admin": "any", "lead": {"byoc": "any", "view": "any"}}})
    assert roles_with_own_code(changed) == []
    assert changed["permissions"]["project_admin"]["shell_commands"] == "any"
    assert changed["permissions"]["lead"] == {"byoc": "none", "view": "any"}
    assert without_own_code(changed) == changed


def test_permissions_must_be_there():
    with pytest.raises(ConfigurationError, match="no permissions"):
        without_own_code({})


@pytest.mark.parametrize("role", ["project_admin", "org_admin", "lead", "member"])
def test_flare_itself_refuses_own_code_for_every_role(role):
    """FLARE's own authoriser reads the overlay, and is asked."""
    authorizer = FLAuthorizer("hospital_a", read_json_object(OVERLAYS / "authorization.json"))
    person = Person("ann", "elsewhere", role)
    allowed, _ = authorizer.authorize(AuthzContext(right="byoc", user=person, submitter=person))
    assert not allowed


@pytest.mark.parametrize(("organisation", "allowed"), [("hospital_a", True), ("elsewhere", False)])
@pytest.mark.parametrize("role", ["project_admin", "org_admin", "lead"])
def test_only_the_hospitals_own_people_may_look_into_its_files(role, organisation, allowed):
    authorizer = FLAuthorizer("hospital_a", read_json_object(OVERLAYS / "authorization.json"))
    person = Person("ann", organisation, role)
    assert authorizer.authorize(AuthzContext(right="cat", user=person, submitter=person))[0] is allowed


def test_a_researcher_may_submit_and_the_operator_may_stop():
    authorizer = FLAuthorizer("hospital_a", read_json_object(OVERLAYS / "authorization.json"))
    for role, right in (("lead", "submit_job"), ("project_admin", "shutdown"), ("project_admin", "abort_job")):
        person = Person("ann", "elsewhere", role)
        assert authorizer.authorize(AuthzContext(right=right, user=person, submitter=person))[0], (role, right)
