import json
import re

import pytest

from grandrounds.data.manifest import Record, write_manifest
from grandrounds.privacy.accounting import gaussian_epsilon, renyi_epsilon
from grandrounds.privacy.ledger.chain import ChainedFile
from grandrounds.privacy.ledger.ledger import LEDGER_NAME, Ledger, dataset_fingerprint
from grandrounds.privacy.ledger.lines import DatasetIdentity, Purpose
from grandrounds.privacy.secure_sums.attempt import batch_note
from grandrounds.protocol.spending import GaussianSteps, Mechanism, Spending, Unit, no_guarantee, outside_budget

SKIN = DatasetIdentity("skin", "a" * 64)
UPDATE = Spending(Mechanism.GAUSSIAN, Unit.SITE, sensitivity=2.0, sigma=32.0)
THREE = gaussian_epsilon(16.0, 1e-5, 3)


@pytest.fixture
def folder(tmp_path):
    """A ledger with three rounds booked."""
    ledger = Ledger.create(tmp_path, "hospital-a")
    for number in (1, 2, 3):
        ledger.book(Purpose("job-7", "pilot", number, "update"), SKIN, UPDATE, 1e-5)
    return tmp_path


def test_releases_and_what_they_amount_to_are_shown(run, folder):
    result = run("ledger", "show", folder)
    assert result.exit_code == 0
    assert "privacy ledger of hospital-a, opened 20" in result.stdout
    assert re.search(rf"skin\W+site, replaced\W+3\W+0\W+1e-05\W+{THREE:.4g}", result.stdout)
    assert (
        len(re.findall(r"job-7\W+pilot\W+[123]\W+update\W+skin\W+gaussian\W+site\W+2\W+32\W+0\.\d+", result.stdout))
        == 3
    )
    assert f"head: {Ledger(folder, 'hospital-a').content().chain.head} (4 lines, chain intact)" in result.stdout
    assert "verified" not in result.stdout


def test_the_latest_releases_are_shown_when_there_are_many(run, folder):
    shown = run("ledger", "show", folder, "--last", "1").stdout
    assert "releases (1 of 3)" in shown
    assert shown.count("job-7") == 1
    assert run("ledger", "show", folder, "--last", "0").stdout.count("job-7") == 3


def test_the_round_of_tests_is_explained(run, folder):
    assert "one after the last training" not in run("ledger", "show", folder).stdout
    Ledger(folder, "hospital-a").book(Purpose("job-7", "pilot", 4, "counts_common"), SKIN, no_guarantee(), 1e-5)
    shown = " ".join(run("ledger", "show", folder).stdout.split())
    assert "are of the tests at the end of a run, whose round is one after the last training" in shown


def test_verifying_computes_epsilon_again_and_a_bound(run, folder):
    result = run("ledger", "show", folder, "--verify", "--json")
    (dataset,) = json.loads(result.stdout)["datasets"]
    bound = renyi_epsilon([GaussianSteps(16.0, steps=3)], 1e-5)
    assert dataset == {
        "dataset": "skin",
        "releases": 3,
        "outside_budget": 0,
        "unit": "site",
        "adjacency": "replaced",
        "delta": 1e-5,
        "epsilon": pytest.approx(THREE),
        "epsilon_bound": pytest.approx(bound),
    }
    shown = run("ledger", "show", folder, "--verify").stdout
    assert "verified: every epsilon follows from the releases" in shown
    assert f"{bound:.4g}" in shown


def test_verifying_finds_an_epsilon_that_does_not_follow(run, folder):
    file = ChainedFile(folder / LEDGER_NAME)
    with file.extending() as extension:
        line = {key: value for key, value in extension.chain.lines[-1].items() if key not in ("previous", "hash")}
        extension.append(line | {"round": 4, "epsilon": 0.01})
    assert run("ledger", "show", folder).exit_code == 0
    result = run("ledger", "show", folder, "--verify")
    assert result.exit_code == 1
    assert re.search(
        r"data set 'skin' was booked with epsilon 0\.01, but its releases have epsilon 0\.4", result.stderr
    )


def test_every_unit_that_was_promised_has_its_own_row(run, folder):
    ledger = Ledger(folder, "hospital-a")
    ledger.book(Purpose("job-8", "pilot", 1, "update"), SKIN, Spending(Mechanism.DP_SGD, Unit.RECORD, 1.0, 16.0), 1e-5)
    rows = json.loads(run("ledger", "show", folder, "--json", "--verify").stdout)["datasets"]
    assert {row["unit"]: row["epsilon"] for row in rows} == {
        "site": None,
        "record": pytest.approx(gaussian_epsilon(16.0, 1e-5, 4)),
    }


def test_an_infinite_epsilon_is_printed_as_a_word(run, folder):
    Ledger(folder, "hospital-a").book(Purpose("job-9", "pilot", 1, "update"), SKIN, no_guarantee(), 1e-5)
    result = run("ledger", "show", folder, "--verify")
    assert result.exit_code == 0
    assert re.search(r"skin\W+site, replaced\W+4\W+0\W+1e-05\W+infinite\W+infinite", result.stdout)


def test_an_empty_ledger_and_an_interrupted_booking_are_reported(run, tmp_path):
    Ledger.create(tmp_path, "hospital-a")
    with (tmp_path / LEDGER_NAME).open("ab") as stream:
        stream.write(b'{"half')
    shown = run("ledger", "show", tmp_path).stdout
    assert "nothing was released" in shown
    assert "the last booking is incomplete" in shown


def test_a_noted_head_is_looked_for(run, folder):
    noted = Ledger(folder, "hospital-a").content().chain.head
    Ledger(folder, "hospital-a").book(Purpose("job-7", "pilot", 4, "update"), SKIN, UPDATE, 1e-5)
    assert run("ledger", "show", folder, "--noted", noted).exit_code == 0
    result = run("ledger", "show", folder, "--noted", "0a" * 32)
    assert result.exit_code == 1
    assert "no line has the noted hash" in result.stderr


def test_a_damaged_ledger_is_one_line_and_status_one(run, folder):
    path = folder / LEDGER_NAME
    path.write_bytes(path.read_bytes().replace(b'"sigma":32.0', b'"sigma":99.0', 1))
    result = run("ledger", "show", folder)
    assert result.exit_code == 1
    assert re.fullmatch(r"error: .*ledger\.jsonl: line 2 is damaged or out of place.*\n", result.stderr)


def test_a_missing_ledger_and_wrong_use(run, tmp_path):
    result = run("ledger", "show", tmp_path)
    assert (result.exit_code, "there is no ledger" in result.stderr) == (1, True)
    assert run("ledger").exit_code == 2
    assert run("ledger", "show", tmp_path, "--last", "-1").exit_code == 2


def test_a_ledger_is_opened_once(run, tmp_path):
    first = run("ledger", "create", tmp_path / "privacy", "--site", "hospital-a")
    assert (first.exit_code, "with 0 releases" in first.stdout) == (0, True)
    assert run("ledger", "create", tmp_path / "privacy", "--site", "hospital-a").stdout == first.stdout
    other = run("ledger", "create", tmp_path / "privacy", "--site", "hospital-b")
    assert (other.exit_code, "is the ledger of 'hospital-a'" in other.stderr) == (1, True)


def test_show_with_verify_reports_the_spending_or_the_fault(run, folder):
    result = run("ledger", "show", folder, "--verify")
    assert "site, replaced" in result.stdout
    assert f"{THREE:.4g}" in result.stdout
    assert "(4 lines, chain intact)" in result.stdout
    assert run("ledger", "show", folder, "--verify", "--noted", "0a" * 32).exit_code == 1
    path = folder / LEDGER_NAME
    path.write_bytes(path.read_bytes().rpartition(b"{")[0])
    cut = run("ledger", "show", folder, "--verify")
    assert (cut.exit_code, "it was truncated" in cut.stderr) == (1, True)


def test_a_data_set_that_has_grown_keeps_what_it_has_spent(run, folder, tmp_path):
    manifest = tmp_path / "skin.csv"
    write_manifest([Record("a.png", "nevus", patient="p"), Record("b.png", "nevus", patient="q")], manifest)
    arguments = ("ledger", "amend", folder, "skin", "--manifest", manifest, "--reason", "images of May added")
    result = run(*arguments)
    fingerprint = dataset_fingerprint(["a.png", "b.png"], ["p", "q"])
    assert f"skin: fingerprint {fingerprint[:12]}, 3 releases stay booked" in result.stdout
    Ledger(folder, "hospital-a").book(
        Purpose("job-9", "pilot", 4, "update"), DatasetIdentity("skin", fingerprint), UPDATE, 1e-5
    )
    assert run("ledger", "show", folder, "--verify").exit_code == 0
    unknown = run("ledger", "amend", folder, "ct", "--manifest", manifest, "--reason", "new")
    assert (unknown.exit_code, "has no data set 'ct'; it has skin" in unknown.stderr) == (1, True)


def test_releases_outside_the_budget_are_counted_apart(run, folder):
    Ledger(folder, "hospital-a").book(Purpose("job-9", "pilot", 4, "rows"), SKIN, outside_budget(Unit.SITE), 1e-5)
    (dataset,) = json.loads(run("ledger", "show", folder, "--json", "--verify").stdout)["datasets"]
    assert (dataset["releases"], dataset["outside_budget"]) == (4, 1)
    assert dataset["epsilon"] == pytest.approx(THREE)


def test_patients_of_two_data_sets_that_are_called_alike_can_be_told_apart(run, folder):
    ledger = Ledger(folder, "hospital-a")
    for name in ("skin", "blood"):
        ledger.join(DatasetIdentity(name, "1" * 64), name, {"patient:17"})
    arguments = ("ledger", "amend", folder, "skin", "--distinct-from", "blood", "--reason", "numbers of two studies")
    result = run(*arguments)
    assert (result.exit_code, "are different people" in result.stdout) == (0, True)
    Ledger(folder, "hospital-a").content().require_own_images("skin", ["skin", "blood"])
    unknown = run("ledger", "amend", folder, "skin", "--distinct-from", "ct", "--reason", "new")
    assert (unknown.exit_code, "knows no images of 'ct'" in unknown.stderr) == (1, True)
    assert run("ledger", "amend", folder, "skin", "--reason", "neither a manifest nor another data set").exit_code == 2


def test_an_administrator_books_the_sums_without_a_hospital_that_has_left(run, folder):
    ledger = Ledger(folder, "hospital-a")
    ledger.note(batch_note("skin", 1), "hospital-a, hospital-b, hospital-c, hospital-d", again=False)
    alone = run("ledger", "contributors", folder, "skin", "hospital-b")
    assert (alone.exit_code, "hospital-a among them" in alone.stderr) == (1, True)
    result = run("ledger", "contributors", folder, "skin", "hospital-a", "hospital-b", "hospital-c")
    assert (result.exit_code, "shows the server the sums of hospital-d" in result.stderr) == (0, True)
    notes = Ledger(folder, "hospital-a").content().notes
    assert notes[batch_note("skin", 1)] == "hospital-a, hospital-b, hospital-c"


@pytest.mark.parametrize("name", ["a/b", "", "../a"])
def test_a_ledger_is_of_a_site_whose_name_can_be_a_folders(run, tmp_path, name):
    refused = run("ledger", "create", tmp_path / "privacy", "--site", name)
    assert refused.exit_code
    assert "--site" in refused.stderr
    assert not (tmp_path / "privacy").exists()
