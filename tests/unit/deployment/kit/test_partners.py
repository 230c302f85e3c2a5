"""A hospital pins the keys that its partners have given it, and never another one in place of a pinned one."""

import json

import pytest
from typer.testing import CliRunner

from grandrounds.cli import build_app
from grandrounds.deployment.kit.overlay import LOCK, Settings, apply_overlay
from grandrounds.deployment.kit.partners import compared, own_key, pin, read_list
from grandrounds.deployment.kit.shipped import SUMS
from grandrounds.errors import ConfigurationError
from grandrounds.files import file_digest
from grandrounds.privacy.gate.policy import read_policies

ONE, TWO = "1" * 64, "2" * 64


@pytest.fixture
def site(make_kit):
    kit = make_kit("site")
    apply_overlay(kit, Settings(policy=SUMS))
    return kit


def states(found):
    return {partner.name: partner.state for partner in found}


def pinned(kit):
    (policy,) = read_policies(json.loads((kit.local / "privacy.json").read_text()), "here").values()
    return policy.sums.partners


def test_keys_are_compared_pinned_locked_and_compared_again(site):
    assert pinned(site) is None
    found = compared(site, {"hospital-b": ONE})
    assert states(found) == {site.name: "own", "hospital-b": "new"}
    pin(site, found)
    assert pinned(site) == {site.name: own_key(site), "hospital-b": ONE}
    lock = json.loads((site.local / LOCK).read_text())
    assert lock["files"]["privacy.json"] == file_digest(site.local / "privacy.json")
    assert states(compared(site, {})) == {site.name: "own", "hospital-b": "pinned"}
    later = compared(site, {"hospital-b": ONE, "hospital-c": TWO})
    assert states(later) == {site.name: "own", "hospital-b": "pinned", "hospital-c": "new"}
    assert states(compared(site, {"hospital-c": TWO}))["hospital-b"] == "not listed"


def test_another_key_in_place_of_a_pinned_one_is_not_written(site):
    pin(site, compared(site, {"hospital-b": ONE}))
    changed = compared(site, {"hospital-b": TWO})
    assert states(changed)["hospital-b"] == "another key is pinned"
    with pytest.raises(ConfigurationError, match="hospital-b: ask by telephone"):
        pin(site, changed)
    assert pinned(site)["hospital-b"] == ONE


def test_a_list_with_another_key_for_this_hospital_is_refused(site, make_kit):
    with pytest.raises(ConfigurationError, match=own_key(site)):
        compared(site, {site.name: ONE})
    with pytest.raises(ConfigurationError, match="hospitals are partners"):
        own_key(make_kit("server"))


@pytest.mark.parametrize("line", ["hospital-b", f"hospital-b {ONE} {TWO}", "hospital-b 12ab", f"hospital-a {TWO}"])
def test_a_line_of_another_form_is_named(tmp_path, line):
    path = tmp_path / "partners.txt"
    path.write_text(f"hospital-a {ONE}\n\n{line}\n")
    with pytest.raises(ConfigurationError, match="line 3 must be"):
        read_list(path)


def test_the_command_shows_the_own_line_first_and_pins_on_request(site, tmp_path):
    def run(*arguments):
        return CliRunner().invoke(build_app(), ["kit", "partners", str(site.folder), *map(str, arguments)])

    assert run().stdout.splitlines() == [f"{site.name} {own_key(site)} own"]
    path = tmp_path / "partners.txt"
    path.write_text(f"hospital-b {ONE}\n")
    assert run("--list", path).exit_code == 0
    assert pinned(site) is None
    assert run("--write").exit_code == 2
    assert run("--list", path, "--write").exit_code == 0
    assert pinned(site)["hospital-b"] == ONE
