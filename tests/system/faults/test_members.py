"""Members and certificates change while the consortium runs, by the runbook's commands."""

import shutil
import ssl
import subprocess
import time

import pytest

from grandrounds.deployment.job_watch import admin_session, connected_sites
from grandrounds.deployment.kit import service
from grandrounds.deployment.kit.certificates import read_certificate
from grandrounds.deployment.kit.overlay import apply_overlay
from grandrounds.deployment.local_federation import Federation, await_clients, start_participant
from grandrounds.federation.identity.copies import refused_here
from grandrounds.privacy.ledger.ledger import read_ledger

pytestmark = pytest.mark.faults

FIRST, NEW = ("hospital-a", "hospital-b"), "hospital-c"


@pytest.fixture(scope="module")
def federation(authority, tmp_path_factory, shared_cache):
    """Server and two hospitals, from kits whose keys their owners have made; a third one joins in the first test."""
    folder = tmp_path_factory.mktemp("members")
    for part in ("home", "temporary", "logs", "kits"):
        (folder / part).mkdir()
    server, operator, researcher = authority.SERVER, authority.OPERATOR, authority.RESEARCHER
    made = Federation(folder, folder / "kits", server, (*FIRST, NEW), operator, researcher)
    for name in (server, operator, researcher, *FIRST):
        add(authority, made, name)
    try:
        for name in (server, *FIRST):
            start_participant(made, name)
        await_clients(made, FIRST)
        yield made
    finally:
        for kit in made.kits.iterdir():
            service.stop(made.kit(kit.name))


def add(authority, federation, name):
    """A participant gets its kit, and a server or a hospital applies the overlay."""
    shutil.move(authority.make(name, "packaged").folder, federation.kits / name)
    if "@" not in name:
        apply_overlay(federation.kit(name))


@pytest.fixture
def joined(authority, federation):
    """The third hospital is there, also without the first test."""
    if not (federation.kits / NEW).exists():
        add(authority, federation, NEW)
        start_participant(federation, NEW)
        await_clients(federation, (*FIRST, NEW))


def test_a_hospital_joins_while_the_consortium_runs(authority, federation, run, grandrounds):
    """The server is not started again; the job that runs goes on without the new hospital, and the next includes it."""
    before = run("before", sites=FIRST)
    before.await_round(2)
    serving = before.process(federation.server, before.SERVER_PARENT)
    add(authority, federation, NEW)
    status, reported = grandrounds("doctor", "--kit", federation.kits / NEW)
    assert status == 0, reported
    start_participant(federation, NEW)
    await_clients(federation, (*FIRST, NEW))
    assert NEW not in before.end().summary["contributions"]
    joined = run("joined")
    assert joined.end().summary["contributions"] == dict.fromkeys((*FIRST, NEW), joined.ROUNDS)
    assert joined.process(federation.server, joined.SERVER_PARENT) == serving


def test_a_hospital_that_is_shut_out_stays_out_until_it_is_let_in_again(authority, federation, joined, run, restart):
    """Also with a valid certificate, and after a restart. The job that runs keeps it, so it is ended and resumed without."""
    operator = federation.kits / federation.operator

    def decide(command):
        authority.flare("system", command, NEW, "--force", "--startup-kit", operator)

    running = run("shut-out", "controller.rounds=24", attempts=2, grace=25)
    running.ROUNDS = 24
    running.await_round(2)
    decide("disable-client")
    job = running.reported[0].split()[2]
    authority.flare("job", "abort", job, "--force", "--startup-kit", operator)
    assert running.end().summary["contributions"][NEW] < running.ROUNDS
    restart(NEW, wait=False)
    without = run("without", sites=FIRST)
    assert NEW not in without.end().summary["contributions"]
    with admin_session(federation.kit(federation.operator)) as session:
        assert connected_sites(session) == [*FIRST]
    decide("enable-client")
    restart(NEW)
    again = run("let-in-again")
    assert again.end().summary["contributions"] == dict.fromkeys((*FIRST, NEW), again.ROUNDS)


def test_a_copy_of_a_kit_is_refused_by_name_and_costs_no_round(federation, joined, run, grandrounds):
    """On both sides; a run goes on as if there were no copy, which asks for a connection every ten seconds."""
    copy = federation.folder / "copies" / NEW
    shutil.copytree(federation.kits / NEW, copy, ignore=shutil.ignore_patterns("*.fl"))
    copied = Federation(federation.folder, copy.parent, federation.server, (NEW,), "", "")
    start_participant(copied, NEW)
    try:
        deadline = time.monotonic() + 120
        while not refused_here(copy):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        running = run("copied")
        assert running.end().summary["contributions"] == dict.fromkeys((*FIRST, NEW), running.ROUNDS)
    finally:
        service.stop(copied.kit(NEW))
    _, shown = grandrounds("status", "--kit", copy, "--no-network")
    assert f"the server refuses this kit: a copy of the kit of {NEW} is connected from another place" in shown
    _, shown = grandrounds("status", "--kit", federation.kits / federation.server)
    assert f"{NEW}: a second copy of its kit was refused" in shown


def test_the_servers_certificate_is_rotated_under_a_run(authority, federation, joined, run, restart, grandrounds):
    """Hospitals log in again, because the server has signed their logins with its old key; then the run is resumed."""
    kit, new = federation.kit(federation.server), authority.make(federation.server, "rotated")
    running = run("rotated", "controller.rounds=12", attempts=3)
    running.ROUNDS = 12
    running.await_round(2)
    for command in (("stop", kit.folder), ("renew", kit.folder, "--from", new.folder)):
        status, reported = grandrounds("kit", *command)
        assert status == 0, reported
    status, reported = grandrounds("kit", "start", kit.folder, "--background", HOME=str(federation.folder / "home"))
    assert status == 0, reported
    for site in FIRST:
        restart(site, wait=False)
    restart(NEW)
    assert running.end().summary["contributions"] == dict.fromkeys(running.HOSPITALS, running.ROUNDS)
    assert any(event["event"] == "resume" for event in running.events())
    served = ssl.get_server_certificate((kit.host, kit.port), timeout=20)
    assert served.encode().strip() == new.certificate.read_bytes().strip()
    assert read_certificate(kit.certificate) == read_certificate(new.certificate)


def replace_machine(federation, name, grandrounds):
    """Stop a participant, archive its kit as the runbook says, and unpack it where nothing of it is left."""
    kits, archive = federation.kits, federation.folder / f"{name}.tgz"
    status, reported = grandrounds("kit", "stop", kits / name)
    assert status == 0, reported
    packed = ("tar", "-C", kits, f"--exclude={name}/grandrounds/cache", "-czf", archive, name)
    subprocess.run(packed, check=True)
    shutil.rmtree(kits / name)
    subprocess.run(("tar", "-C", kits, "-xzf", archive), check=True)


def test_a_hospitals_machine_is_replaced_and_the_next_job_has_it_again(federation, joined, run, grandrounds):
    """With its ledger, its policy and the state of its runs; the job that runs goes on without it."""
    ledger = federation.kits / NEW / "local" / "privacy" / "ledger.jsonl"
    running = run("machine-replaced", grace=25)
    running.await_round(2)
    booked = ledger.read_bytes()
    replace_machine(federation, NEW, grandrounds)
    status, reported = grandrounds("doctor", "--kit", federation.kits / NEW)
    assert status == 0, reported
    start_participant(federation, NEW)
    running.end()
    await_clients(federation, (*FIRST, NEW))
    after = run("machine-after")
    assert after.end().summary["contributions"] == dict.fromkeys((*FIRST, NEW), after.ROUNDS)
    assert ledger.read_bytes().startswith(booked)
    read_ledger(ledger)  # it is whole


def test_the_servers_machine_is_replaced_in_the_middle_of_a_run(federation, joined, run, grandrounds):
    """Hospitals find it again by themselves, because its name and its key stay; the run is resumed from its checkpoint."""
    running = run("server-replaced", "controller.rounds=12", attempts=3)
    running.ROUNDS = 12
    running.await_round(2)
    replace_machine(federation, federation.server, grandrounds)
    home = str(federation.folder / "home")
    status, reported = grandrounds("kit", "start", federation.kits / federation.server, "--background", HOME=home)
    assert status == 0, reported
    assert running.end().summary["contributions"] == dict.fromkeys(running.HOSPITALS, running.ROUNDS)
    assert any(event["event"] == "resume" for event in running.events())


def test_a_server_that_is_restored_from_an_older_archive_goes_on_under_the_same_watch(
    federation, joined, run, grandrounds
):
    """The archive is of the third round or later; sites have newer states, and the server does not know the job any more."""
    running, server = run("server-restored", "controller.rounds=12", attempts=4), federation.kits / federation.server
    running.ROUNDS = 12
    running.await_round(4)
    kept = federation.folder / "archive"
    shutil.copytree(server, kept, ignore=shutil.ignore_patterns("cache", "*.tmp", ".*"), symlinks=True)
    done = max(int(path.stem[-5:]) for path in (kept / "grandrounds" / "server-restored" / "server").glob("round_*.pt"))
    running.await_round(8)
    status, reported = grandrounds("kit", "stop", server)
    assert status == 0, reported
    shutil.rmtree(server)
    kept.rename(server)
    home = str(federation.folder / "home")
    status, reported = grandrounds("kit", "start", server, "--background", HOME=home)
    assert status == 0, reported
    assert running.end().summary["contributions"] == dict.fromkeys(running.HOSPITALS, running.ROUNDS)
    assert any(event["event"] == "resume" and event["after_round"] <= done for event in running.events())
