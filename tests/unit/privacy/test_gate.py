"""The gate lets out what is named, treated and booked; whatever else is in an answer, nothing of it leaves."""

import errno
import json
import os
import re

import pytest
import torch

from grandrounds.federation.messages import METRICS, PROTOCOL, TREATED, ReleaseKind
from grandrounds.privacy.audit import AUDIT_NAME
from grandrounds.privacy.entries import DatasetIdentity
from grandrounds.privacy.gate import Gate, TaskFacts
from grandrounds.privacy.inspection import Answer, Expected, Part
from grandrounds.privacy.ledger import Ledger
from grandrounds.privacy.policy import ReleaseRule, ScalarRule, SitePolicy
from grandrounds.privacy.refusals import Reason, Refused
from grandrounds.privacy.spending import Mechanism, Spending
from grandrounds.privacy.treatment import AsItIs, ClipAndNoise, MinimumSupport, Quantise, RecordLevel
from grandrounds.privacy.units import Unit

UPDATE, STATISTICS, SOFT = ReleaseKind.MODEL_UPDATE, ReleaseKind.CLASS_STATISTICS, ReleaseKind.SOFT_LABELS
NOISY = ReleaseRule(UPDATE, "update", ClipAndNoise(1.0, 32.0))
RELATION = ReleaseRule(STATISTICS, "relation", MinimumSupport(5), ("matrix", "support"), outside_budget=True)
ROWS = ReleaseRule(SOFT, "rows", Quantise(10), ("rows",), outside_budget=True)
SCALARS = (ScalarRule("validation.*", "val", 5), ScalarRule("samples", "train", 50))
SKIN = DatasetIdentity("skin", "a" * 64)
TARGET = 0.25
"""Between the epsilon of one update of noise multiplier 16, 0.204, and that of two, 0.298."""


def facts(task="train", number=1, dataset=SKIN, run="run", **patients):
    template = {"w": ((2, 3), torch.float32), "b": ((2,), torch.float32)}
    expected = Expected(number, "r-1", 2, template, {"train": 60, "val": 9, "test": 9, **patients})
    return TaskFacts("job-1", task, run, dataset, expected)


def update(**tensors):
    return Part("WEIGHT_DIFF", {"release": "model_update"}, {"w": torch.ones(2, 3), "b": torch.ones(2), **tensors})


def answer(header=None, metrics=None, **parts):
    full = {"protocol": PROTOCOL, "round": 1, "run_id": "r-1", "samples": 44} | (header or {})
    scores = {"validation.f1": 0.5, "loss": 1.25} if metrics is None else metrics
    return Answer(full, {METRICS: Part("METRICS", {}, scores), **(parts or {"update": update()})})


@pytest.fixture
def gate(tmp_path):
    """Make a gate with a ledger."""
    Ledger.create(tmp_path, "site-1")

    def make(*rules, **changes):
        options = {"unit": Unit.SITE, "delta": 1e-5, "scalars": SCALARS, **changes}
        policy = SitePolicy(releases=rules or (NOISY, RELATION, ROWS), **options)
        return Gate(policy, tmp_path, "site-1")

    return make


def booked(gate):
    return Ledger(gate.folder, gate.site).content().bookings


def audited(gate):
    return [json.loads(line) for line in (gate.folder / AUDIT_NAME).read_text().splitlines()]


def refusal(gate, reply, task=None, trained=None):
    """The refusal; of an answer that is refused nothing is booked."""
    before = len(booked(gate))
    with pytest.raises(Refused) as caught:
        gate.release(task or facts(), reply, trained)
    assert len(booked(gate)) == before
    return caught.value


def test_an_update_leaves_clipped_noised_booked_and_written_down(gate):
    chosen = gate()
    left = chosen.release(facts(), answer())
    assert left.parts.keys() == {METRICS, "update"}
    assert left.parts["update"].meta == {"release": "model_update", TREATED: "clip_and_noise"}
    assert all(float((value - 1 / 8**0.5).abs().min()) > 0 for value in left.parts["update"].data.values())
    (booking,) = booked(chosen)
    assert (booking.purpose.release, booking.purpose.job, booking.purpose.round_number) == ("update", "job-1", 1)
    assert booking.spending == Spending(Mechanism.GAUSSIAN, Unit.SITE, 2.0, 32.0)
    (line,) = audited(chosen)
    assert line["outcome"] == "released"
    assert line["releases"] == {"update": {"treatment": "clip_and_noise", "mechanism": "gaussian"}}
    assert (line["scalars"], line["withheld"]) == (["validation.f1"], ["loss"])


def test_numbers_leave_only_when_named_and_with_enough_patients(gate):
    left = gate().release(facts(), answer())
    assert left.parts[METRICS].data == {"validation.f1": 0.5}
    assert left.header["samples"] == 44
    few = gate().release(facts(val=4, train=49), answer())
    assert few.parts[METRICS].data == {}
    assert few.header["samples"] == 1


def test_the_gate_itself_tells_what_is_spent_where_the_policy_says_so(gate):
    """A method's number of that name is not what leaves."""
    lie = answer(metrics={"privacy.epsilon": 0.001})
    chosen = gate(scalars=(ScalarRule("privacy.epsilon", "train", 1),))
    assert chosen.release(facts(), lie).parts[METRICS].data == {"privacy.epsilon": pytest.approx(0.2041, abs=1e-4)}
    assert chosen.release(facts(), lie).parts[METRICS].data == {"privacy.epsilon": pytest.approx(0.2978, abs=1e-4)}
    assert gate().release(facts(), lie).parts[METRICS].data == {}
    unlimited = gate(ReleaseRule(UPDATE, "update", AsItIs()), scalars=(ScalarRule("privacy.*", "train", 1),))
    assert unlimited.release(facts(), lie).parts[METRICS].data == {}


def test_class_statistics_and_soft_labels_leave_by_their_own_rules_outside_the_budget(gate):
    chosen = gate(target_epsilon={"*": TARGET})
    relation = {"matrix": torch.tensor([[0.9, 0.1], [0.2, 0.8]]), "support": torch.tensor([4, 7])}
    parts = {
        "relation": Part("APP_DEFINED", {"release": "class_statistics"}, relation),
        "rows": Part("APP_DEFINED", {"release": "soft_labels"}, {"rows": torch.tensor([[0.92, 0.08]])}),
    }
    left = chosen.release(facts(), answer(**parts))
    assert left.parts["relation"].data["support"].tolist() == [-1, 7]
    torch.testing.assert_close(left.parts["rows"].data["rows"], torch.tensor([[0.9, 0.1]]))
    assert {booking.spending.mechanism for booking in booked(chosen)} == {Mechanism.OUTSIDE_BUDGET}
    assert booked(chosen)[-1].epsilon == 0
    chosen.release(facts(), answer())  # and they leave the budget for others as it was
    with pytest.raises(Refused, match="privacy budget spent"):
        chosen.release(facts(), answer())


@pytest.mark.parametrize(
    ("reply", "reason", "detail"),
    [
        (answer({"note": "x"}), Reason.FORM, "header must have"),
        (answer({"round": 2}), Reason.FORM, "another task"),
        (answer({"run_id": "r-2"}), Reason.FORM, "another task"),
        (answer({"protocol": 9}), Reason.FORM, "another task"),
        (answer({"samples": -1}), Reason.VALUES, "samples is -1"),
        (answer({"samples": [1, 2]}), Reason.VALUES, "samples is"),
        (answer(metrics={"validation.f1": float("nan")}), Reason.VALUES, "no finite number"),
        (answer(metrics={"validation.f1": "0.5"}), Reason.VALUES, "but a str"),
        (answer(metrics={"validation.f1": torch.tensor(0.5)}), Reason.VALUES, "but a Tensor"),
        (answer(metrics={"validation.\n": 0.5}), Reason.FORM, "a metric has the name"),
        (answer(update=update(), extra=update()), Reason.DENIED, "no rule lets model_update 'extra' out"),
        (answer(update=Part("WEIGHT_DIFF", {"release": "x"}, {})), Reason.FORM, "a release of kind 'x'"),
        (answer(update=Part("WEIGHT_DIFF", {}, {})), Reason.FORM, r"properties \[\]"),
        (answer(update=Part("APP_DEFINED", {"release": "model_update"}, {})), Reason.FORM, "comes as APP_DEFINED"),
        (answer(update=Part("WEIGHTS", {"release": "model_update"}, {})), Reason.FORM, "comes as WEIGHTS"),
        (answer(update=update(extra=torch.ones(1))), Reason.VALUES, "in the model from the server None"),
        (answer(update=update(b=torch.ones(3))), Reason.VALUES, "of shape"),
        (answer(update=update(b=torch.ones(2).double())), Reason.VALUES, "float64"),
        (answer(update=update(b=torch.tensor([1.0, float("inf")]))), Reason.VALUES, "NaN or infinite"),
        (answer(update=update(b=torch.ones(2).to_sparse())), Reason.FORM, "sparse"),
        (answer(update=update(b=torch.ones(2).bool())), Reason.FORM, "torch.bool"),
        (answer(update=update(b=torch.ones(2).cfloat())), Reason.FORM, "torch.complex64"),
        (answer(update=update(b=[1.0, 2.0])), Reason.FORM, "is no tensor, but a list"),
        (answer(update=Part("WEIGHT_DIFF", {"release": "model_update"}, [torch.ones(2)])), Reason.FORM, "got list"),
        (answer(update=Part("WEIGHT_DIFF", {"release": "model_update"}, {})), Reason.FORM, "got dict"),
        (answer(**{"up\tdate": update()}), Reason.FORM, "a part has the name"),
        (
            answer(rows=Part("APP_DEFINED", {"release": "soft_labels"}, {"images": torch.ones(1, 2)})),
            Reason.DENIED,
            r"no rule lets rows\['images'\] out",
        ),
        (
            answer(rows=Part("APP_DEFINED", {"release": "soft_labels"}, {"rows": torch.ones(1, 3)})),
            Reason.VALUES,
            "there are 2 classes",
        ),
    ],
)
def test_what_is_not_known_or_not_named_ends_the_answer(gate, reply, reason, detail):
    refused = refusal(gate(), reply)
    assert refused.reason is reason
    assert re.search(detail, refused.detail), refused.detail


def test_a_subclass_of_tensor_and_what_hides_behind_it_does_not_leave(gate):
    class Loaded(torch.Tensor):
        pass

    assert refusal(gate(), answer(update=update(b=torch.ones(2).as_subclass(Loaded)))).reason is Reason.FORM


def test_what_cannot_be_treated_does_not_leave_though_it_was_booked(gate):
    chosen = gate()
    rows = Part("APP_DEFINED", {"release": "soft_labels"}, {"rows": torch.ones(1, 2)})
    with pytest.raises(Refused, match="no distribution"):
        chosen.release(facts(), answer(rows=rows))
    assert len(booked(chosen)) == 1


def test_the_budget_ends_it_before_training_and_at_the_door(gate):
    chosen = gate(target_epsilon={"skin": TARGET})
    chosen.admit(facts())
    chosen.release(facts(), answer())
    with pytest.raises(Refused, match=r"privacy budget spent: .*would have spent epsilon 0\.2978.*the target is 0\.25"):
        chosen.admit(facts(number=2))
    chosen.admit(facts("validate"))  # scores cost nothing
    assert refusal(chosen, answer()).reason is Reason.BUDGET
    with pytest.raises(Refused, match="budget"):
        chosen.admit(facts(run="another-run"))


def test_two_releases_of_one_answer_are_paid_for_together(gate):
    rules = NOISY, ReleaseRule(ReleaseKind.DISCRIMINATOR, "critic", ClipAndNoise(1.0, 32.0), ("w",))
    critic = Part("APP_DEFINED", {"release": "discriminator"}, {"w": torch.ones(4)})
    reply = answer(update=update(), critic=critic)
    assert refusal(gate(*rules, target_epsilon={"skin": TARGET}), reply).reason is Reason.BUDGET
    generous = gate(*rules, target_epsilon={"skin": 0.4})
    generous.release(facts(), reply)
    with pytest.raises(Refused, match="budget"):  # one more update would fit, the two that the run sends do not
        generous.admit(facts(number=2))


def test_another_data_set_has_a_budget_of_its_own_and_another_name_has_none(gate):
    chosen = gate(target_epsilon={"*": TARGET})
    chosen.release(facts(), answer())
    chosen.admit(facts(dataset=DatasetIdentity("ct", "b" * 64)))
    for wrong in (DatasetIdentity("skin", "b" * 64), DatasetIdentity("other", SKIN.fingerprint)):
        with pytest.raises(Refused) as caught:
            chosen.admit(facts(dataset=wrong))
        assert caught.value.reason is Reason.LEDGER


def test_tasks_that_the_policy_does_not_name_are_refused(gate):
    with pytest.raises(Refused, match="does not allow this task"):
        gate(tasks=("validate",)).admit(facts("train"))
    with pytest.raises(Refused, match="does not allow this task"):
        gate().admit(facts("tell_me_more"))


def test_without_a_ledger_or_with_another_sites_nothing_leaves(tmp_path):
    chosen = Gate(SitePolicy(Unit.SITE, 1e-5, (NOISY,)), tmp_path / "none", "site-1")
    for act in (lambda: chosen.admit(facts()), lambda: chosen.release(facts(), answer())):
        with pytest.raises(Refused, match="ledger cannot be used"):
            act()
    Ledger.create(tmp_path / "none", "site-2")
    with pytest.raises(Refused, match="ledger of 'site-2'"):
        chosen.release(facts(), answer())


def test_a_full_disk_lets_nothing_out(gate, monkeypatch):
    chosen = gate()
    write = os.pwrite

    def full(descriptor, data, offset):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert refusal(chosen, answer()).reason is Reason.LEDGER
    monkeypatch.setattr(os, "pwrite", write)
    (chosen.folder / AUDIT_NAME).mkdir()  # the trail cannot be written, the ledger can
    with pytest.raises(Refused) as caught:
        chosen.release(facts(), answer())
    assert caught.value.reason is Reason.AUDIT


def dp_sgd(sigma=0.55, rate=0.05, steps=100):
    return Spending(Mechanism.DP_SGD, Unit.RECORD, 0.5, sigma, rate, steps)


def test_a_protected_training_leaves_as_it_is_at_its_own_cost(gate):
    chosen = gate(ReleaseRule(UPDATE, "update", RecordLevel(1.0)), unit=Unit.RECORD, target_epsilon={"skin": 3.0})
    assert refusal(chosen, answer()).reason is Reason.DENIED
    assert refusal(chosen, answer(), trained=dp_sgd(sigma=0.4)).reason is Reason.DENIED
    chosen.admit(facts())
    chosen.admit_training(facts(), dp_sgd())
    left = chosen.release(facts(), answer(), dp_sgd())
    assert torch.equal(left.parts["update"].data["w"], torch.ones(2, 3))
    assert booked(chosen)[0].spending == dp_sgd()


@pytest.mark.parametrize(
    ("training", "reason"), [(dp_sgd(sigma=0.4), Reason.DENIED), (dp_sgd(rate=0.5, steps=500), Reason.BUDGET)]
)
def test_a_training_that_has_too_little_noise_or_costs_too_much_is_refused_before_it_starts(gate, training, reason):
    rule = ReleaseRule(UPDATE, "update", RecordLevel(1.0))
    chosen = gate(rule, unit=Unit.RECORD, target_epsilon={"skin": 3.0})
    with pytest.raises(Refused) as caught:
        chosen.admit_training(facts(), training)
    assert caught.value.reason is reason
    gate(unit=Unit.RECORD, target_epsilon={"skin": 3.0}).admit_training(facts(), training)  # noise comes from the gate


def test_encrypted_rows_leave_when_they_are_declared_and_nothing_else_does_under_their_name(gate):
    sealed = ReleaseKind.ENCRYPTED_ROWS
    chosen = gate(ReleaseRule(sealed, "rows", AsItIs(), ("rows",), outside_budget=True), target_epsilon={"*": TARGET})
    rows = torch.tensor([7, 0, 255], dtype=torch.uint8)
    part = Part("APP_DEFINED", {"release": "encrypted_rows"}, {"rows": rows})
    left = chosen.release(facts(), answer(rows=part))
    assert torch.equal(left.parts["rows"].data["rows"], rows)
    assert booked(chosen)[0].spending.mechanism is Mechanism.OUTSIDE_BUDGET
    other = Part("APP_DEFINED", {"release": "encrypted_rows"}, {"images": rows})
    assert refusal(chosen, answer(rows=other)).reason is Reason.DENIED
    assert refusal(gate(ROWS), answer(rows=part)).reason is Reason.DENIED


def test_what_has_no_guarantee_is_booked_as_such(gate):
    chosen = gate(ReleaseRule(UPDATE, "update", AsItIs()))
    chosen.release(facts(), answer())
    assert booked(chosen)[0].spending.mechanism is Mechanism.NO_GUARANTEE
    assert booked(chosen)[0].epsilon == float("inf")
