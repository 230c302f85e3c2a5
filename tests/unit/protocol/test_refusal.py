"""A refusal is read as it was sent, and what another attempt would meet again is final."""

import pytest

from grandrounds.errors import Fault
from grandrounds.protocol.refusal import FIELDS, LASTING, Reason, Refusal


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal("no rule lets sums out"),
        Refusal("no rule lets a, b (counts) out", "releases"),
        Refusal("no rule", "releases", '{"kind": "counts", "name": ["a"]}, {"kind": "curves"}'),
    ],
)
def test_what_is_sent_is_what_is_read(refusal):
    assert Refusal.read(str(refusal)) == refusal


@pytest.mark.parametrize("sentence", [*Reason, *Fault])
def test_a_fixed_sentence_is_a_refusal_by_its_field(sentence):
    found = Refusal.read(sentence.value)
    assert (found.cause, found.rule, found.line) == (sentence.value, FIELDS.get(sentence, ""), "")
    assert found.final is (sentence in LASTING)


def test_what_a_policy_refuses_is_final_and_a_full_disk_is_not():
    assert Refusal.read(Reason.BUDGET).final
    assert Refusal.read(Fault.STATE).final
    for passing in (Reason.DISK, Fault.DISK, Fault.OTHER, Reason.LEDGER):
        assert not Refusal.read(passing).final


@pytest.mark.parametrize("text", ["", "KeyError in task train: see the site's log", "the site replied ERROR"])
def test_a_failure_is_no_refusal(text):
    assert Refusal.read(text) is None
