"""The route for a consortium: every participant makes its own key, and only requests and certificates travel."""

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch

from grandrounds.deployment.kit.certificates import certificate_fault, connection_fault, read_certificate
from grandrounds.deployment.kit.doctor import examine_kit
from grandrounds.deployment.kit.overlay import PROVISIONING, apply_overlay
from grandrounds.deployment.kit.read import processes_of, read_kit
from grandrounds.deployment.local_federation import Federation, await_sites, start_participant, stop
from grandrounds.models.registry import build_model
from grandrounds.privacy.ledger.ledger import read_ledger
from grandrounds.reporting.runs import trained_model

pytestmark = pytest.mark.provisioned

FILES = PROVISIONING / "distributed"
SERVER, RESEARCHER, HOSPITALS = "localhost", "researcher@consortium.example", ("hospital-a", "hospital-b")
REQUESTS = {SERVER: "server", RESEARCHER: "researcher", **dict.fromkeys(HOSPITALS, "hospital")}
TINY = [
    *("executor.steps=2", "executor.batch_size=8", "executor.device=cpu", "executor.cpu_threads=1"),
    *("controller.warm_up=1", "executor.threshold=0.26", "controller.round_timeout=120"),
]


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
def kits(flare, tmp_path_factory, free_port):
    """The runbook's commands, in its order, with names edited for one machine."""
    place = tmp_path_factory.mktemp("consortium")
    port = str(free_port())

    def edited(file, name):
        """A copy with the server's host, its port and this participant's name."""
        text = (FILES / f"{file}.yml").read_text().replace("fl.consortium.example", SERVER).replace("8002", port)
        copy = place / f"{name}.yml"
        copy.write_text(text.replace("hospital-a", name).replace("hospital_a", name.replace("-", "_")))
        return copy

    profile = edited("profile", "profile")
    flare("cert", "init", "--profile", profile, "-o", place / "ca")
    fingerprint = json.loads((place / "ca" / "ca.json").read_text())["rootCA_fingerprint"]
    for name, file in REQUESTS.items():
        flare("cert", "request", "-p", edited(file, name), "--out", place / name)
        request, signed = place / name / f"{name}.request.zip", place / f"{name}.signed.zip"
        flare("cert", "approve", request, "-c", place / "ca", "--profile", profile, "--out", signed)
        flare("package", signed, "--request-dir", place / name, "--fingerprint", fingerprint, "-w", place / "kits")
    return place


def kit_of(kits, name):
    return read_kit(next((kits / "kits").glob(f"*/prod_*/{name}")))


def test_no_private_key_travels(kits):
    for path in kits.rglob("*.zip"):
        with zipfile.ZipFile(path) as archive:
            assert archive.namelist(), path
            assert not any(b"PRIVATE KEY" in archive.read(name) for name in archive.namelist()), path


@pytest.mark.parametrize("name", REQUESTS)
def test_every_kit_is_in_order(kits, name):
    assert certificate_fault(kit_of(kits, name)) == ""


def test_the_overlay_and_the_doctor_take_them_as_those_of_central_provisioning(kits):
    for name in (SERVER, *HOSPITALS):
        kit = kit_of(kits, name)
        apply_overlay(kit)
        levels = {finding.check: finding.level for finding in examine_kit(kit, network=False)}
        for check in ("certificate", "allowed classes", "authorisation"):
            assert levels[check] == "ok", (name, check)


def test_the_runbook_ends_with_a_downloaded_model(kits, tmp_path, shared_cache):
    """Overlay, doctor, start and submit by the commands that it names."""
    made = kits / "kits" / "grand_rounds" / "prod_00"
    federation = Federation(tmp_path / "federation", made, SERVER, HOSPITALS, RESEARCHER, RESEARCHER)
    for part in ("home", "temporary", "logs"):
        (federation.folder / part).mkdir(parents=True)
    for name in (SERVER, *HOSPITALS):
        grandrounds("overlay", made / name)
    grandrounds("doctor", "--kit", made / SERVER)
    try:
        start_participant(federation, SERVER)
        await_server(read_kit(made / HOSPITALS[0]))
        for name in HOSPITALS:
            grandrounds("doctor", "--kit", made / name)
            start_participant(federation, name)
        await_sites(federation, HOSPITALS)
        options = [part for option in TINY for part in ("--set", option)]
        command = ["submit", "fedperl", "--kit", made / RESEARCHER, "--run-name", "skin-1", "--rounds", 2, *options]
        reported = grandrounds(*command, "--mandatory-sites", "hospital-a", "--min-sites", 2, "--out", tmp_path / "out")
    finally:
        stop(federation)
    assert processes_of(made) == []
    results = next(line.removeprefix("results: ") for line in reported.splitlines() if line.startswith("results: "))
    found = trained_model(Path(results))
    network = build_model(found.problem.model_spec(pretrained=False), seed=0)
    network.load_state_dict(torch.load(found.weights, weights_only=True))


@pytest.mark.parametrize("name", [SERVER, "hospital-a"])
def test_a_second_certificate_replaces_the_first_in_the_kit_that_is_in_use(kits, flare, name):
    """The runbook's way: request, approve and package again, then ``kit renew``."""
    kit = read_kit(kits / "kits" / "grand_rounds" / "prod_00" / name)
    apply_overlay(kit)
    fingerprint = json.loads((kits / "ca" / "ca.json").read_text())["rootCA_fingerprint"]
    again = kits / f"{name}-again"
    flare("cert", "request", "-p", kits / f"{name}.yml", "--out", again)
    signed = kits / f"{name}-again.signed.zip"
    request = again / f"{name}.request.zip"
    flare("cert", "approve", request, "-c", kits / "ca", "--profile", kits / "profile.yml", "--out", signed)
    flare("package", signed, "--request-dir", again, "--fingerprint", fingerprint, "-w", kits / f"renewed-{name}")
    new = read_kit(next((kits / f"renewed-{name}").glob(f"*/prod_*/{name}")))
    serial = read_certificate(kit.certificate).serial_number
    reported = grandrounds("kit", "renew", kit.folder, "--from", new.folder)
    renewed = read_kit(kit.folder)
    assert certificate_fault(renewed) == ""
    assert read_certificate(renewed.certificate).serial_number != serial
    if kit.kind == "site":
        head = read_ledger(kit.local / "privacy" / "ledger.jsonl").chain.head
        assert f"the head of the privacy ledger is unchanged: {head}" in reported


def await_server(kit):
    deadline = time.monotonic() + 60
    while connection_fault(kit):
        assert time.monotonic() < deadline
        time.sleep(0.5)


def grandrounds(*arguments):
    """Run the command in a wide terminal; returns its output."""
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "500"}
    ended = subprocess.run(
        [folder / "grandrounds", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
