"""The route for a consortium: every participant makes its own key, and only requests and certificates travel."""

import json
import os
import subprocess
import sys
import zipfile

import pytest

from grandrounds.deployment.certificates import certificate_fault
from grandrounds.deployment.kit import read_kit
from grandrounds.deployment.kit_doctor import examine_kit
from grandrounds.deployment.overlay import PROVISIONING, apply_overlay

pytestmark = pytest.mark.slow

FILES = PROVISIONING / "distributed"
NAMES = {"server": "fl.consortium.example", "hospital": "hospital-a", "researcher": "researcher@consortium.example"}


@pytest.fixture(scope="module")
def flare(tmp_path_factory):
    """FLARE's command line with a home of its own."""
    home = tmp_path_factory.mktemp("home")

    def run(*arguments):
        command = [sys.executable, "-m", "nvflare.cli", *map(str, arguments)]
        environment = {**os.environ, "HOME": str(home)}
        ended = subprocess.run(
            command, env=environment, cwd=home, capture_output=True, text=True, timeout=120, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr

    return run


@pytest.fixture(scope="module")
def kits(flare, tmp_path_factory):
    """The runbook's commands, in its order."""
    place = tmp_path_factory.mktemp("consortium")
    flare("cert", "init", "--profile", FILES / "profile.yml", "-o", place / "ca")
    fingerprint = json.loads((place / "ca" / "ca.json").read_text())["rootCA_fingerprint"]
    for file, name in NAMES.items():
        flare("cert", "request", "-p", FILES / f"{file}.yml", "--out", place / name)
        request, signed = place / name / f"{name}.request.zip", place / f"{name}.signed.zip"
        flare("cert", "approve", request, "-c", place / "ca", "--profile", FILES / "profile.yml", "--out", signed)
        flare("package", signed, "--request-dir", place / name, "--fingerprint", fingerprint, "-w", place / "kits")
    return place


def kit_of(kits, name):
    return read_kit(next((kits / "kits").glob(f"*/prod_*/{name}")))


def test_no_private_key_travels(kits):
    for path in kits.rglob("*.zip"):
        with zipfile.ZipFile(path) as archive:
            assert archive.namelist(), path
            assert not any(b"PRIVATE KEY" in archive.read(name) for name in archive.namelist()), path


@pytest.mark.parametrize("name", NAMES.values())
def test_every_kit_is_in_order(kits, name):
    assert certificate_fault(kit_of(kits, name)) == ""


def test_the_overlay_and_the_doctor_take_them_as_those_of_central_provisioning(kits):
    for name in ("fl.consortium.example", "hospital-a"):
        kit = kit_of(kits, name)
        apply_overlay(kit)
        levels = {finding.check: finding.level for finding in examine_kit(kit, network=False)}
        for check in ("certificate", "allowed classes", "authorisation"):
            assert levels[check] == "ok", (name, check)
