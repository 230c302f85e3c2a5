"""The shipped policies: by name, short, with a reason for each rule, and one that fits the number of hospitals."""

import json

import pytest

from grandrounds.deployment.kit.overlay import Settings, apply_overlay
from grandrounds.deployment.kit.shipped import (
    DEFAULT_POLICY,
    OPEN,
    OVERLAYS,
    POLICIES,
    STRICT,
    SUMS,
    policy_lines,
    policy_name,
    shipped_content,
    shipped_policy,
)
from grandrounds.errors import ConfigurationError

SHIPPED = [name for name in POLICIES if (OVERLAYS / f"{name}.json").is_file()]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_policy_is_a_page_with_a_reason_for_each_rule_and_is_the_only_scope_of_its_file(name):
    assert len((OVERLAYS / f"{name}.json").read_text().splitlines()) <= 60
    policy = shipped_policy(name)
    assert all(rule.reason for rule in (*policy.releases, *policy.scalars))
    assert policy.about
    assert [scope["name"] for scope in shipped_content(name)["scopes"]] == [name], "a job could choose the weaker one"


@pytest.mark.parametrize("name", SHIPPED)
def test_five_lines_describe_a_policy_with_every_release(name):
    lines = policy_lines(name)
    assert len(lines) == 5
    assert all(rule.name in lines[1] for rule in shipped_policy(name).releases)


def test_two_hospitals_get_the_open_policy_and_none_of_sums():
    assert policy_name(None, 2) == policy_name(OPEN, 2) == OPEN
    assert policy_name(None, 3) == policy_name(None) == DEFAULT_POLICY
    assert policy_name(STRICT, 2) == STRICT
    assert policy_name(SUMS, 3) == SUMS
    with pytest.raises(ConfigurationError, match=f"--policy {OPEN}"):
        policy_name(SUMS, 2)
    with pytest.raises(ConfigurationError, match="standard"):
        policy_name("standard")


def test_a_kit_has_the_policy_that_was_named_and_keeps_it(make_kit):
    kit = make_kit("site")
    for settings in (Settings(policy=STRICT), None):
        apply_overlay(kit, settings)
        assert json.loads((kit.local / "privacy.json").read_text()) == shipped_content(STRICT)
    apply_overlay(kit, Settings(policy=OPEN))
    assert json.loads((kit.local / "privacy.json").read_text()) == shipped_content(OPEN)
    with pytest.raises(ConfigurationError, match="--policy"):
        apply_overlay(kit, Settings(policy=OPEN, privacy=OVERLAYS / "strict.json"))
