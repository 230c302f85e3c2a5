"""The commands of docs/hospital.md that save and restore a kit do so, and a backup that is too old is detected."""

import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grandrounds.cli import build_app
from grandrounds.deployment.kit.doctor import overlay, privacy_ledger
from grandrounds.deployment.kit.overlay import apply_overlay
from grandrounds.deployment.kit.read import read_kit
from grandrounds.privacy.ledger.ledger import Ledger, read_ledger
from grandrounds.privacy.ledger.lines import DatasetIdentity, Purpose
from grandrounds.protocol.spending import Mechanism, Spending, Unit

PAGE = Path(__file__).parents[4] / "docs" / "hospital.md"


@pytest.fixture
def kit(make_kit, tmp_path):
    """The kit of hospital-a in a folder of kits, with decoded images."""
    made = make_kit("site")
    apply_overlay(made)
    (made.folder / "grandrounds" / "cache").mkdir(parents=True)
    (made.folder / "grandrounds" / "cache" / "images.bin").write_bytes(b"x")
    (tmp_path / "kits").mkdir()
    return read_kit(made.folder.rename(tmp_path / "kits" / "hospital-a"))


def tar(option, kits):
    """Run the page's command that saves (``c``) or restores (``x``), in another folder of kits."""
    (command,) = re.findall(rf"^tar .*-{option}zf .*$", PAGE.read_text(), re.MULTILINE)
    words = command.replace("/opt/grandrounds/kits", str(kits)).split()
    subprocess.run(words, cwd=kits.parent, check=True, timeout=600)


def book(kit, number):
    """One release, without a guarantee, of the data set skin."""
    purpose = Purpose("j", "run", number, "update")
    Ledger(kit.local / "privacy", kit.name).book(
        purpose, DatasetIdentity("skin", "a" * 64), Spending(Mechanism.NO_GUARANTEE, Unit.SITE, math.inf, 0.0), 1e-5
    )
    return read_ledger(kit.local / "privacy" / "ledger.jsonl").chain.head


def verify(kit, head):
    command = ["ledger", "show", str(kit.local / "privacy"), "--verify", "--noted", head]
    return CliRunner().invoke(build_app(), command).exit_code


def test_a_restored_kit_is_whole_and_its_ledger_has_the_noted_head(kit):
    head = book(kit, 1)
    tar("c", kit.folder.parent)
    shutil.rmtree(kit.folder)
    tar("x", kit.folder.parent)
    restored = read_kit(kit.folder)
    assert {finding.level for check in (overlay, privacy_ledger) for finding in check(restored)} == {"ok"}
    assert restored.key.stat().st_mode & 0o777 == 0o600
    assert not (kit.folder / "grandrounds" / "cache").exists()
    assert verify(restored, head) == 0
    assert math.isinf(read_ledger(kit.local / "privacy" / "ledger.jsonl").spent("skin", 1e-5, Unit.SITE))


def test_releases_after_the_backup_are_detected_by_the_noted_head(kit):
    book(kit, 1)
    tar("c", kit.folder.parent)
    head = book(kit, 2)
    shutil.rmtree(kit.folder)
    tar("x", kit.folder.parent)
    assert verify(read_kit(kit.folder), head) == 1
