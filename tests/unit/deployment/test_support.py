"""A support bundle: it helps, and nothing of what was planted in the kit is in it."""

import json
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from grandrounds.cli import build_app
from grandrounds.data.manifest import Record, write_manifest
from grandrounds.deployment.kit.overlay import Settings, apply_overlay
from grandrounds.deployment.operation import support
from grandrounds.federation.server.record import RunRecord
from grandrounds.privacy.gate.audit import Reason, write_audit

JOB = "3f2b8a44-0f3e-4ad4-9d0e-0a7c1c5f9b12"
SECRETS = (
    "Mueller",
    "Mustermann",
    "1971-03-04",
    "IMG_0042",
    "melanoma",
    "nevus",
    "s3cr3t",
    "ward-7",
    "4711",
    "radiology",
)
"""A patient, another one, a date, a file, two labels, a token, a folder, a patient's number, a host."""


def flare_line(message, **more):
    return {
        "asctime": "2026-11-27 10:00:00,123",
        "name": "ClientEngine",
        "fullName": "nvflare.private.fed.client.client_engine.ClientEngine",
        "levelname": "ERROR",
        "fl_ctx": f"[identity=hospital-a, run={JOB}]",
        "message": message,
        **more,
    }


@pytest.fixture
def site(make_kit, tmp_path):
    """A site in whose images, manifest, logs, trail and jobs secrets are planted."""
    kit = make_kit("site")
    images = tmp_path / "ward-7" / "melanoma"
    images.mkdir(parents=True)
    for name in ("IMG_0042.png", "Mueller_Anna.png"):
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(images / name)
    rows = [
        Record("IMG_0042.png", "melanoma", "train", patient="Mustermann"),
        Record("gone.png", "nevus", "test", "4711"),
    ]
    write_manifest(rows, tmp_path / "ward-7" / "Mueller.csv")
    entry = {"manifest": str(tmp_path / "ward-7" / "Mueller.csv"), "root": str(images)}
    (tmp_path / "grandrounds.json").write_text(json.dumps({"datasets": {"skin": entry}}))
    apply_overlay(kit, Settings(datasets=tmp_path / "grandrounds.json"))
    lines = [
        flare_line(f"{images}/IMG_0042.png cannot be read: No such file or directory"),
        flare_line("patient Mustermann, born 1971-03-04, number 4711, token=s3cr3t"),
        flare_line("Mustermann", fullName="Mustermann.Anna", levelname="Mueller", asctime="Mueller 1971-03-04"),
        flare_line(
            f'Traceback:\n  File "{Path(support.__file__)}", line 12, in _tail\n    read("IMG_0042.png")\n'
            "MuellerError: x\nDataError: IMG_0042.png"
        ),
        "Mueller is no object",
        {
            "time": "2026-11-27T10:00:00+00:00",
            "level": "INFO",
            "job": "Mueller Anna",
            "round": 3,
            "message": "melanoma",
        },
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines) + "IMG_0042 is no JSON\n"
    (kit.folder / "log.json").write_text(text)
    (kit.folder / "log.txt").write_text(text)
    (kit.folder / "console.txt").write_text(
        f"{kit.name}: FLARE ended with status 101; it is started again in 5 s\n{kit.name}: Mueller\nMustermann\n"
    )
    job = kit.folder / JOB
    (job / "app_hospital-a" / "config").mkdir(parents=True)
    (job / "log.json").write_text(json.dumps(flare_line(f"{kit.folder}/Mueller/IMG_0042.png")) + "\n")
    options = {
        "learning_rate": 0.001,
        "model": "shared",
        "path": "/ward-7/x",
        "class_counts": [4711, 3],
        "problem": {"dataset": "skin", "classes": ["nevus", "melanoma"]},
    }
    path = "grandrounds.methods.fedavg.executor.FedAvgExecutor"
    (job / "app_hospital-a" / "config" / "config_fed_client.json").write_text(
        json.dumps({"executors": [{"executor": {"path": path, "args": options}}]})
    )
    about = {"job": JOB, "run": "skin-1", "task": "train", "round": 2, "dataset": "skin"}
    write_audit(
        kit.local / "privacy", "refused", {**about, "reason": Reason.DATASET, "detail": f"{images}/IMG_0042.png"}
    )
    write_audit(kit.local / "privacy", "refused", {**about, "reason": "Mueller", "detail": "melanoma 4711"})
    (kit.startup / "token").write_text("s3cr3t")
    return kit


def bundle(kit, path):
    result = CliRunner().invoke(build_app(), ["kit", "support", str(kit.folder), "--out", str(path), "--no-network"])
    assert result.exit_code == 0, result.output
    with zipfile.ZipFile(path) as archive:
        return result.stdout, {name: archive.read(name).decode() for name in archive.namelist()}


def test_nothing_that_was_planted_is_in_the_bundle(site, tmp_path):
    shown, files = bundle(site, tmp_path / "support.zip")
    everything = "\n".join(files.values()) + shown.replace(str(tmp_path), "")
    key = site.key.read_text().splitlines()[1]
    certificate = site.certificate.read_text().splitlines()[1]
    for secret in (*SECRETS, key, certificate, "PRIVATE KEY", str(tmp_path), str(Path.home())):
        assert secret not in everything, secret
    assert "/ward" not in everything


def test_what_helps_is_in_the_bundle(site, tmp_path):
    _, files = bundle(site, tmp_path / "support.zip")
    assert next(iter(files)) == "README.txt"
    assert all(name in files["README.txt"] for name in files if name != "README.txt")
    read = {name: json.loads(text) for name, text in files.items() if name.endswith(".json")}
    assert read["kit.json"] == {"kind": "site", "name": "hospital-a", "project": "study", "port": 8002}
    assert {"grandrounds", "nvflare", "torch", "python"} <= read["versions.json"].keys()
    assert read["status.json"]["level"] == "critical"  # FLARE does not run
    found = {finding["check"]: finding["level"] for finding in read["doctor.json"]}
    assert {"certificate", "privacy", "data sets", "disk"} <= found.keys()
    assert all(finding.keys() == {"level", "check"} for finding in read["doctor.json"])
    (task,) = read["status.json"]["failed_tasks"]
    assert (task["run"], task["round"]) == ("skin-1", 2)
    ((part, options),) = read["jobs.json"][JOB].items()
    assert part.endswith("FedAvgExecutor")
    assert options == {
        "learning_rate": 0.001,
        "model": "shared",
        "path": None,
        "class_counts": "2 entries",
        "problem": {"dataset": "skin", "classes": "2 entries"},
    }
    assert read["supervisor.json"]["ended_with"] == [101]
    first, second = read["answers.json"]
    assert (first["reason"], first["round"], first["job"]) == (str(Reason.DATASET), 2, JOB)
    assert second["reason"] is None
    assert read["digests.json"]["locked"] == read["digests.json"]["now"]
    lines = [json.loads(line) for line in files["logs/site.jsonl"].splitlines()]
    assert (lines[0]["level"], lines[0]["job"]) == ("ERROR", JOB)
    assert not any("message" in line for line in lines)
    assert lines[3]["where"] == ["grandrounds/deployment/operation/support.py:12 _tail"]
    assert lines[3]["errors"] == ["DataError"]
    assert f"logs/{JOB}.jsonl" in files


def test_the_file_is_for_its_owner_alone_and_replaces_none(site, tmp_path, monkeypatch):
    path = tmp_path / "support.zip"
    bundle(site, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    again = CliRunner().invoke(build_app(), ["kit", "support", str(site.folder), "--out", str(path)])
    assert (again.exit_code, path.read_bytes()) == (1, before)
    assert "support.zip exists" in again.output

    def fail(file, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("grandrounds.files.os.replace", fail)
    other = tmp_path / "new" / "other.zip"
    with pytest.raises(OSError):
        support.write_bundle([support.Entry("README.txt", "", b"")], other)
    assert not [*other.parent.iterdir()]


def test_a_dry_run_shows_the_table_and_writes_nothing(site, tmp_path):
    before = sorted(path for path in tmp_path.rglob("*"))
    result = CliRunner().invoke(build_app(), ["kit", "support", str(site.folder), "--dry-run", "--no-network"])
    assert result.exit_code == 0
    assert "status.json" in result.stdout
    assert "nothing was written" in result.stdout
    assert sorted(path for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("arguments", "words"), [([], "--dry-run"), (["--out", "support.tar"], "must end in .zip")])
def test_a_bundle_without_a_proper_place_is_refused(site, arguments, words):
    result = CliRunner().invoke(build_app(), ["kit", "support", str(site.folder), *arguments])
    assert result.exit_code != 0
    assert words in result.output


def test_a_kit_with_damaged_files_still_has_a_bundle(site, tmp_path):
    for name in ("privacy.json", "grandrounds.json", "grandrounds.lock.json", "privacy/audit.jsonl"):
        path = site.local / name
        if path.is_file():
            path.write_text("{ Mueller")
    _, files = bundle(site, tmp_path / "support.zip")
    assert "Mueller" not in "\n".join(files.values())
    assert json.loads(files["status.json"])["level"] == "critical"


def test_a_server_has_the_options_of_its_runs(make_kit, tmp_path):
    kit = make_kit("server")
    record = RunRecord(
        kit.folder / "grandrounds" / "skin-1" / "server",
        {"rounds": 3, "seed": 1, "problem": {"classes": ["nevus", "melanoma"]}, "mandatory_sites": ["a"]},
    )
    record.folder.mkdir(parents=True)
    record.write("finished")
    _, files = bundle(kit, tmp_path / "support.zip")
    assert json.loads(files["jobs.json"])["skin-1"] == {
        "rounds": 3,
        "seed": 1,
        "problem": {"classes": "2 entries"},
        "mandatory_sites": "1 entries",
    }
    assert "answers.json" not in files
