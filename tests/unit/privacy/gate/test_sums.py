"""What a site's gate compares between two sums of one data set: images and patients that have come or gone."""

from dataclasses import replace

import pytest

from grandrounds.errors import MessageError
from grandrounds.privacy.gate.sums import KitJob, note_question, require_large_change
from grandrounds.privacy.ledger.lines import DatasetIdentity
from grandrounds.privacy.secure_sums.asked import AskedSum
from grandrounds.privacy.secure_sums.messages import Phase, SumTask
from grandrounds.privacy.secure_sums.summands import SumTerms
from grandrounds.protocol.messages import ReleaseKind

PEOPLE = {f"patient:{number:032x}" for number in range(40)}
PIXELS = {f"pixels:{number:032x}" for number in range(40)}


def joined(ledger, skin, digests, content):
    ledger.join(skin, f"state of {content}", digests, content)


@pytest.fixture
def summed(ledger, skin):
    """A data set of which there was a sum."""
    joined(ledger, skin, PEOPLE | PIXELS, "first")
    require_large_change(ledger, "skin", 10)
    return ledger


def test_a_sum_of_the_same_images_is_no_change(summed, skin):
    require_large_change(summed, "skin", 10)
    joined(summed, skin, PEOPLE | PIXELS | {"bytes:" + "0" * 32}, "other files of the same pixels")
    require_large_change(summed, "skin", 10)


@pytest.mark.parametrize("change", ["one patient less", "one image of a patient more", "nine patients more"])
def test_a_data_set_that_has_changed_by_few_patients_gives_no_sum(summed, skin, change):
    changed = {
        "one patient less": PEOPLE - {f"patient:{0:032x}"} | PIXELS - {f"pixels:{0:032x}"},
        "one image of a patient more": PEOPLE | PIXELS | {"pixels:" + "f" * 32},
        # Each may have two digests: of the name as it is, and as it is compared.
        "nine patients more": PEOPLE | PIXELS | {f"patient:{number:032x}" for number in range(100, 118)},
    }[change]
    joined(summed, skin, changed, change)
    with pytest.raises(MessageError, match=r"skin has changed by . patients since a sum.*at least 10"):
        require_large_change(summed, "skin", 10)
    joined(summed, skin, PEOPLE | PIXELS, "first")  # taken back
    require_large_change(summed, "skin", 10)


def test_ten_patients_more_give_a_sum_and_one_less_of_these_does_not(summed, skin):
    more = {f"patient:{number:032x}" for number in range(100, 120)}
    joined(summed, skin, PEOPLE | PIXELS | more, "ten more")
    require_large_change(summed, "skin", 10)
    joined(summed, skin, PEOPLE | PIXELS | set(sorted(more)[1:]), "nine and a half more")
    with pytest.raises(MessageError, match="changed by 1 patients"):
        require_large_change(summed, "skin", 10)


def test_where_patients_are_not_known_each_image_counts(ledger, skin):
    joined(ledger, skin, PIXELS, "first")
    require_large_change(ledger, "skin", 2)
    joined(ledger, skin, set(sorted(PIXELS)[1:]), "one less")
    with pytest.raises(MessageError, match="changed by 1 patients"):
        require_large_change(ledger, "skin", 2)
    joined(ledger, skin, set(sorted(PIXELS)[2:]), "two less")
    require_large_change(ledger, "skin", 2)


def test_the_same_data_set_under_another_name_counts_as_one(summed, skin):
    """Else a job about the other name gives a sum over other hospitals, or of one patient more."""
    copy = DatasetIdentity("copy", "b" * 64)
    joined(summed, copy, PEOPLE | PIXELS | {f"patient:{number:032x}" for number in (100, 101)}, "one patient more")
    with pytest.raises(MessageError, match="copy has changed by 1 patients since a sum of skin"):
        require_large_change(summed, "copy", 10)
    joined(summed, copy, PEOPLE | PIXELS, "the same")
    assert [require_large_change(summed, name, 10) for name in ("copy", "skin", "copy")] == ["skin"] * 3
    other = {f"patient:{number:032x}" for number in range(100, 140)}
    joined(summed, DatasetIdentity("eyes", "c" * 64), other, "other patients")
    assert require_large_change(summed, "eyes", 10) == "eyes"


def asked(subject: bytes = b"", weighted: bool = False):
    return AskedSum(SumTask(Phase.INPUT, weighted=weighted), SumTerms(3), subject)


@pytest.mark.parametrize(
    ("kind", "ways"),
    [
        (ReleaseKind.SUFFICIENT_STATISTICS, [asked(b"bound 1"), asked(b"bound 1"), asked(b"bound 2")]),
        (ReleaseKind.MODEL_UPDATE, [asked(b"round 1"), asked(b"round 2"), asked(b"round 3", weighted=True)]),
    ],
)
def test_a_job_asks_for_a_sum_in_one_way_whatever_runs_the_server_names(ledger, tmp_path, kind, ways):
    kit = KitJob(tmp_path, True, "job-1", {})
    first, again, other = ways
    for run in ("run-1", "run-2"):
        for way in (first, again):
            note_question(ledger, "sums of skin", kit.started(run), kind, way)
        with pytest.raises(MessageError, match="question about sums of skin in job-1"):
            note_question(ledger, "sums of skin", kit.started(run), kind, other)
    note_question(ledger, "sums of skin", replace(kit, job="job-2").started("run-1"), kind, other)
