"""A kit names its participant; a folder that is not a kit is refused by name."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from grandrounds.cli import build_app
from grandrounds.deployment.kit.read import processes_of, read_kit, require_owner, running_processes
from grandrounds.errors import ConfigurationError


@pytest.mark.parametrize(
    ("kind", "name"), [("server", "server"), ("site", "hospital-a"), ("person", "ann@study.example")]
)
def test_a_kit_names_its_participant_its_project_and_the_server(make_kit, kind, name):
    kit = make_kit(kind, port=9123)
    assert (kit.kind, kit.name, kit.project, kit.host, kit.port) == (kind, name, "study", "localhost", 9123)
    assert kit.certificate.is_file()
    assert kit.key.is_file()
    assert kit.authority.is_file()


def test_a_folder_that_is_no_kit_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="is no startup kit"):
        read_kit(tmp_path)


@pytest.mark.parametrize(("content", "reason"), [("{", "not valid JSON"), ("[]", "must be a JSON object")])
def test_a_damaged_kit_is_refused(make_kit, content, reason):
    kit = make_kit("site")
    (kit.startup / "fed_client.json").write_text(content)
    with pytest.raises(ConfigurationError, match=reason):
        read_kit(kit.folder)


def at(target):
    return {"client": {"fqsn": "a"}, "servers": [{"name": "p", "service": {"target": target}}]}


@pytest.mark.parametrize("broken", [{}, {"servers": []}, at("here"), at("here:port"), at("here:0"), at("here:65536")])
def test_an_incomplete_kit_is_refused(make_kit, broken):
    kit = make_kit("site")
    (kit.startup / "fed_client.json").write_text(json.dumps(broken))
    with pytest.raises(ConfigurationError, match="ask the operator for the kit again"):
        read_kit(kit.folder)


@pytest.mark.parametrize("linked", [False, True])
def test_a_kits_processes_are_found_by_their_workspace_and_others_are_not(make_kit, tmp_path, linked):
    """A neighbour whose folder begins with the same letters is another kit; a link to a kit is the kit."""
    kit = make_kit("site", name="hospital-a")
    (tmp_path / "link").symlink_to(kit.folder)
    near = make_kit("site", name="hospital-a2")
    command = [sys.executable, "-c", "print(flush=True); input()", "nvflare.private.fed", "-m"]
    with (
        subprocess.Popen(
            [*command, str(tmp_path / "link" if linked else kit.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as ours,
        subprocess.Popen([*command, str(near.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as theirs,
    ):
        ours.stdout.readline(), theirs.stdout.readline()
        assert running_processes(kit) == [ours.pid]
        assert sorted(processes_of(kit.folder.parent)) == sorted([ours.pid, theirs.pid])
        ours.communicate(b"\n"), theirs.communicate(b"\n")
    assert running_processes(kit) == []
    assert os.getpid() not in processes_of(kit.folder)


def test_a_kit_of_another_user_is_not_written_to(make_kit, monkeypatch):
    """The administrator is root, the service is not: it could not read a new key, nor extend the ledger."""
    kit = make_kit("site")
    require_owner(kit.folder)
    monkeypatch.setattr("os.geteuid", lambda: kit.folder.stat().st_uid + 1)
    for command in (["kit", "start"], ["overlay"], ["kit", "renew", "--from", str(kit.folder)]):
        ended = CliRunner().invoke(build_app(), [*command, str(kit.folder)])
        assert ended.exit_code == 1
        assert "run this command as that user" in " ".join(ended.output.split())
