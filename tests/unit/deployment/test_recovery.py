"""A ledger that has lost lines has a way back: a signed line for the worst case, by the policy and the server's records."""

import json
import math
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from grandrounds.cli import build_app
from grandrounds.data.manifest import read_manifest
from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.kit.overlay import Settings, apply_overlay
from grandrounds.deployment.recovery import KnownSpending, server_knowledge, worst_case
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.federation.server.record import RunRecord
from grandrounds.files import write_json
from grandrounds.privacy.accounting import gaussian_epsilon, spent_epsilon
from grandrounds.privacy.gate.policy import parse_policy
from grandrounds.privacy.inventory import dataset_identity
from grandrounds.privacy.ledger.ledger import BudgetExceeded, Ledger
from grandrounds.privacy.ledger.lines import DatasetIdentity, Purpose, read_loss
from grandrounds.protocol.spending import Mechanism, Spending, Unit

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "lost-ledger.md"
GATE = [{"path": "grandrounds.privacy.gate.filters.SitePrivacyGate"}]
UPDATE = {
    "kind": "model_update",
    "name": "update",
    "treatment": "clip_and_noise",
    "clip": 1.0,
    "noise_multiplier": 16.0,
}
COST = Spending(Mechanism.GAUSSIAN, Unit.SITE, sensitivity=2.0, sigma=32.0)


def policy_file(folder, target):
    content = {"unit": "site", "delta": 1e-5, "releases": [UPDATE]} | ({"target_epsilon": target} if target else {})
    scope = {
        "name": "strict",
        "properties": {"grandrounds": content},
        "task_data_filters": GATE,
        "task_result_filters": GATE,
    }
    write_json(folder / "privacy.json", {"scopes": [scope], "default_scope": "strict"})
    return folder / "privacy.json"


@pytest.fixture
def lost(make_kit, tmp_path):
    """A site whose ledger was set back by five releases, and the server that knows its head and a run of seven updates."""
    kit, server = make_kit("site"), make_kit("server")
    config = phantom_site("hospital-a", tmp_path / "data", size=16, images=20)
    apply_overlay(kit, Settings(datasets=config, privacy=policy_file(tmp_path, {"*": 2.0})))
    folder = kit.local / "privacy"
    ledger = Ledger(folder, kit.name)
    identity = dataset_identity("phantom", read_manifest(tmp_path / "data" / "hospital-a" / "manifest.csv"))

    def release(times):
        for number in range(times):
            ledger.book(Purpose("j", "skin", number + 1, "update"), identity, COST, 1e-5)
        return ledger.content().chain.head

    release(2)
    before = {path: path.read_bytes() for path in folder.glob("ledger*")}
    head = release(5)
    record = RunRecord(
        server.folder / "grandrounds" / "skin" / "server", {"rounds": 9, "problem": {"dataset": "phantom"}}
    )
    for number in range(1, 8):
        entry = {"round": number, "asked": [kit.name], "answered": [kit.name], "dropped": {}, "round_seconds": 1.0}
        record.close_round(entry)
    record.write("running")
    write_json(server.folder / "grandrounds" / "ledger_heads" / "hospital-a.json", {"site": kit.name, "head": head})
    for path, content in before.items():
        path.write_bytes(content)
    return SimpleNamespace(
        kit=kit, server=server, head=head, ledger=ledger, identity=identity, tmp=tmp_path, folder=folder
    )


def run(*arguments):
    return CliRunner().invoke(build_app(), list(map(str, arguments)), catch_exceptions=False)


def declared(lost, *more):
    known = lost.tmp / "known.json"
    run("ledger", "repair", lost.server.folder, "--site", "hospital-a", "--known", known)
    return run("ledger", "repair", lost.kit.folder, "--known", known, "--reason", "disk lost", *more)


def test_the_worst_case_is_booked_and_the_server_takes_the_site_in_again(lost):
    with pytest.raises(DataError, match="another or an older file"):
        lost.ledger.content().chain.require_head(lost.head)
    result = declared(lost)
    assert result.exit_code == 0, result.output
    content = lost.ledger.content()
    content.chain.require_head(lost.head)
    (loss,) = content.losses
    assert (loss.heads, loss.reason, loss.signer) == ((lost.head,), "disk lost", "hospital-a")
    assert content.spent("phantom", 1e-5, Unit.SITE) >= 2.0
    with pytest.raises(BudgetExceeded):
        lost.ledger.book(Purpose("j", "skin", 8, "update"), lost.identity, COST, 1e-5, target=2.0)
    (aside,) = lost.folder.glob("lost-*")
    assert {path.name for path in aside.iterdir()} == {"ledger.jsonl", "ledger.head.json"}
    verified = run("ledger", "show", lost.folder, "--verify", "--noted", lost.head)
    assert verified.exit_code == 0, verified.output
    assert "chain intact" in verified.output
    assert "the signature of hospital-a is valid" in " ".join(verified.output.split())


def test_the_commands_of_the_page_lead_back_in_their_order(lost, monkeypatch):
    monkeypatch.chdir(lost.tmp)
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL))
    places = {"/opt/grandrounds/kits/hospital-a": lost.kit.folder, "/opt/grandrounds/kits/server": lost.server.folder}
    for name, folder in {**places, "HEAD": lost.head}.items():
        blocks = blocks.replace(name, str(folder))
    commands = [shlex.split(line) for line in blocks.splitlines() if line]
    assert [command[2] for command in commands] == ["show", "repair", "repair", "show"]
    results = [run(*command[1:]) for command in commands]
    assert [result.exit_code for result in results] == [1, 0, 0, 0], [result.output for result in results]
    assert "another or an older file is in its place" in results[0].output
    assert run(*commands[0][1:]).exit_code == 0


def test_what_the_server_knows_counts_where_it_is_more_than_the_target(lost):
    assert server_knowledge(lost.server, "hospital-a").spent == {"phantom": KnownSpending(7, 0.0)}
    policy = parse_policy({"unit": "site", "delta": 1e-5, "releases": [UPDATE], "target_epsilon": {"*": 0.1}}, "p")
    booked = worst_case([policy], policy, "phantom", KnownSpending(7, 0.0))
    assert spent_epsilon([booked], 1e-5, Unit.SITE) == pytest.approx(gaussian_epsilon(16.0, 1e-5, 7), rel=1e-4)
    reported = worst_case([policy], policy, "phantom", KnownSpending(7, 5.0))
    assert spent_epsilon([reported], 1e-5, Unit.SITE) == pytest.approx(5.0, rel=1e-4)


def test_without_a_target_no_finite_epsilon_describes_what_was_lost():
    policy = parse_policy({"unit": "site", "delta": 1e-5, "releases": [UPDATE]}, "p")
    booked = worst_case([policy], policy, "phantom", KnownSpending(7, 5.0))
    assert math.isinf(spent_epsilon([booked], 1e-5, Unit.SITE))


def test_where_nothing_is_lost_nothing_is_declared(lost):
    assert declared(lost).exit_code == 0
    size = (lost.folder / "ledger.jsonl").stat().st_size
    again = declared(lost)
    assert again.exit_code == 1
    assert "nothing is lost" in again.output
    assert (lost.folder / "ledger.jsonl").stat().st_size == size
    assert len(list(lost.folder.glob("lost-*"))) == 1


@pytest.mark.parametrize("how", ["in the middle", "cut", "no head"])
def test_a_damaged_file_goes_on_after_its_last_good_line(lost, how):
    path = lost.folder / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if how == "in the middle":
        path.write_bytes(lines[0] + lines[1].replace(b"update", b"upfate") + lines[2])
    elif how == "cut":
        path.write_bytes(b"".join(lines)[:-40])
    else:
        lost.folder.joinpath("ledger.head.json").unlink()
    with pytest.raises(DataError, match="ledger repair"):
        lost.ledger.content()
    assert declared(lost).exit_code == 0
    content = lost.ledger.content()
    left = {"in the middle": 1, "cut": 2, "no head": 3}[how]
    assert len(content.chain.lines) == left + 1
    assert content.spent("phantom", 1e-5, Unit.SITE) >= 2.0


def test_a_ledger_that_is_gone_is_created_first(lost):
    lost.folder.rename(lost.folder.with_name("away"))
    lost.folder.mkdir()
    refused = declared(lost)
    assert "grandrounds ledger create" in refused.output
    assert run("ledger", "create", lost.folder, "--site", "hospital-a").exit_code == 0
    assert declared(lost).exit_code == 0
    lost.ledger.content().chain.require_head(lost.head)


def test_a_data_set_of_which_only_the_server_knows_is_booked_and_amended_before_it_is_used_again(lost):
    known = lost.tmp / "known.json"
    spent = {"phantom": {"updates": 7, "epsilon": 0.0}, "blood": {"updates": 3, "epsilon": 0.0}}
    write_json(known, {"site": "hospital-a", "head": lost.head, "unread": [], "datasets": spent})
    result = run("ledger", "repair", lost.kit.folder, "--known", known, "--reason", "x")
    assert result.exit_code == 0, result.output
    content = lost.ledger.content()
    assert content.spent("blood", 1e-5, Unit.SITE) >= 2.0
    with pytest.raises(ConfigurationError, match="amend it in the ledger"):
        content.require_known(DatasetIdentity("blood", "a" * 64))
    lost.ledger.amend(DatasetIdentity("blood", "a" * 64), "the manifest as it is")
    lost.ledger.content().require_known(DatasetIdentity("blood", "a" * 64))


def test_no_other_signs_and_an_altered_line_is_refused(lost, make_kit):
    ann = make_kit("person")
    assert declared(lost, "--signed-by", lost.server.folder).exit_code == 1
    assert declared(lost, "--signed-by", make_kit("person", project="another").folder).exit_code == 1
    assert declared(lost, "--signed-by", ann.folder).exit_code == 0
    (loss,) = lost.ledger.content().losses
    assert loss.signer == ann.name
    plain = json.loads((lost.folder / "ledger.jsonl").read_text().splitlines()[-1])
    assert read_loss(plain, "line 4") == loss
    for name, value in (("reason", "nothing"), ("heads", []), ("signature", "AAAA"), ("worst", [])):
        with pytest.raises(DataError, match="line 4: the signature of ann"):
            read_loss({**plain, name: value}, "line 4")


def test_a_server_that_knows_nothing_of_a_site_says_so_and_a_damaged_record_is_named(lost):
    with pytest.raises(ConfigurationError, match="no record and no head of a ledger of 'hospital-x'"):
        server_knowledge(lost.server, "hospital-x")
    path = lost.server.folder / "grandrounds" / "skin" / "server" / "summary.json"
    shutil.copytree(path.parent.parent, path.parent.parent.with_name("cut"))
    damaged = path.parent.parent.with_name("cut") / "server" / "summary.json"
    damaged.write_text(damaged.read_text()[:50])
    assert server_knowledge(lost.server, "hospital-a").unread == ["cut"]


@pytest.mark.parametrize("entry", [{"updates": -1, "epsilon": 0.0}, {"updates": 1, "epsilon": "nan"}, {"updates": 1}])
def test_what_is_known_must_make_sense(lost, entry):
    known = lost.tmp / "known.json"
    write_json(known, {"site": "hospital-a", "head": "", "unread": [], "datasets": {"phantom": entry}})
    result = run("ledger", "repair", lost.kit.folder, "--known", known, "--reason", "x")
    assert result.exit_code == 1
    assert "datasets.phantom" in result.output
