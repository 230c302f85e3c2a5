"""What surrounds the programs fails: the clock, the port, a certificate, the data. Whoever it concerns is named."""

import json
import os
import shutil
import signal
import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from grandrounds.data.manifest import read_manifest, write_manifest
from grandrounds.data.partition.phantom_site import IMAGES_FILE, MANIFEST_FILE
from grandrounds.deployment.kit.certificates import read_certificate
from grandrounds.deployment.kit.read import read_kit
from grandrounds.privacy.ledger.ledger import read_ledger

pytestmark = pytest.mark.faults

DAY = 86400
OTHER_PYTHON = os.environ.get("GRANDROUNDS_OTHER_PYTHON", "")
"""An interpreter with this package and another minor version of torch."""


def require_run_without_victim(run):
    """The others have done every round; the victim is not said to have taken part."""
    summary = run.end().summary
    assert summary["contributions"] == {site: run.ROUNDS for site in run.HOSPITALS if site != run.VICTIM}
    assert sorted(summary["records"]) == [site for site in run.HOSPITALS if site != run.VICTIM]


def test_a_clock_one_day_behind_keeps_the_site_out_and_the_doctor_names_it(
    federation, run, restart, clock, grandrounds
):
    """Its certificate is not valid yet, by this clock."""
    shift = {"LD_PRELOAD": clock, "CLOCK_SHIFT": str(-DAY)}
    restart("hospital-c", wait=False, **shift)
    status, reported = grandrounds("doctor", "--kit", federation.kits / "hospital-c", **shift)
    assert status == 1
    assert "clock" in next(line for line in reported.splitlines() if "FAIL" in line and "slow" in line)
    run = run("clock-behind", sites=("hospital-a", "hospital-b"))
    require_run_without_victim(run)


def test_a_clock_three_hours_ahead_does_no_harm(federation, run, restart, clock):
    """What it leaves are times in the site's audit trail that are three hours late."""
    restart("hospital-c", LD_PRELOAD=clock, CLOCK_SHIFT=str(3 * 3600))
    run = run("clock-ahead")
    summary = run.end().summary
    assert summary["contributions"] == dict.fromkeys(run.HOSPITALS, run.ROUNDS)
    assert run.same_as_undisturbed()
    trail = federation.kits / "hospital-c" / "local" / "privacy" / "audit.jsonl"
    last = json.loads(trail.read_text().splitlines()[-1])
    late = datetime.fromisoformat(last["time"]) - datetime.now(UTC)
    assert timedelta(hours=2) < late <= timedelta(hours=3)


def test_a_clock_that_jumps_in_a_run_costs_nothing(run, restart, clock, tmp_path):
    """By two hours ahead, as after a long sleep of the machine, and by one hour back behind the right time."""
    shift = tmp_path / "shift"
    restart("hospital-c", LD_PRELOAD=clock, CLOCK_FILE=str(shift))
    run = run("clock-jumps", "controller.rounds=6")
    run.ROUNDS = 6
    for number, seconds in ((2, 2 * 3600), (4, -3600)):
        run.await_round(number)
        shift.write_text(str(seconds))
    summary = run.end().summary
    assert summary["contributions"] == dict.fromkeys(run.HOSPITALS, run.ROUNDS)
    assert len(run.outcome.jobs) == 1
    assert run.same_as_undisturbed()


def test_an_expired_certificate_keeps_the_site_out_until_it_is_renewed(federation, run, restart, tmp_path, grandrounds):
    """The next job has it again, with its ledger, its policy and the state of its runs."""
    kit = read_kit(federation.kits / "hospital-c")
    valid = kit.certificate.read_bytes()
    new = shutil.copytree(kit.folder, tmp_path / "new", ignore=shutil.ignore_patterns("grandrounds", "*.fl"))
    before = {path: path.read_bytes() for path in kit.local.rglob("*") if path.is_file()}
    head = read_ledger(kit.local / "privacy" / "ledger.jsonl").chain.head
    try:
        kit.certificate.write_bytes(signed_again(federation, kit, days=-1))
        restart("hospital-c", wait=False)
        status, reported = grandrounds("doctor", "--no-network", "--kit", kit.folder)
        assert status == 1
        assert "expired" in reported
        require_run_without_victim(run("expired", sites=("hospital-a", "hospital-b")))
        (new / "startup" / kit.certificate.name).write_bytes(signed_again(federation, kit, days=200))
        restart("hospital-c", wait=False, stopped=True)
        status, reported = grandrounds("kit", "renew", kit.folder, "--from", new)
        assert status == 0, reported
        assert f"the head of the privacy ledger is unchanged: {head}" in reported
    except BaseException:
        kit.certificate.write_bytes(valid)
        raise
    assert {path: path.read_bytes() for path in before} == before
    restart("hospital-c")
    after = run("renewed")
    assert after.end().summary["contributions"] == dict.fromkeys(after.HOSPITALS, after.ROUNDS)


def signed_again(federation, kit, days):
    """The kit's certificate with another end, signed by the federation's authority."""
    state = json.loads((federation.kits.parent / "state" / "cert.json").read_text())
    authority = serialization.load_pem_private_key(state["root_pri_key"].encode(), password=None)
    old, now = read_certificate(kit.certificate), datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=10))
        .not_valid_after(now + timedelta(days=days))
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    return builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_a_taken_port_delays_the_server_and_the_run_goes_on(federation, run, grandrounds):
    """Another program listens before the server is back; it is there for a minute."""
    port = federation.kit(federation.server).port
    run = run("taken-port", attempts=3)
    run.await_round(2)
    os.kill(run.process("server", run.SERVER_PARENT), signal.SIGKILL)
    with listener(port):
        status, reported = run.wait_until(lambda: doctor_of_port(federation, grandrounds))
        assert status == 1
        assert f"{port}" in reported
        time.sleep(20)
    outcome = run.end()
    assert outcome.summary["contributions"] == dict.fromkeys(run.HOSPITALS, run.ROUNDS)
    assert run.same_as_undisturbed()


def doctor_of_port(federation, grandrounds):
    """The doctor's status and its line about the port."""
    status, reported = grandrounds("doctor", "--no-network", "--kit", federation.kits / federation.server)
    return status, next(line for line in reported.splitlines() if "port" in line)


def listener(port):
    """A program of another owner at the port, as soon as it is free."""
    deadline = time.monotonic() + 60
    while True:
        found = socket.socket()
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind(("127.0.0.1", port))
            found.listen()
            return found
        except OSError:
            found.close()
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_removed_images_cost_the_site_its_rounds_until_they_are_back(run, own_images):
    """The file of the images is gone, as a disk that is not mounted; the manifest is still there."""
    folder = own_images("mounted", 60)
    run = run("images-gone", "problem.dataset=mounted", "controller.rounds=8", grace=60)
    run.ROUNDS = 8
    run.await_round(3)
    (folder / IMAGES_FILE).rename(folder / "elsewhere.npz")
    run.await_drop()
    (folder / "elsewhere.npz").rename(folder / IMAGES_FILE)
    summary = run.end().summary
    assert {site for site, _ in run.dropped()} == {run.VICTIM}
    assert run.others_gave_all()
    assert summary["contributions"][run.VICTIM] >= 2


def test_data_that_changed_at_a_restart_send_nothing_until_the_ledger_knows(
    federation, run, restart, own_images, grandrounds
):
    """The gate of the restarted site refuses; after ``ledger amend`` it takes part in the next job."""
    kit = federation.kits / "hospital-c"
    manifest = own_images("changing", 63) / MANIFEST_FILE
    first = run("changed-data", "problem.dataset=changing", "controller.rounds=6", attempts=3, grace=60)
    first.ROUNDS = 6
    first.await_round(3)
    records = read_manifest(manifest)
    last = max(record.patient for record in records)
    write_manifest([record for record in records if record.patient != last], manifest)
    restart("hospital-c")
    summary = first.end().summary
    assert summary["contributions"][first.VICTIM] <= 3
    trail = (kit / "local" / "privacy" / "audit.jsonl").read_text()
    assert json.loads(trail.splitlines()[-1])["outcome"] == "refused"
    status, reported = grandrounds(
        "ledger",
        "amend",
        kit / "local" / "privacy",
        "changing",
        "--manifest",
        manifest,
        "--reason",
        "a patient withdrew",
    )
    assert status == 0, reported
    after = run("amended", "problem.dataset=changing")
    assert after.end().summary["contributions"] == dict.fromkeys(after.HOSPITALS, after.ROUNDS)


def test_half_a_line_at_the_end_of_a_ledger_costs_nothing(federation, run, restart):
    """As after a crash while it was written."""
    ledger = federation.kits / "hospital-c" / "local" / "privacy" / "ledger.jsonl"
    restart("hospital-c", stopped=True)
    with ledger.open("a") as stream:
        stream.write('{"half": ')
    restart("hospital-c")
    run = run("half-line")
    assert run.end().summary["contributions"] == dict.fromkeys(run.HOSPITALS, run.ROUNDS)
    read_ledger(ledger)  # it is whole


def test_a_ledger_that_lost_lines_sends_nothing_until_the_loss_is_declared(
    federation, run, restart, grandrounds, tmp_path
):
    """An older file over the new one; the server still knows the newest head. The last test, because the loss stays."""
    kit, known = federation.kits / "hospital-c", tmp_path / "known.json"
    ledger = kit / "local" / "privacy" / "ledger.jsonl"
    run("before-loss").end()
    lines = ledger.read_text().splitlines(keepends=True)
    restart("hospital-c", stopped=True)
    ledger.write_text("".join(lines[:-3]))
    restart("hospital-c")
    refused = run("rolled-back", grace=25)
    refused.end()
    assert refused.others_gave_all()
    assert {site for site, _ in refused.dropped()} == {refused.VICTIM}
    assert all("ledger" in reason for _, reason in refused.dropped())
    server = ("--site", "hospital-c", "--known", known)
    for command in (
        ("repair", federation.kits / federation.server, *server),
        ("repair", kit, "--known", known, "--reason", "an old file was put back"),
    ):
        status, reported = grandrounds("ledger", *command)
        assert status == 0, reported
    after = run("declared")
    assert after.end().summary["contributions"] == dict.fromkeys(after.HOSPITALS, after.ROUNDS)


@pytest.mark.skipif(not OTHER_PYTHON, reason="GRANDROUNDS_OTHER_PYTHON names no interpreter with another torch")
def test_a_site_with_another_torch_takes_part_in_every_round(run, restart):
    restart("hospital-c", python=OTHER_PYTHON)
    run = run("other-torch")
    run.await_round(2)
    job = Path(f"/proc/{run.process(run.VICTIM, run.SITE_JOB)}")
    assert f"{Path(OTHER_PYTHON).parents[1]}/" in (job / "maps").read_text(), "its torch is loaded"
    summary = run.end().summary
    assert summary["contributions"] == dict.fromkeys(run.HOSPITALS, run.ROUNDS)
    assert sorted(summary["records"]) == list(run.HOSPITALS)
    assert len(run.outcome.jobs) == 1
