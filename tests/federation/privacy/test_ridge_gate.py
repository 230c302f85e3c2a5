"""Sums of a site leave by a rule of their own, without classes of few patients, or not at all."""

import csv
import json
from collections import defaultdict

import pytest

from grandrounds.errors import GrandRoundsError
from grandrounds.federation.site.data import SiteAccess
from grandrounds.privacy.gate.audit import AUDIT_NAME
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.protocol.refusal import Reason, Refusal
from tests.federations import Federation, draw_hospitals

SITES = ["site-1", "site-2"]
MINIMUM = 4
RULES = [
    {"kind": "sufficient_statistics", "name": name, "treatment": "minimum_support", "minimum": MINIMUM}
    for name in ("class_counts", "sums")
]
SCALARS = [
    {"name": name, "part": part, "minimum_support": 2} for name, part in (("validation.*", "val"), ("common.*", "test"))
]


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, shared_cache):
    return draw_hospitals(tmp_path_factory.mktemp("hospitals"), SITES)


@pytest.fixture
def go(hospitals, install, policy_of, tmp_path):
    def started(releases, scalars=SCALARS, place=""):
        install(tmp_path / place / "flare" / "site-1" / "local", policy_of(releases=releases, scalars=scalars))
        return Federation("ridge", SITES, hospitals)(tmp_path / place)

    return started


def patients(hospitals, site):
    """Of each class in training, with the number of their images."""
    found, images = defaultdict(set), defaultdict(int)
    with (hospitals / site / "manifest.csv").open() as stream:
        for row in csv.DictReader(stream):
            if row["split"] == "train":
                found[row["label"]].add(row["patient"])
                images[row["label"]] += 1
    return {name: (len(people), images[name]) for name, people in found.items()}


def test_a_site_leaves_classes_of_few_patients_out_and_books_two_releases(go, hospitals, tmp_path):
    found = go(RULES)
    first, second = (patients(hospitals, site) for site in SITES)
    few = [name for name, (people, _) in first.items() if people < MINIMUM]
    assert few, "the drawn hospital must have a rare class"
    expected = {
        name: (0 if name in few else first[name][1]) + second.get(name, (0, 0))[1] for name in {*first, *second}
    }
    counts = found.summary["rounds"][0]["ridge"]["class_counts"]
    assert {name: count for name, count in counts.items() if name in expected} == expected
    assert found.summary["privacy"]["site-1"]["treated"] == dict.fromkeys(("class_counts", "sums"), "minimum_support")
    bookings = Ledger(tmp_path / "flare" / "site-1" / "local" / "privacy", "site-1").content().bookings
    booked = {booking.purpose.release for booking in bookings}
    assert booked <= {"class_counts", "sums"}


def test_without_a_rule_the_job_is_refused_before_an_image_is_read(
    go, install, policy_of, tmp_path, update_rule, monkeypatch
):
    install(tmp_path / "flare" / "site-2" / "local", policy_of(releases=[update_rule()]), "site-2")
    read = []
    monkeypatch.setattr(SiteAccess, "with_images", lambda *arguments: read.append(arguments))
    with pytest.raises(GrandRoundsError, match="2 of 2 sites refuse"):
        go([update_rule()])
    assert not read
    (line,) = audited(tmp_path)
    assert (line["outcome"], line["reason"]) == ("refused", Reason.DENIED)
    (path,) = tmp_path.glob("state/*/server/summary.json")
    summary = json.loads(path.read_text())
    assert (summary["final"], summary["checkpoints"]) == (True, [])
    refusal = Refusal(**summary["refusals"]["site-1"])
    assert "class_counts, sums (sufficient_statistics)" in refusal.cause
    assert [rule["kind"] for rule in json.loads(f"[{refusal.line}]")] == ["sufficient_statistics"]


def test_one_site_that_refuses_takes_no_part_and_the_record_says_why(go, tmp_path, update_rule):
    """The run needs both sites, so it ends; the other one has done nothing in vain."""
    with pytest.raises(GrandRoundsError, match=r"1 of 2 sites refuse.*site-1"):
        go([update_rule()])
    assert {line["outcome"] for line in audited(tmp_path)} == {"refused"}


def audited(folder):
    audit = folder / "flare" / "site-1" / "local" / "privacy" / AUDIT_NAME
    return [json.loads(line) for line in audit.read_text().splitlines()]


def test_a_policy_that_keeps_losses_leaves_the_temperature_to_the_others(go):
    found = go(RULES, scalars=[])
    notes = found.summary["rounds"][2]["ridge"]
    assert notes["temperature"] > 0
    whole = go(RULES, place="whole")
    assert 0 < notes["validation_images"] < whole.summary["rounds"][2]["ridge"]["validation_images"]
