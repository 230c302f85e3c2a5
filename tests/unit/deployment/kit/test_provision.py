"""A project's description becomes kits; the same description serves one machine."""

import pytest
import yaml
from nvflare.fuel.utils.config_service import ConfigService
from nvflare.private.fed.server.job_runner import JobRunner

from grandrounds.deployment import local_federation
from grandrounds.deployment.job_watch import JobWatch
from grandrounds.deployment.kit.provision import PROJECT, local_project, provision, read_project, write_project
from grandrounds.deployment.kit.read import read_kit
from grandrounds.errors import ConfigurationError, GrandRoundsError


def test_the_projects_own_description_gives_a_kit_to_everyone(tmp_path):
    kits = provision(PROJECT, tmp_path / "kits")
    kinds = {folder.name: read_kit(folder).kind for folder in kits.iterdir()}
    assert kinds == {
        "server": "server",
        **dict.fromkeys(["hospital-a", "hospital-b", "hospital-c"], "site"),
        **dict.fromkeys(
            ["operator@consortium.example", "researcher@consortium.example", "it@hospital-a.example"], "person"
        ),
    }
    assert not (tmp_path / ".nvflare").exists()


def test_a_project_on_this_machine_keeps_its_people():
    project = read_project(PROJECT)
    local = local_project(project, ["x", "y"], 12345)
    server = next(entry for entry in local["participants"] if entry["type"] == "server")
    assert server["fed_learn_port"] == 12345
    assert server["default_host"] == "localhost"
    assert [entry["name"] for entry in local["participants"] if entry["type"] == "client"] == ["x", "y"]
    assert {entry.get("role") for entry in local["participants"]} >= {"project_admin", "lead", "org_admin"}
    assert project == read_project(PROJECT), "the input stays as it is"


def test_a_separate_port_for_administrators_is_removed():
    """On this machine one port is asked for, and one must do."""
    server = {"name": "s", "type": "server", "fed_learn_port": 1, "admin_port": 2}
    (local,) = local_project({"name": "p", "participants": [server]}, [], 3)["participants"]
    assert local["fed_learn_port"] == 3
    assert "admin_port" not in local


@pytest.mark.parametrize(
    ("text", "reason"),
    [("a: [", "not valid YAML"), ("name: p", "it needs a name and participants"), ("- a", "is not a project")],
)
def test_an_invalid_project_is_refused(tmp_path, text, reason):
    path = tmp_path / "project.yml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=reason):
        read_project(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_project(tmp_path / "absent.yml")


def test_a_refusal_by_flare_is_reported(tmp_path):
    project = read_project(PROJECT)
    broken = {**project, "participants": [*project["participants"], project["participants"][0]]}
    write_project(broken, tmp_path / "project.yml")
    assert yaml.safe_load((tmp_path / "project.yml").read_text()) == broken
    with pytest.raises(GrandRoundsError, match="nvflare provision refuses"):
        provision(tmp_path / "project.yml", tmp_path / "kits")


def test_a_folder_in_use_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="is not empty"):
        local_federation.prepare(tmp_path, ["a"], 1)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_folder_without_a_federation_is_reported(tmp_path):
    with pytest.raises(ConfigurationError, match="has no federation; start one with grandrounds poc up"):
        local_federation.load(tmp_path)


def federation_in(folder):
    return local_federation.Federation(folder, folder / "kits", "server", ("hospital-a",), "operator", "researcher")


def test_no_variable_leads_a_participant_out_of_its_folder(tmp_path, monkeypatch):
    outside = tmp_path / "outside"
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "MPLCONFIGDIR", "TORCH_HOME", "GRANDROUNDS_STATE", "NVFLARE_HOME"):
        monkeypatch.setenv(name, str(outside))
    monkeypatch.setenv("LANG", "C.UTF-8")
    found = local_federation._environment(federation_in(tmp_path / "federation"), "hospital-a")
    assert [name for name, value in found.items() if str(outside) in value] == []
    assert found["LANG"] == "C.UTF-8"


def test_a_server_waits_less_for_a_site_that_is_gone_than_a_watch_waits_for_a_server(tmp_path, monkeypatch):
    for name, value in local_federation._environment(federation_in(tmp_path), "server").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ConfigService, "_var_values", {})
    assert 0 < JobRunner(str(tmp_path)).client_outcome_wait_timeout < JobWatch("job").patience
