"""Curves leave a site when its policy names them, with the policy's support; else they stay, and the scores do not."""

import json

import pytest
import torch

from grandrounds.privacy.gate.audit import AUDIT_NAME, Reason, Refused
from grandrounds.privacy.gate.gate import Gate, TaskFacts
from grandrounds.privacy.gate.inspection import Answer, Part
from grandrounds.privacy.gate.kinds import Expected
from grandrounds.privacy.gate.policy import ReleaseRule, ScalarRule, SitePolicy
from grandrounds.privacy.gate.treatments import ClipAndNoise, CurveSupport, Deny
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.privacy.ledger.lines import DatasetIdentity
from grandrounds.protocol.messages import METRICS, PROTOCOL, ReleaseKind
from grandrounds.protocol.spending import Mechanism, Unit

CURVES = ReleaseRule(ReleaseKind.CURVES, "curves_*", CurveSupport(20), ("counts",), outside_budget=True)
UPDATE = ReleaseRule(ReleaseKind.MODEL_UPDATE, "update", ClipAndNoise(1.0, 32.0))
TARGET = 0.25
"""One update of noise multiplier 16 has an epsilon of 0.204, two have 0.298."""
COUNTS = torch.full((3, 2, 50), -1)
COUNTS[0, :, 0], COUNTS[0, :, 25] = torch.tensor([12, 40]), torch.tensor([30, 10])
COUNTS[1] = COUNTS[0].flip(0)


def facts(task="test", number=4, patients=92):
    expected = Expected(number, "r-1", 2, {"w": ((2,), torch.float32)}, {"train": 60, "test": patients})
    return TaskFacts("job-1", task, "run", DatasetIdentity("skin", "a" * 64), expected)


def answer_with(counts=COUNTS, **meta):
    header = {"protocol": PROTOCOL, "round": 4, "run_id": "r-1", "samples": 0}
    curves = Part("APP_DEFINED", {"release": "curves", **meta}, {"counts": counts})
    return Answer(header, {METRICS: Part("METRICS", {}, {"common.accuracy": 0.75}), "curves_common": curves})


@pytest.fixture
def gate(tmp_path):
    Ledger.create(tmp_path, "site-1")

    def make(*rules, **targets):
        scalars = (ScalarRule("common.*", "test", 20),)
        return Gate(SitePolicy(Unit.SITE, 1e-5, (UPDATE, *rules), scalars, target_epsilon=targets), tmp_path, "site-1")

    return make


def written(gate):
    return json.loads((gate.folder / AUDIT_NAME).read_text().splitlines()[-1])


def test_curves_leave_by_a_rule_with_its_support_and_are_booked_outside_the_budget(gate):
    chosen = gate(CURVES, skin=TARGET)
    left = chosen.release(facts(), answer_with())
    counts = left.parts["curves_common"].data["counts"]
    # Neither twelve above nor ten below one half is enough alone.
    assert counts[:2, :, 0].tolist() == [[42, 50], [50, 42]]
    assert int((counts >= 0).sum()) == 4
    assert written(chosen)["releases"] == {
        "curves_common": {"treatment": "minimum_support", "mechanism": Mechanism.OUTSIDE_BUDGET.value}
    }


@pytest.mark.parametrize("rules", [(), (ReleaseRule(ReleaseKind.CURVES, "*", Deny()),)])
def test_without_a_rule_curves_stay_and_the_scores_leave(gate, rules):
    chosen = gate(*rules)
    left = chosen.release(facts(), answer_with())
    assert left.parts.keys() == {METRICS}
    assert left.parts[METRICS].data == {"common.accuracy": 0.75}
    assert (written(chosen)["releases"], written(chosen)["withheld"]) == ({}, ["curves_common"])
    assert Ledger(chosen.folder, "site-1").content().bookings == ()


def test_nothing_else_stays_behind_in_the_name_of_curves(gate):
    reply = answer_with()
    other = Answer(reply.header, {**reply.parts, "curves_of_images": reply.parts["curves_common"]})
    with pytest.raises(Refused, match="no rule allows curves 'curves_of_images'"):
        gate().release(facts(), other)


@pytest.mark.parametrize(
    ("reply", "patients", "reason"),
    [
        (answer_with(COUNTS[:2]), 92, Reason.VALUES),
        (answer_with(COUNTS.double()), 92, Reason.VALUES),
        (answer_with(), 49, Reason.VALUES),  # there are 49 patients, not 50
        (answer_with(COUNTS.clone().index_fill(2, torch.tensor([0]), -5)), 92, Reason.VALUES),
        (answer_with(treated="minimum_support"), 92, Reason.FORM),
    ],
)
def test_curves_that_cannot_be_so_do_not_leave(gate, reply, patients, reason):
    with pytest.raises(Refused) as caught:
        gate(CURVES).release(facts(patients=patients), reply)
    assert caught.value.reason is reason


def test_a_run_that_goes_on_after_its_curves_is_admitted_for_the_updates_that_it_sends(gate):
    chosen = gate(CURVES, skin=TARGET)
    update = Part("WEIGHT_DIFF", {"release": "model_update"}, {"w": torch.ones(2)})
    header = {"protocol": PROTOCOL, "round": 3, "run_id": "r-1", "samples": 1}
    chosen.release(facts("train", 3), Answer(header, {METRICS: Part("METRICS", {}, {}), "update": update}))
    chosen.release(facts(), answer_with())
    with pytest.raises(Refused, match="privacy budget spent"):
        chosen.admit(facts("train", 5))
