"""The gate lets out what is named, treated and booked."""

import errno
import os
from dataclasses import replace

import pytest
import torch
from gate_answers import NOISY, SKIN, TARGET, UPDATE, answer, audited, booked, facts, refusal
from gate_answers import update as update_part

from grandrounds.privacy.accounting import gaussian_epsilon
from grandrounds.privacy.gate.audit import AUDIT_NAME, Reason, Refused
from grandrounds.privacy.gate.gate import Gate
from grandrounds.privacy.gate.inspection import Part
from grandrounds.privacy.gate.policy import ReleaseRule, ScalarRule, SitePolicy, Terms
from grandrounds.privacy.gate.treatments import ClipAndNoise, RecordLevel, Unmodified
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.privacy.ledger.lines import DatasetIdentity
from grandrounds.protocol.messages import METRICS, TREATED, ReleaseKind
from grandrounds.protocol.spending import Mechanism, Spending, Unit


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
    assert (line["scalars"], line["withheld"]) == (["samples", "validation.f1"], ["loss"])


def test_numbers_leave_only_when_named_and_with_enough_patients(gate):
    left = gate().release(facts(), answer())
    assert left.parts[METRICS].data == {"validation.f1": 0.5, "samples": 40.0}
    assert left.header["samples"] == 40
    enough = gate().release(facts(val=5, train=50), answer())
    scores = {"validation.f1": 0.5, "samples": 40.0}
    assert (enough.parts[METRICS].data, enough.header["samples"]) == (scores, 40)
    few = gate().release(facts(val=4, train=49), answer())
    assert few.parts[METRICS].data == {}
    assert few.header["samples"] == 1


def test_the_gate_reports_the_spending_where_the_policy_allows_it(gate):
    """A method's number of that name is not what leaves."""
    lie = answer(metrics={"privacy.epsilon": 0.001})
    chosen = gate(scalars=(ScalarRule("privacy.epsilon", "train", 1),))
    assert chosen.release(facts(), lie).parts[METRICS].data == {"privacy.epsilon": 0.21}
    assert chosen.release(facts(), lie).parts[METRICS].data == {"privacy.epsilon": 0.3}
    assert gate().release(facts(), lie).parts[METRICS].data == {"samples": 40.0}
    unlimited = gate(ReleaseRule(UPDATE, "update", Unmodified()), scalars=(ScalarRule("privacy.*", "train", 1),))
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


def test_what_is_no_distribution_is_refused_before_it_is_booked(gate):
    rows = Part("APP_DEFINED", {"release": "soft_labels"}, {"rows": torch.ones(1, 2)})
    assert "not a distribution" in refusal(gate(), answer(rows=rows)).detail


def test_noise_outside_the_range_of_a_dtype_blocks_the_release(gate):
    task, half = facts(), torch.ones(2, 3, dtype=torch.float16)
    task = replace(task, expected=replace(task.expected, template={"w": ((2, 3), half.dtype)}))
    loud = gate(ReleaseRule(UPDATE, "update", ClipAndNoise(1.0, 1e8)))
    with pytest.raises(Refused, match=r"exceeds the range of torch\.float16 with its noise"):
        loud.release(task, answer(update=Part("WEIGHT_DIFF", {"release": "model_update"}, {"w": half})))


def test_the_budget_ends_it_before_training_and_at_the_door(gate):
    chosen = gate(target_epsilon={"skin": TARGET})
    chosen.admit(facts())
    chosen.release(facts(), answer())
    with pytest.raises(Refused, match=r"privacy budget spent: .*epsilon 0\.2978 would be spent.*the target is 0\.25"):
        chosen.admit(facts(number=2))
    chosen.admit(facts("validate"))  # scores cost nothing
    assert refusal(chosen, answer()).reason is Reason.BUDGET
    with pytest.raises(Refused, match="budget"):
        chosen.admit(facts(run="another-run"))


def test_two_releases_of_one_answer_are_paid_for_together(gate):
    rules = NOISY, ReleaseRule(ReleaseKind.DISCRIMINATOR, "critic", ClipAndNoise(1.0, 32.0), ("w",))
    critic = Part("APP_DEFINED", {"release": "discriminator"}, {"w": torch.ones(4)})
    reply = answer(update=update_part(), critic=critic)
    assert refusal(gate(*rules, target_epsilon={"skin": TARGET}), reply).reason is Reason.BUDGET
    generous = gate(*rules, target_epsilon={"skin": 0.4})
    generous.release(facts(), reply)
    with pytest.raises(Refused, match="budget"):  # one more update would fit, the two that the run sends do not
        generous.admit(facts(number=2))


def test_before_training_the_releases_of_the_last_round_are_counted_and_not_those_of_all(gate):
    critic = Part("APP_DEFINED", {"release": "discriminator"}, {"w": torch.ones(4)})
    rules = NOISY, ReleaseRule(ReleaseKind.DISCRIMINATOR, "critic", ClipAndNoise(1.0, 32.0), ("w",))
    three, four, five = (gaussian_epsilon(16.0, 1e-5, count) for count in (3, 4, 5))
    chosen = gate(*rules, target_epsilon={"skin": (four + five) / 2})
    chosen.release(facts(), answer(update=update_part(), critic=critic))
    chosen.release(facts(number=2), answer({"round": 2}))
    assert chosen.admit(facts(number=3)) is None, "one update more, and no discriminator"
    with pytest.raises(Refused, match="budget"):
        gate(*rules, target_epsilon={"skin": (three + four) / 2}).admit(facts(number=3))


CT = DatasetIdentity("ct", "b" * 64)


@pytest.mark.parametrize("unit", [Unit.SITE, Unit.PRESENCE])
def test_a_budget_of_the_whole_site_is_one_for_all_its_data_sets(gate, unit):
    noise = 32.0 if unit is Unit.SITE else 16.0
    chosen = gate(
        ReleaseRule(UPDATE, "update", ClipAndNoise(1.0, noise, unit=unit)), unit=unit, target_epsilon={"*": TARGET}
    )
    chosen.release(facts(), answer())
    with pytest.raises(Refused) as caught:
        chosen.admit(facts(dataset=CT))
    assert caught.value.reason is Reason.BUDGET
    with pytest.raises(Refused) as caught:
        chosen.release(facts(dataset=CT), answer())
    assert caught.value.reason is Reason.BUDGET


def test_another_data_set_has_its_own_budget_of_a_record_and_a_changed_identity_is_refused(gate):
    rule = ReleaseRule(UPDATE, "update", ClipAndNoise(1.0, 32.0, unit=Unit.RECORD))
    chosen = gate(rule, unit=Unit.RECORD, target_epsilon={"*": TARGET})
    chosen.release(facts(), answer())
    chosen.admit(facts(dataset=CT))
    for wrong in (DatasetIdentity("skin", "b" * 64), DatasetIdentity("other", SKIN.fingerprint)):
        with pytest.raises(Refused) as caught:
            chosen.admit(facts(dataset=wrong))
        assert caught.value.reason is Reason.VERSION


def test_tasks_that_the_policy_does_not_name_are_refused(gate):
    with pytest.raises(Refused, match="does not allow this task"):
        gate(tasks=("validate",)).admit(facts("train"))
    with pytest.raises(Refused, match="does not allow this task"):
        gate().admit(facts("tell_me_more"))


def test_images_larger_than_the_policy_allows_are_refused_before_any_is_read(gate):
    gate(image_size=224).admit(replace(facts("train"), terms=Terms(image_size=224)))
    with pytest.raises(Refused, match=r"larger than the site's privacy policy allows: 225 pixels.* 224"):
        gate(image_size=224).admit(replace(facts("train"), terms=Terms(image_size=225)))


def test_without_a_ledger_or_with_another_sites_nothing_leaves(tmp_path):
    chosen = Gate(SitePolicy(Unit.SITE, 1e-5, (NOISY,)), tmp_path / "none", "site-1")
    for act in (lambda: chosen.admit(facts()), lambda: chosen.release(facts(), answer())):
        with pytest.raises(Refused, match="ledger cannot be used"):
            act()
    Ledger.create(tmp_path / "none", "site-2")
    with pytest.raises(Refused, match="ledger of 'site-2'"):
        chosen.release(facts(), answer())


def test_with_a_full_disk_no_release_leaves(gate, monkeypatch):
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


def test_an_update_of_protected_training_leaves_unmodified_at_its_own_cost(gate):
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


def test_a_release_without_a_guarantee_is_booked_as_such(gate):
    chosen = gate(ReleaseRule(UPDATE, "update", Unmodified()))
    chosen.release(facts(), answer())
    assert booked(chosen)[0].spending.mechanism is Mechanism.NO_GUARANTEE
    assert booked(chosen)[0].epsilon == float("inf")


def test_a_job_gets_so_many_answers_with_scores_and_no_more(gate):
    chosen = gate(scored_answers=2)
    left = [chosen.release(facts(), answer()).parts[METRICS].data for _ in range(3)]
    assert left == [{"validation.f1": 0.5, "samples": 40.0}] * 2 + [{"samples": 40.0}]
    assert audited(chosen)[-1]["withheld"] == ["loss", "validation.f1"]
