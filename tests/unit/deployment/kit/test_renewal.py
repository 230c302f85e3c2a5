"""A renewed kit has new keys and everything else of the old one."""

import json
import os
import shutil
import time
import uuid

import pytest

from grandrounds.deployment.kit import renewal
from grandrounds.deployment.kit.certificates import certificate_fault, days_left, read_certificate
from grandrounds.deployment.kit.cleaning import old_jobs, remove
from grandrounds.deployment.kit.overlay import apply_overlay
from grandrounds.deployment.kit.read import read_kit
from grandrounds.deployment.kit.renewal import renew
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.privacy.ledger.ledger import read_ledger


@pytest.fixture
def kits(make_kit, tmp_path):
    """A kit whose certificate ends in 20 days, with an overlay and a state, and a new one of the same project."""

    def make(kind="site", days=300, **new):
        old = make_kit(kind, days=20)
        if kind != "person":
            apply_overlay(old)
        (old.folder / "grandrounds" / "skin" / "site").mkdir(parents=True)
        moved = old.folder.rename(tmp_path / "in-use")
        return read_kit(moved), make_kit(kind, days=days, **new)

    return make


@pytest.mark.parametrize("kind", ["site", "server", "person"])
def test_certificate_and_key_change_and_nothing_else(kits, kind):
    kit, new = kits(kind)
    before = {path.relative_to(kit.folder): path.read_bytes() for path in kit.local.rglob("*") if path.is_file()}
    renewed = renew(kit, new)
    assert certificate_fault(read_kit(kit.folder)) == ""
    assert renewed.days == pytest.approx(300, abs=0.1)
    assert days_left(read_certificate(renewed.old / kit.certificate.name)) == pytest.approx(20, abs=0.1)
    assert {path: (kit.folder / path).read_bytes() for path in before} == before
    assert renewed.files == len(before)
    assert (kit.folder / "grandrounds" / "skin" / "site").is_dir()
    assert kit.key.stat().st_mode & 0o777 == 0o600
    if kind == "site":
        assert renewed.ledger_head == read_ledger(kit.local / "privacy" / "ledger.jsonl").chain.head


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ({"name": "hospital-b"}, "is the kit of hospital-b"),
        ({"project": "other"}, "site of other"),
        ({"days": 10}, "it is no newer one"),
    ],
)
def test_a_kit_that_is_no_successor_is_refused(kits, new, message):
    kit, other = kits(**new)
    certificate = kit.certificate.read_bytes()
    with pytest.raises(ConfigurationError, match=message):
        renew(kit, other)
    assert kit.certificate.read_bytes() == certificate


def test_a_running_kit_is_refused(kits, monkeypatch):
    kit, new = kits()
    monkeypatch.setattr(renewal, "running_processes", lambda kit: [4711])
    with pytest.raises(ConfigurationError, match=r"hospital-a is running \(process 4711\)"):
        renew(kit, new)


def test_a_change_of_the_ledger_meanwhile_puts_the_old_certificate_back(kits, monkeypatch):
    kit, new = kits()
    certificate, heads = kit.certificate.read_bytes(), iter(["a", "b"])
    monkeypatch.setattr(renewal, "_ledger_head", lambda kit: next(heads))
    with pytest.raises(GrandRoundsError, match="the old certificate was put back"):
        renew(kit, new)
    assert kit.certificate.read_bytes() == certificate
    assert [path.name for path in kit.folder.iterdir() if "startup" in path.name] == ["startup"]


def test_an_overlay_makes_no_second_ledger_for_a_site(make_kit, tmp_path):
    """An empty one would hide what the data have spent."""
    kit = make_kit("site")
    apply_overlay(kit)
    for generation in ("prod_00", "prod_01"):
        shutil.copytree(kit.folder, tmp_path / "project" / generation / "hospital-a")
    shutil.rmtree(tmp_path / "project" / "prod_01" / "hospital-a" / "local" / "privacy")
    new = read_kit(tmp_path / "project" / "prod_01" / "hospital-a")
    (new.local / "grandrounds.lock.json").unlink()
    with pytest.raises(ConfigurationError, match=r"prod_00/hospital-a --from .*prod_01"):
        apply_overlay(new)


def test_only_folders_of_old_jobs_are_removed(make_kit, monkeypatch):
    kit = make_kit("site")
    old, new, running = (kit.folder / str(uuid.uuid4()) for _ in range(3))
    for folder in (old, new, running, kit.folder / "grandrounds" / "run"):
        folder.mkdir(parents=True)
        (folder / "log.txt").write_text("x")
        long_ago = time.time() - 40 * 86400
        for path in (folder / "log.txt", folder) if folder != new else ():
            os.utime(path, (long_ago, long_ago))
    monkeypatch.setattr("grandrounds.deployment.kit.cleaning._arguments_of", lambda kit: f"worker -n {running.name}")
    found = old_jobs(kit, 30)
    assert [job.folder for job in found] == [old]
    assert found[0].days == pytest.approx(40, abs=0.1)
    remove(found)
    assert not old.exists()
    assert new.exists()
    assert running.exists()
    assert json.dumps([path.name for path in (kit.folder / "grandrounds").iterdir()]) == '["run"]'
