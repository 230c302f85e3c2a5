"""Health means: can take part in the next job. What is wrong is found before a job, and clears when it is mended."""

import json
import os
import shutil
import socket
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from PIL import Image
from typer.testing import CliRunner

from grandrounds.cli import build_app
from grandrounds.data.manifest import Record, write_manifest
from grandrounds.data.site import DatasetLocation
from grandrounds.deployment.kit import machine
from grandrounds.deployment.kit.overlay import Settings, apply_overlay
from grandrounds.deployment.operation import status
from grandrounds.deployment.operation.status import kit_status, read_trail
from grandrounds.federation.server.record import RunRecord
from grandrounds.files import exclusive, write_json
from grandrounds.privacy.gate.audit import Reason, write_audit
from grandrounds.privacy.gate.datasets import record
from grandrounds.privacy.inventory import dataset_facts
from grandrounds.privacy.ledger.chain import note_head
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.privacy.ledger.lines import Purpose
from grandrounds.protocol.spending import Unit, outside_budget


@pytest.fixture(autouse=True)
def running(monkeypatch):
    """FLARE runs under its service, with enough room."""
    monkeypatch.setattr(status, "running_processes", lambda kit: [7])
    monkeypatch.setattr(status, "supervisor", lambda kit: [6])
    monkeypatch.setattr(status, "_remote_ports", lambda processes: {8002})
    monkeypatch.setattr(status, "listens", lambda running, port: True)
    monkeypatch.setattr(status.shutil, "disk_usage", lambda folder: SimpleNamespace(free=50 * 1024**3))


def write_images(folder, names, shade=0):
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(names):
        Image.fromarray(np.full((4, 4, 3), shade + number, np.uint8)).save(folder / name)


@pytest.fixture
def site(make_kit, tmp_path):
    """A site with a data set that one job has used; its kit, images, facts and ledger."""
    kit = make_kit("site")
    names = [f"{number}.png" for number in range(6)]
    write_images(tmp_path / "images", names)
    write_manifest([Record(name, "nevus", "train", patient=name) for name in names], tmp_path / "skin.csv")
    entry = {"manifest": str(tmp_path / "skin.csv"), "root": str(tmp_path / "images")}
    (tmp_path / "grandrounds.json").write_text(json.dumps({"datasets": {"skin": entry}}))
    apply_overlay(kit, Settings(datasets=tmp_path / "grandrounds.json"))
    ledger = Ledger(kit.local / "privacy", kit.name)

    def use():
        facts = dataset_facts("skin", DatasetLocation(tmp_path / "skin.csv", tmp_path / "images"))
        record(ledger, kit.local / "privacy", facts)
        ledger.book(Purpose("j", "skin", 1, "update"), facts.identity, outside_budget(Unit.SITE), 1e-5)

    use()
    return SimpleNamespace(kit=kit, images=tmp_path / "images", names=names, ledger=ledger, use=use)


def found(kit, check):
    """The findings of a check, as level and message."""
    return [(one.level, one.message) for one in kit_status(kit, network=False).findings if one.check == check]


def test_a_site_that_can_take_part_is_ok_and_says_what_was_looked_at(site):
    status = kit_status(site.kit, network=False)
    assert status.level == "ok"
    assert {one.check for one in status.findings} == {
        "certificate",
        "disk",
        "folders",
        "processes",
        "connection",
        "ledger",
        "data sets",
    }
    assert found(site.kit, "data sets") == [("ok", "'skin': 6 images, reachable")]


def test_a_data_folder_that_is_not_mounted_is_a_failure_until_it_is_back(site):
    aside = site.images.with_name("aside")
    site.images.rename(aside)
    site.images.mkdir()  # the mount point
    ((level, message),) = found(site.kit, "data sets")
    assert (level, message.endswith("is the folder mounted?")) == ("failure", True)
    site.images.rmdir()
    ((level, message),) = found(site.kit, "data sets")
    assert (level, "there is no file or folder" in message) == ("failure", True)
    aside.rename(site.images)
    assert kit_status(site.kit, network=False).level == "ok"


def test_one_missing_image_is_a_warning_with_the_number(site):
    (site.images / "3.png").unlink()
    ((level, message),) = found(site.kit, "data sets")
    assert (level, "1 of 6 images" in message) == ("warning", True)


def test_changed_pixels_are_a_warning_until_a_job_has_read_them(site):
    write_images(site.images, site.names, shade=100)
    ((level, message),) = found(site.kit, "data sets")
    assert level == "warning"
    assert "image files have changed since a job has read them" in message
    site.use()
    assert kit_status(site.kit, network=False).level == "ok"


def test_another_manifest_than_the_ledgers_is_a_failure_that_names_the_way_on(site):
    records = [Record(name, "nevus", "train", patient=name) for name in site.names[:5]]
    write_manifest(records, site.images.parent / "skin.csv")
    ((level, message),) = found(site.kit, "data sets")
    assert (level, "amend it in the ledger" in message) == ("failure", True)


def test_a_ledger_that_lacks_the_head_that_the_server_returned_is_a_failure(site):
    folder = site.kit.local / "privacy"
    shutil.copytree(folder, folder.with_name("backup"))
    site.use()
    note_head(site.kit.folder / "grandrounds", site.ledger.content().chain.head)
    assert kit_status(site.kit, network=False).level == "ok"
    shutil.rmtree(folder)
    folder.with_name("backup").rename(folder)
    ((level, message),) = found(site.kit, "ledger")
    assert (level, "another or an older file is in its place" in message) == ("failure", True)


def test_a_damaged_ledger_hides_no_other_finding_and_is_told_once(site):
    path = site.kit.local / "privacy" / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b"skin", b"skim", 1))
    status = kit_status(site.kit, network=False)
    assert [one.check for one in status.findings if one.level == "failure"] == ["ledger"]
    assert found(site.kit, "data sets") == [("ok", "'skin': 6 images, reachable")]


@pytest.mark.parametrize(
    ("reason", "hours", "later", "level"),
    [
        (Reason.DATASET, 1, False, "warning"),
        (Reason.DATASET, 30, False, "ok"),
        (Reason.DATASET, 1, True, "warning"),
        (Reason.BUDGET, 1, False, "warning"),
    ],
)
def test_a_task_that_was_refused_warns_for_a_day_whatever_was_released_since(site, reason, hours, later, level):
    folder = site.kit.local / "privacy"
    asked = {"job": "j", "run": "skin", "task": "train", "round": 3, "dataset": "skin"}
    write_audit(folder, "released", {**asked, "round": 2})
    write_audit(folder, "refused", {**asked, "reason": reason.value, "detail": "no such folder"})
    if later:
        write_audit(folder, "released", {**asked, "round": 4})
    path = folder / "audit.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    now = datetime.now(UTC)
    for number, line in enumerate(lines):
        line["time"] = (now - timedelta(hours=hours, minutes=-number)).isoformat(timespec="seconds")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    status = kit_status(site.kit, network=False)
    assert status.level == level
    assert (status.released["round"], status.refused["reason"]) == (4 if later else 2, reason)
    assert read_trail(folder).released["round"] == status.released["round"]


@pytest.mark.parametrize("place", ["grandrounds", "grandrounds/cache"])
def test_a_folder_that_takes_no_file_is_a_failure_by_name(site, place, monkeypatch):
    monkeypatch.delenv("GRANDROUNDS_CACHE", raising=False)
    monkeypatch.delenv("GRANDROUNDS_STATE", raising=False)
    folder = site.kit.folder / place
    shutil.rmtree(folder, ignore_errors=True)
    assert found(site.kit, "folders") == [("ok", "can be written")]
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("")  # root may write to a folder that is read-only
    ((level, message),) = found(site.kit, "folders")
    assert level == "failure"
    assert str(folder) in message


@pytest.mark.parametrize("outcome", ["refused", "failed"])
@pytest.mark.parametrize("time", [None, "yesterday", 7])
def test_a_line_of_the_trail_without_a_time_is_damaged_and_hides_nothing_else(site, time, outcome):
    path = site.kit.local / "privacy" / "audit.jsonl"
    path.write_text(json.dumps({"time": time, "outcome": outcome, "reason": Reason.DISK, "detail": "full"}) + "\n")
    status = kit_status(site.kit, network=False)
    assert [one.message for one in status.findings if one.level == "failure"] == [
        f"{path}: line 1 is damaged; restore the folder from a backup"
    ]
    assert len(status.findings) == 8


def make_run(kit, name, status, ended=None):
    """A run's record in the kit of a server, which ended that many hours ago."""
    record = RunRecord(kit.folder / "grandrounds" / name / "server", {"rounds": 2, "run_name": name})
    entry = {"asked": ["a", "b"], "answered": ["a", "b"], "dropped": {}, "round_seconds": 1.0}
    record.close_round({"round": 1, **entry})
    record.close_round({"round": 2, **entry, "answered": ["a"], "dropped": {"b": "gone"}, "silent": ["b"]})
    record.connected = ["a"]
    record.write(status, "a reason")
    if ended is not None:
        path = record.folder / "summary.json"
        content = json.loads(path.read_text())
        write_json(path, {**content, "written": (datetime.now(UTC) - timedelta(hours=ended)).isoformat()})
    return record.folder


def test_running_runs_come_first_and_old_ones_do_not_warn_for_ever(make_kit):
    kit = make_kit("server")
    make_run(kit, "b-old", "failed", ended=48)
    make_run(kit, "c-finished", "finished", ended=1)
    make_run(kit, "d-running", "running")
    assert [run["name"] for run in kit_status(kit).runs] == ["d-running", "c-finished", "b-old"]
    assert kit_status(kit).warnings == ["run d-running: b is lost: not connected, last update in round 1"]
    make_run(kit, "a-failed", "failed", ended=2)
    assert kit_status(kit).warnings == [
        "run d-running: b is lost: not connected, last update in round 1",
        "run a-failed failed: a reason",
    ]


def test_a_run_on_which_no_process_works_any_more_is_called_interrupted(make_kit):
    kit = make_kit("server")
    folder = make_run(kit, "skin-1", "running")
    with exclusive(folder):
        (run,) = kit_status(kit).runs
        assert run["status"] == "running"
    (run,) = kit_status(kit).runs
    assert run["status"] == "interrupted"
    assert kit_status(kit).warnings == [
        "run skin-1 interrupted: no process works on it since round 2; submit the job again under the same run_name"
    ]


def test_the_table_has_a_row_for_each_run(make_kit):
    kit = make_kit("server")
    make_run(kit, "skin-1", "running")
    make_run(kit, "statistics", "finished", ended=1)
    result = CliRunner().invoke(
        build_app(), ["status", "--kit", str(kit.folder), "--no-network"], env={"COLUMNS": "160"}
    )
    rows = [line for line in result.output.splitlines() if "2 of 2" in line]
    assert [row.split()[1] for row in rows] == ["skin-1", "statistics"]
    assert "a 2, b 1" in rows[0]


@pytest.mark.parametrize("damage", [lambda text: text[: len(text) // 2], lambda text: "{}"])
def test_a_damaged_summary_of_one_run_is_named_and_hides_no_other(make_kit, damage):
    kit = make_kit("server")
    path = make_run(kit, "old", "finished", ended=48) / "summary.json"
    make_run(kit, "new", "finished", ended=1)
    path.write_text(damage(path.read_text()))
    status = kit_status(kit)
    assert [run["name"] for run in status.runs] == ["new"]
    (warning,) = status.warnings
    assert warning.startswith("the record of run old cannot be read")
    assert status.level == "warning"


def test_an_error_of_the_command_itself_is_neither_fine_nor_a_warning(tmp_path):
    result = CliRunner().invoke(build_app(), ["status", "--kit", str(tmp_path)])
    assert result.exit_code == 3
    assert "is no startup kit" in result.output


def test_a_kit_whose_owner_took_away_a_file_does_not_hide_the_rest(site):
    os.remove(site.kit.certificate)
    status = kit_status(site.kit, network=False)
    assert [one.check for one in status.findings if one.level == "failure"] == ["certificate"]
    assert status.certificate_days is None
    assert len(status.findings) == 7


def test_a_site_without_a_connection_warns_and_one_behind_a_proxy_has_it_to_the_proxy(site, monkeypatch):
    monkeypatch.setattr(status, "_remote_ports", lambda processes: {443, 3128})
    ((level, message),) = found(site.kit, "connection")
    assert (level, "has no connection to port 8002 of localhost" in message) == ("warning", True)
    monkeypatch.setenv("GRANDROUNDS_PROXY", "http://proxy.example:3128")
    assert found(site.kit, "connection") == [("ok", "to port 3128 of the proxy")]
    monkeypatch.setattr(status, "_remote_ports", lambda processes: None)
    assert found(site.kit, "connection") == []


def test_the_ports_of_a_process_are_those_to_which_it_is_connected(monkeypatch):
    monkeypatch.undo()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert port not in status._remote_ports([os.getpid()])
        with socket.create_connection(("127.0.0.1", port)):
            assert port in status._remote_ports([os.getpid(), 2**22])


@pytest.mark.parametrize("taken", [True, False])
def test_a_server_whose_processes_cannot_be_looked_into_listens_if_its_port_is_taken(monkeypatch, taken):
    def denied(number):
        raise psutil.AccessDenied(number)

    monkeypatch.setattr(psutil, "Process", denied)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        if taken:
            other.listen()
        else:
            other.close()
        assert machine.listens([7], port) is taken
