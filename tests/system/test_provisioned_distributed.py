"""The route for a consortium: every participant makes its own key, and only requests and certificates travel."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from grandrounds.deployment.kit.certificates import certificate_fault, read_certificate
from grandrounds.deployment.kit.doctor import examine_kit
from grandrounds.deployment.kit.overlay import apply_overlay
from grandrounds.deployment.kit.read import read_kit
from grandrounds.privacy.ledger.ledger import read_ledger

pytestmark = pytest.mark.provisioned

HOSPITALS = ("hospital-a", "hospital-b")


@pytest.fixture(scope="module")
def kits(authority):
    """The folder of the kits of server, researcher and hospitals, by the runbook's commands in its order."""
    made = [authority.make(name, "kits").folder for name in participants(authority)]
    (folder,) = {kit.parent for kit in made}
    return folder


def participants(authority):
    return (authority.SERVER, authority.RESEARCHER, *HOSPITALS)


def test_no_private_key_travels(authority, kits):
    for path in authority.place.rglob("*.zip"):
        with zipfile.ZipFile(path) as archive:
            assert archive.namelist(), path
            assert not any(b"PRIVATE KEY" in archive.read(name) for name in archive.namelist()), path


def test_every_kit_is_in_order(authority, kits):
    faults = {name: certificate_fault(read_kit(kits / name)) for name in participants(authority)}
    assert faults == dict.fromkeys(participants(authority), "")


def test_the_overlay_and_the_doctor_take_them_as_those_of_central_provisioning(authority, kits):
    for name in (authority.SERVER, *HOSPITALS):
        kit = read_kit(kits / name)
        apply_overlay(kit)
        levels = {finding.check: finding.level for finding in examine_kit(kit, network=False)}
        for check in ("certificate", "allowed classes", "authorisation"):
            assert levels[check] == "ok", (name, check)


@pytest.mark.parametrize("name", ["localhost", "hospital-a"])
def test_a_second_certificate_replaces_the_first_in_the_kit_that_is_in_use(authority, kits, name):
    """The runbook's way: request, approve and package again, then ``kit renew``."""
    kit = read_kit(kits / name)
    apply_overlay(kit)
    new = authority.make(name, "renewed")
    serial = read_certificate(kit.certificate).serial_number
    reported = grandrounds("kit", "renew", kit.folder, "--from", new.folder)
    renewed = read_kit(kit.folder)
    assert certificate_fault(renewed) == ""
    assert read_certificate(renewed.certificate).serial_number != serial
    if kit.kind == "site":
        head = read_ledger(kit.local / "privacy" / "ledger.jsonl").chain.head
        assert f"the head of the privacy ledger is unchanged: {head}" in reported


def grandrounds(*arguments):
    """Run the command in a wide terminal; returns its output."""
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "500"}
    ended = subprocess.run(
        [folder / "grandrounds", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
