"""The ledger adds up over rounds, jobs and restarts, and refuses what would make it say less than the truth."""

import math
import subprocess
import sys
from dataclasses import replace

import pytest

from grandrounds.commands.ledger import accounts
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.privacy.accounting import gaussian_epsilon
from grandrounds.privacy.ledger import ledger as ledger_module
from grandrounds.privacy.ledger.ledger import BudgetExceeded, Ledger, dataset_fingerprint
from grandrounds.privacy.ledger.lines import DatasetIdentity, Purpose
from grandrounds.protocol.spending import Mechanism, Spending, Unit, no_guarantee

DELTA = 1e-5


def test_epsilon_adds_up_over_rounds_jobs_and_reopening(tmp_path, ledger, skin, update, purpose):
    booked = [ledger.book(purpose(number), skin, update, DELTA).epsilon for number in (1, 2, 3)]
    again = Ledger(tmp_path / "privacy", "site-1")
    booked.append(again.book(purpose(1, "job-2"), skin, update, DELTA).epsilon)
    assert booked == [pytest.approx(gaussian_epsilon(16.0, DELTA, count)) for count in (1, 2, 3, 4)]
    assert again.content().spent("skin", DELTA, Unit.SITE) == booked[-1]
    assert again.content().spent("skin", 1e-3, Unit.SITE) == pytest.approx(gaussian_epsilon(16.0, 1e-3, 4))


def test_a_booking_is_read_as_it_was_written(ledger, skin):
    spending = Spending(Mechanism.DP_SGD, Unit.RECORD, 1.5, 3.0, sampling_rate=0.25, steps=7)
    written = ledger.book(Purpose("job", "run", 3, "update"), skin, spending, DELTA)
    assert ledger.content().bookings == (written,)
    assert (written.spending, written.purpose.round_number, written.delta) == (spending, 3, DELTA)


CHEST = DatasetIdentity("chest", "b" * 64)


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.PATIENT])
def test_other_data_sets_have_other_images_and_are_counted_apart(ledger, skin, update, purpose, unit):
    ledger.book(purpose(), skin, replace(update, unit=unit), DELTA)
    other = ledger.book(purpose(), CHEST, replace(update, unit=unit), DELTA)
    assert other.epsilon == pytest.approx(gaussian_epsilon(16.0, DELTA))


@pytest.mark.parametrize("unit", [Unit.SITE, Unit.PRESENCE])
def test_all_data_sets_of_a_site_share_the_budget_of_a_unit_of_the_site(ledger, skin, update, purpose, unit):
    cost, target = replace(update, unit=unit), gaussian_epsilon(16.0, DELTA, 2)
    ledger.book(purpose(), skin, cost, DELTA, target)
    booked = ledger.book(purpose(1, "job-2"), CHEST, cost, DELTA, target)
    assert booked.epsilon == pytest.approx(target)
    for dataset in (skin, CHEST, DatasetIdentity("new", "c" * 64)):
        with pytest.raises(BudgetExceeded):
            ledger.book(purpose(2), dataset, cost, DELTA, target)
    ledger.amend(DatasetIdentity("chest", "d" * 64), "images added")
    assert [ledger.content().spent(name, DELTA, unit) for name in ("skin", "chest")] == [booked.epsilon] * 2
    assert ledger.content().spent_bound("skin", DELTA, unit) > booked.epsilon


def test_a_ledger_of_an_earlier_version_is_read_by_the_larger_figure(ledger, skin, update, purpose, monkeypatch):
    """Its lines have the epsilon of one data set each."""
    with monkeypatch.context() as patch:
        patch.setattr(Unit, "of_site", False)
        booked = [ledger.book(purpose(), dataset, update, DELTA).epsilon for dataset in (skin, CHEST)]
    assert booked == [pytest.approx(gaussian_epsilon(16.0, DELTA))] * 2
    content = ledger.content()
    spent = gaussian_epsilon(16.0, DELTA, 2)
    assert content.spent("skin", DELTA, Unit.SITE) == pytest.approx(spent)
    for verify in (False, True):
        (shown,) = accounts(content, "skin", verify)
        assert shown["epsilon"] == pytest.approx(spent)
        assert (shown["unit"], shown["adjacency"], shown["releases"]) == ("site", "replaced", 1)


def test_a_clock_that_goes_back_forgets_nothing(ledger, skin, update, purpose, monkeypatch):
    ledger.book(purpose(1), skin, update, DELTA)
    monkeypatch.setattr(ledger_module, "_now", lambda: "2001-01-01T00:00:00+00:00")
    booked = ledger.book(purpose(2), skin, update, DELTA)
    assert booked.epsilon == pytest.approx(gaussian_epsilon(16.0, DELTA, 2))
    assert [line.purpose.round_number for line in ledger.content().bookings] == [1, 2]


def test_a_release_above_the_target_is_refused_and_not_booked(ledger, skin, update, purpose):
    target = gaussian_epsilon(16.0, DELTA, 2)
    for number in (1, 2):
        ledger.book(purpose(number), skin, update, DELTA, target)
    message = (
        r"site-1: with release 'update' of round 3, data set 'skin' would have spent epsilon 0\.3\d+ at delta 1e-05 "
    )
    with pytest.raises(
        BudgetExceeded, match=message + r"for all data of the site, replaced, more than the target 0\.2"
    ):
        ledger.book(purpose(3), skin, update, DELTA, target)
    assert len(ledger.content().bookings) == 2


def test_a_release_without_a_guarantee_is_never_forgotten(ledger, skin, update, purpose):
    assert ledger.book(purpose(1), skin, no_guarantee(0.03), DELTA).epsilon == math.inf
    assert ledger.book(purpose(2), skin, update, DELTA).epsilon == math.inf
    assert ledger.content().bookings[0].spending == no_guarantee(0.03)
    with pytest.raises(BudgetExceeded, match="would have spent epsilon inf"):
        ledger.book(purpose(3), skin, update, DELTA, 1e6)


def test_another_data_set_under_a_known_name_is_refused(ledger, skin, update, purpose):
    ledger.book(purpose(), skin, update, DELTA)
    other = DatasetIdentity("skin", "b" * 64)
    with pytest.raises(ConfigurationError, match=r"'skin'.*aaaaaaaaaaaa"):
        ledger.book(purpose(2), other, update, DELTA)


def test_a_new_name_is_no_new_budget(ledger, skin, update, purpose):
    ledger.book(purpose(), skin, update, DELTA)
    with pytest.raises(ConfigurationError, match="the images of data set 'fresh' were booked as 'skin'; use that name"):
        ledger.book(purpose(2), DatasetIdentity("fresh", skin.fingerprint), update, DELTA)


def test_a_data_set_that_has_grown_keeps_what_it_has_spent(ledger, skin, update, purpose):
    ledger.book(purpose(), skin, update, DELTA)
    grown = DatasetIdentity("skin", "b" * 64)
    ledger.amend(grown, "images of May added")
    assert ledger.book(purpose(2), grown, update, DELTA).epsilon == pytest.approx(gaussian_epsilon(16.0, DELTA, 2))
    with pytest.raises(ConfigurationError, match="now it has aaaaaaaaaaaa"):
        ledger.book(purpose(3), skin, update, DELTA)


def test_amendments_need_a_known_name_a_reason_and_images_of_no_other_data_set(ledger, skin, update, purpose):
    with pytest.raises(ConfigurationError, match="has no data set 'skin'; it has none"):
        ledger.amend(skin, "why not")
    ledger.book(purpose(), skin, update, DELTA)
    ledger.book(purpose(), DatasetIdentity("chest", "c" * 64), update, DELTA)
    with pytest.raises(ConfigurationError, match="data set 'skin': the reason of the change is missing"):
        ledger.amend(skin, " ")
    with pytest.raises(ConfigurationError, match="the images of data set 'skin' were booked as 'chest'"):
        ledger.amend(DatasetIdentity("skin", "c" * 64), "merged")


def test_a_missing_ledger_is_not_begun_again_in_silence(tmp_path):
    with pytest.raises(ConfigurationError, match="there is no ledger; was it never created, or moved"):
        Ledger(tmp_path, "site-1")


def test_the_ledger_of_another_site_is_refused(tmp_path, ledger):
    with pytest.raises(ConfigurationError, match="is the ledger of 'site-1', not of 'site-2'"):
        Ledger(tmp_path / "privacy", "site-2")


def test_creating_twice_keeps_what_is_there(tmp_path, ledger, skin, update, purpose):
    ledger.book(purpose(), skin, update, DELTA)
    assert len(Ledger.create(tmp_path / "privacy", "site-1").content().bookings) == 1


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0])
def test_a_delta_outside_its_range_is_refused_and_not_booked(ledger, skin, update, purpose, delta):
    with pytest.raises(ConfigurationError, match="delta must be above 0 and below 1"):
        ledger.book(purpose(), skin, update, delta)
    assert ledger.content().bookings == ()


def test_names_may_not_be_empty(tmp_path):
    with pytest.raises(ConfigurationError, match="a ledger needs the name of its site"):
        Ledger.create(tmp_path, "")
    with pytest.raises(ConfigurationError, match="a data set needs a name and a fingerprint, got 'skin', ''"):
        DatasetIdentity("skin", "")


def test_a_line_of_another_version_is_named(ledger):
    about = {"time": "2026-01-01", "job": "a", "run": "b", "round": 1, "release": "update"}
    begun = {"kind": "release", **about, "dataset": "skin", "fingerprint": "1", "mechanism": "gaussian", "unit": "site"}
    for content, message in (
        ({"kind": "gift"}, "line 2: unknown kind 'gift'"),
        (begun, "line 2: 'sensitivity' is missing"),
        ({**begun, "mechanism": "magic"}, "line 2: 'magic' is not a valid Mechanism"),
    ):
        with ledger._file.extending() as extension:
            extension.append(content)
        with pytest.raises(DataError, match=message):
            ledger.content()
        lines = ledger._file.path.read_bytes().splitlines(keepends=True)
        ledger._file.path.write_bytes(lines[0])
        ledger._file.head_path.unlink()
        ledger._file.create({})


def test_fingerprints_depend_on_images_and_patients_and_not_on_their_order():
    first = dataset_fingerprint(["a.png", "b.png"], ["p", "q"])
    assert dataset_fingerprint(["b.png", "a.png"], ["q", "p"]) == first
    others = {
        dataset_fingerprint(["a.png", "b.png"], ["q", "p"]),
        dataset_fingerprint(["a.png"], ["p"]),
        dataset_fingerprint(["a.png", "b.png", "c.png"], ["p", "q", "q"]),
    }
    assert len(others | {first}) == 4
    with pytest.raises(ValueError, match="zip"):
        dataset_fingerprint(["a"], [])


def test_processes_that_book_at_once_lose_nothing(tmp_path, ledger):
    code = (
        "import sys; from pathlib import Path\n"
        "from grandrounds.privacy.ledger.ledger import Ledger, Purpose, DatasetIdentity, BudgetExceeded\n"
        "from grandrounds.protocol.spending import Mechanism, Spending\n"
        "from grandrounds.protocol.spending import Unit\n"
        "ledger = Ledger(Path(sys.argv[1]), 'site-1'); done = 0\n"
        "update = Spending(Mechanism.GAUSSIAN, Unit.SITE, 2.0, 32.0)\n"
        "for number in range(15):\n"
        "    try: ledger.book(Purpose(sys.argv[2], 'run', number, 'update'), DatasetIdentity('skin', 'f'), update, 1e-5,"
        " float(sys.argv[3])); done += 1\n"
        "    except BudgetExceeded: pass\n"
        "print(done)"
    )
    target = gaussian_epsilon(16.0, DELTA, 20)
    command = [sys.executable, "-c", code, str(tmp_path / "privacy")]
    others = [
        subprocess.Popen(
            [*command, f"job-{number}", repr(target)],
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": ":".join(sys.path)},
        )
        for number in range(2)
    ]
    done = [int(other.communicate(timeout=600)[0]) for other in others]
    content = ledger.content()
    assert sum(done) == len(content.bookings) == 20
    assert content.bookings[-1].epsilon == pytest.approx(target)
