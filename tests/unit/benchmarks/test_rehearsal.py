"""A rehearsal draws every fault in turn, measures what each has cost, and copies kits without what is the consortium's."""

import json
import socket
import threading
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from benchmarks.rehearsal import __main__ as command
from benchmarks.rehearsal import copies, faults, link, outcome, rehearse, renewing, watching
from benchmarks.rehearsal.federated_run import MOMENTS, SUM_MOMENTS, CompleteRound, FederatedRun, RoundsSeen
from benchmarks.rehearsal.outcome import RehearsedRun
from benchmarks.rehearsal.watching import FaultCost
from grandrounds.deployment.kit.read import Kit, read_kit
from grandrounds.deployment.submission import Outcome
from grandrounds.errors import ConfigurationError
from tests.federations import provisioned_elsewhere

SITES = ("hospital-a", "hospital-b", "hospital-c")
WIDE = {"COLUMNS": "200"}


def test_every_kind_of_fault_comes_once_before_one_comes_again():
    drawn = list(islice(faults.drawn_faults(3, SITES, 20), 2 * len(faults.FAULT_KINDS)))
    first, second = drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]
    assert {one.kind for one in first} == {one.kind for one in second} == set(faults.FAULT_KINDS)
    assert [one.kind for one in first] != [one.kind for one in second]


def test_the_same_seed_draws_the_same_faults_and_another_one_does_not():
    def first(seed):
        return list(islice(faults.drawn_faults(seed, SITES, 20), 30))

    assert first(1) == first(1)
    assert first(1) != first(2)
    assert {one.site for one in first(1)} == set(SITES)


def test_lengths_and_pauses_are_in_their_bounds():
    for one in islice(faults.drawn_faults(0, SITES, 10), 200):
        kind = faults.FAULT_KINDS[one.kind]
        assert kind.shortest <= one.seconds <= kind.longest
        assert 5 <= one.pause <= 15


def test_only_the_kinds_that_are_asked_for_are_drawn():
    drawn = islice(faults.drawn_faults(0, SITES, 10, ["killed site", "slow link"]), 20)
    assert {one.kind for one in drawn} == {"killed site", "slow link"}


class Scene:
    """A run whose record a test writes, and links that note what is done to them."""

    def __init__(self):
        self.seen, self.done = RoundsSeen(), []
        run = SimpleNamespace(progress=lambda: self.seen, record=Path("rehearsal-1") / "server")
        noted = SimpleNamespace(cut=lambda: self.done.append("cut"), mend=lambda: self.done.append("mended"))
        self.stage = faults.FaultStage(run, dict.fromkeys(SITES, noted))

    def complete(self, number, *away, beginning=None):
        ended = CompleteRound(number, frozenset(SITES) - {*away}, beginning or len(self.seen.rounds) + 1)
        self.seen = RoundsSeen([*self.seen.rounds, ended], max(self.seen.begun, ended.beginning))

    def begin(self):
        self.seen = RoundsSeen(self.seen.rounds, self.seen.begun + 1)


@pytest.fixture
def scene():
    return Scene()


@pytest.fixture
def watch():
    def cut():
        while True:
            yield faults.DrawnFault("cut connection", "hospital-c", seconds=30, pause=10)

    return watching.FaultWatch(cut(), SITES, now=0)


def test_no_fault_comes_before_a_round_and_the_pause(scene, watch):
    watch.look(50, scene.stage)
    assert scene.done == [], "no round is complete"
    scene.complete(1)
    watch.look(60, scene.stage, more=False)
    assert scene.done == [], "the time is over"
    watch.look(60, scene.stage)
    assert scene.done == ["cut"]
    watch.look(89, scene.stage)
    assert scene.done == ["cut"]
    watch.look(90, scene.stage)
    assert scene.done == ["cut", "mended"]


def test_a_fault_costs_what_is_missing_until_a_whole_round_that_began_after_it(scene, watch):
    scene.complete(1)
    watch.look(10, scene.stage)
    scene.complete(2, "hospital-c")
    scene.begin()
    watch.look(40, scene.stage)
    scene.complete(3, beginning=3)
    watch.look(45, scene.stage)
    assert watch.costs[0].recovered is None, "this round had begun when the link was cut"
    scene.complete(4, "hospital-c")
    watch.look(50, scene.stage)
    scene.complete(5)
    watch.look(58, scene.stage)
    watch.close(70, scene.seen, "rehearsal-1", usable=True)
    (cost,) = watch.costs
    assert (cost.lasted, cost.recovered, cost.missed, cost.repeated) == (30, 18, 2, 0)
    assert (cost.run, cost.after_round, cost.usable) == ("rehearsal-1", 1, True)


def test_rounds_that_are_done_again_are_counted(scene, watch):
    scene.complete(1)
    scene.complete(2)
    watch.look(10, scene.stage)
    scene.complete(2)
    watch.look(40, scene.stage)
    scene.complete(3)
    watch.look(50, scene.stage)
    assert (watch.costs[0].repeated, watch.costs[0].missed) == (1, 0)


def test_a_run_that_ends_under_a_fault_ends_the_fault(scene, watch):
    scene.complete(1)
    watch.look(10, scene.stage)
    scene.complete(2, "hospital-c")
    watch.close(20, scene.seen, "rehearsal-1", usable=False)
    assert scene.done == ["cut", "mended"]
    assert (watch.costs[0].missed, watch.costs[0].recovered, watch.costs[0].usable) == (1, None, False)


def test_a_fault_that_nobody_recovers_from_does_not_hold_up_the_next_one(scene, watch):
    scene.complete(1)
    watch.look(10, scene.stage)
    watch.look(40, scene.stage)
    scene.complete(2, "hospital-c")
    watch.look(41 + watching.UNRECOVERED_SECONDS, scene.stage)
    watch.look(60 + watching.UNRECOVERED_SECONDS, scene.stage)
    assert [cost.recovered for cost in watch.costs] == [None, None]
    assert watch.costs[0].missed == 1


def test_a_fault_with_nothing_to_harm_is_left_out_after_a_while(scene):
    scene.stage.run.processes = lambda kind, site: []
    drawn = (faults.DrawnFault("killed training", "hospital-a", 0, 0) for _ in range(9))
    watch = watching.FaultWatch(drawn, SITES, now=0)
    scene.complete(1)
    watch.look(1, scene.stage)
    assert watch.skipped == []
    watch.look(2 + watching.NOTHING_TO_HARM_SECONDS, scene.stage)
    assert (watch.skipped, watch.costs) == (["killed training"], [])


def test_a_fault_comes_when_its_site_has_come_to_the_moment_that_was_drawn(scene):
    times = iter([4, 4, 5])
    scene.stage.run.passed = lambda moment, site: {("sending", "hospital-c"): next(times)}[moment, site]
    drawn = (faults.DrawnFault("cut connection", "hospital-c", 30, 10, "sending") for _ in range(2))
    watch = watching.FaultWatch(drawn, SITES, now=0)
    scene.complete(1)
    for now, done in ((10, []), (11, []), (12, ["cut"])):
        watch.look(now, scene.stage)
        assert scene.done == done
    assert watch.costs[0].moment == "sending"


def test_a_moment_that_never_comes_is_passed_over(scene):
    scene.stage.run.passed = lambda *_: 0
    drawn = (faults.DrawnFault("cut connection", "hospital-c", 30, 0, "shares") for _ in range(9))
    watch = watching.FaultWatch(drawn, SITES, now=0)
    scene.complete(1)
    for now in (1, 2 + watching.NOTHING_TO_HARM_SECONDS):
        watch.look(now, scene.stage)
    assert (watch.skipped, watch.costs, scene.done) == (["cut connection, shares"], [], [])


def test_the_moments_of_a_site_are_read_where_the_site_and_the_server_write_them(tmp_path):
    run = object.__new__(FederatedRun)
    run.record, run.federation = tmp_path / "record", SimpleNamespace(kits=tmp_path)
    log, trail = tmp_path / "a" / "job", tmp_path / "a" / "local" / "privacy"
    for folder in (run.record, log, trail):
        folder.mkdir(parents=True)
    assert {run.passed(moment, "a") for moment in (*MOMENTS, *SUM_MOMENTS)} == {0}
    events = [{"event": "round_start", "round": 1}, {"event": "answer", "site": "a"}, {"event": "answer", "site": "b"}]
    (run.record / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in events))
    tasks = ["sum", "sum", "train", "sum", "sum", "train", "sum", "sum", "sum", "train", "test"]
    (log / "log.txt").write_text("".join(f"ClientRunner - got task assignment: name={name}, id=1\n" for name in tasks))
    (trail / "audit.jsonl").write_text('{"outcome": "released"}\n{"outcome": "sum"}\n')
    (trail / "ledger.jsonl").write_text("1\n2\n3\n")
    found = {moment: run.passed(moment, "a") for moment in (*MOMENTS, *SUM_MOMENTS)}
    assert found == {
        **{"fetching": 1, "training": 3, "booking": 3, "sending": 1, "arrived": 1},
        **{"contributors": 2, "unmasking": 2, "shares": 1},
    }


def test_moments_are_drawn_for_each_fault():
    drawn = list(islice(faults.drawn_faults(0, SITES, 10, moments=MOMENTS), 60))
    assert {one.moment for one in drawn} == {*MOMENTS}
    assert {one.moment for one in islice(faults.drawn_faults(0, SITES, 10), 9)} == {""}


def test_the_record_has_rounds_that_were_done_again_and_not_half_a_line(tmp_path):
    run = object.__new__(FederatedRun)
    run.record = tmp_path
    assert run.progress() == RoundsSeen([], 0)
    lines = [
        {"event": "round_start", "round": 1},
        {"event": "round_end", "round": 1, "answered": ["a"]},
        {"event": "resume", "after_round": 0},
        {"event": "round_start", "round": 1},
        {"event": "round_end", "round": 1, "answered": ["a", "b"]},
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"event": "round_st')
    assert run.progress().begun == 2
    assert [(one.number, len(one.answered), one.beginning) for one in run.progress().rounds] == [(1, 1, 1), (1, 2, 2)]


def cost(kind, recovered, missed=0, usable=True):
    return FaultCost(kind, "hospital-a", "rehearsal-1", 2, recovered=recovered, missed=missed, usable=usable)


def test_the_table_has_a_line_for_each_kind():
    found = outcome.by_fault([cost("b", 4.0, 1), cost("a", None, 5, usable=False), cost("b", 10.0, 2), cost("b", 6.0)])
    assert list(found) == ["a", "b"]
    assert found["b"] == {
        **{"times": 3, "missed": 3, "most_missed": 2, "repeated": 0, "recovered": 3},
        **{"median_seconds": 6.0, "longest_seconds": 10.0, "usable": 3},
    }
    assert (found["a"]["median_seconds"], found["a"]["recovered"], found["a"]["usable"]) == (None, 0, 0)


def result(**more):
    calm = RehearsedRun("rehearsal-0", "finished", 1, 12, 0, 80.0, "", {"accuracy": 0.5})
    hit = RehearsedRun("rehearsal-1", "finished", 3, 12, 2, 130.0, "", {"accuracy": 0.48})
    return {
        "undisturbed": asdict(calm),
        "runs": [asdict(hit)],
        "largest_difference": 0.02,
        "by_fault": outcome.by_fault([cost("cut connection", 7.0, 2)]),
        "nothing_to_harm": ["killed training"],
        **{"left_processes": 0, "left_files": 0, "kits_unchanged": True},
        **more,
    }


def test_scores_are_compared_with_those_of_the_undisturbed_run():
    calm = RehearsedRun("0", "finished", 1, 12, 0, 80.0, "", {"accuracy": 0.5, "balanced_accuracy": 0.4})
    hit = RehearsedRun("1", "finished", 1, 12, 0, 80.0, "", {"accuracy": 0.48})
    assert outcome.differences(hit, calm) == {"accuracy": -0.02}


@pytest.mark.parametrize(
    ("more", "status"),
    [({}, 0), ({"left_processes": 1}, 1), ({"kits_unchanged": False}, 1), ({"left_files": 2}, 1)],
)
def test_the_command_shows_the_table_and_fails_if_something_is_left(monkeypatch, tmp_path, more, status):
    monkeypatch.setattr(rehearse, "rehearse", lambda *_: result(**more))
    arguments = [str(tmp_path), "--hours", "0.1", "--out", str(tmp_path / "out")]
    shown = CliRunner().invoke(command.app, arguments, env=WIDE)
    assert shown.exit_code == status
    for text in ("cut connection", "1 of 1", "rehearsal-1", "0.480", "largest difference", "killed training: drawn"):
        assert text in shown.stdout


def test_a_run_without_a_usable_model_is_a_failure():
    broken = {**result()["undisturbed"], "fault": "all sites are lost"}
    assert not rehearse.passed(result(runs=[broken]))
    assert rehearse.passed(result())


def test_a_run_says_why_it_has_no_model():
    failed = Outcome(("1", "2"), "FINISHED:ABORTED", {"status": "failed", "reason": "no sites", "rounds": []})
    found = outcome.rehearsed_run("rehearsal-1", failed, "", 9.0, SITES, {})
    assert (found.usable, found.fault, found.attempts) == (False, "no sites", 2)
    assert outcome.rehearsed_run("rehearsal-1", None, "refused", 9.0, SITES, {}).fault == "refused"


def test_an_output_folder_in_use_is_refused(tmp_path):
    (tmp_path / "other").write_text("")
    with pytest.raises(ConfigurationError, match="not empty"):
        rehearse.rehearse(tmp_path, tmp_path, rehearse.Rehearsal(hours=1), print)


def test_a_folder_without_kits_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="0, 0 and 0"):
        copies.kits_in(tmp_path)


def test_kits_have_the_same_state_until_somebody_writes(tmp_path):
    (tmp_path / "local").mkdir()
    kits = [Kit(tmp_path, "site", "hospital-a", "project", "localhost", 8002)]
    before = copies.state_of(kits)
    assert copies.state_of(kits) == before
    (tmp_path / "local" / "new").write_text("")
    assert copies.state_of(kits) != before


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory):
    return provisioned_elsewhere(tmp_path_factory.mktemp("provisioned"), SITES)


def test_copies_have_ledgers_of_their_own_and_another_port(provisioned, tmp_path):
    kits = copies.kits_in(provisioned)
    (site,) = (kit for kit in kits if kit.name == "hospital-a")
    (site.local / "privacy").mkdir()
    (site.local / "privacy" / "ledger.jsonl").write_text("spent\n")
    (site.local / "grandrounds.json").write_text("{}")
    before = copies.state_of(kits)
    made = copies.copy_kits(kits, tmp_path / "out", 18099)
    copied = made.kit("hospital-a")
    assert copies.state_of(kits) == before
    assert (made.sites, made.researcher, made.operator) == (
        *(SITES, "researcher@consortium.example"),
        "operator@consortium.example",
    )
    assert (made.kit(made.server).host, made.kit(made.server).port) == ("localhost", 18099)
    assert copied.host == "fl.consortium.example", "the proxy takes this name to the copy"
    assert (copied.local / "privacy" / "ledger.jsonl").read_text() != "spent\n"
    assert not (copied.local / "grandrounds.json").exists()


def test_a_renewed_certificate_is_the_consortiums_and_valid_for_longer(provisioned):
    from grandrounds.deployment.kit.certificates import days_left, read_certificate

    kits = copies.kits_in(provisioned)
    key, site = renewing.authority_key(kits), read_kit(next(kit.folder for kit in kits if kit.kind == "site"))
    old = read_certificate(site.certificate)
    new = renewing.prolonged(old, key)
    new.verify_directly_issued_by(read_certificate(site.authority))
    assert new.subject == old.subject
    assert days_left(new) == pytest.approx(days_left(old) + 30, abs=0.1)


def test_a_proxy_carries_every_connect_to_its_own_port_until_it_is_cut():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    while data := connection.recv(100):
                        connection.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        proxy = link.SlowLink(server.getsockname()[1], connect=True)
        proxy.start()

        def ask():
            client = socket.create_connection(("127.0.0.1", proxy.port), 10)
            client.sendall(b"CONNECT fl.consortium.example:8002 HTTP/1.1\r\n\r\n")
            return client, client.recv(200)

        client, answer = ask()
        assert answer.startswith(b"HTTP/1.1 200")
        client.sendall(b"hello")
        assert client.recv(100) == b"hello"
        proxy.cut()
        with suppress(ConnectionResetError):  # either end is one
            assert client.recv(100) == b""
        client.close()
        assert ask()[1] == b"", "no other connection is taken"
        proxy.mend()
        again, answer = ask()
        assert answer.startswith(b"HTTP/1.1 200")
        again.close()
        proxy.stop()
