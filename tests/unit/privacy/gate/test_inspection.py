"""Whatever is in an answer that is not known and not named, nothing of the answer leaves."""

import re
from collections.abc import Mapping

import pytest
import torch
from gate_answers import RELATION, ROWS, SOFT, UPDATE, answer, audited, booked, facts, refusal, update

from grandrounds.privacy.gate.audit import Reason
from grandrounds.privacy.gate.inspection import MAX_NUMBERS, Answer, Part
from grandrounds.privacy.gate.policy import ReleaseRule
from grandrounds.privacy.gate.treatments import Unmodified
from grandrounds.protocol.messages import METRICS, ReleaseKind


@pytest.mark.parametrize(
    ("reply", "reason", "detail"),
    [
        (answer({"note": "x"}), Reason.FORM, "header must have"),
        (answer({"round": 2}), Reason.FORM, "another task"),
        (answer({"run_id": "r-2"}), Reason.FORM, "another task"),
        (answer({"protocol": 9}), Reason.FORM, "another task"),
        (answer({"samples": -1}), Reason.VALUES, "samples is -1"),
        (answer({"samples": [1, 2]}), Reason.VALUES, "samples is"),
        (answer(metrics={"validation.f1": "0.5"}), Reason.VALUES, "is a str, not a finite"),
        (answer(metrics={"validation.f1": torch.tensor(0.5)}), Reason.VALUES, "is a Tensor, not a finite"),
        (answer(metrics={"validation.\n": 0.5}), Reason.FORM, "a metric has the name"),
        (answer(update=Part("WEIGHT_DIFF", {"release": "x"}, {})), Reason.FORM, "a release of kind 'x'"),
        (answer(update=Part("WEIGHT_DIFF", {}, {})), Reason.FORM, r"properties \[\]"),
        (answer(update=Part("APP_DEFINED", {"release": "model_update"}, {})), Reason.FORM, "comes as APP_DEFINED"),
        (answer(update=Part("WEIGHTS", {"release": "model_update"}, {})), Reason.FORM, "comes as WEIGHTS"),
        (answer(update=update(extra=torch.ones(1))), Reason.VALUES, "the model from the server has no such entry"),
        (answer(update=update(b=torch.ones(3))), Reason.VALUES, "of shape"),
        (answer(update=update(b=torch.ones(2).double())), Reason.VALUES, "float64"),
        (answer(update=update(b=torch.ones(2).to_sparse())), Reason.FORM, "sparse"),
        (answer(update=update(b=torch.ones(2).bool())), Reason.FORM, "torch.bool"),
        (answer(update=update(b=torch.ones(2).cfloat())), Reason.FORM, "torch.complex64"),
        (answer(update=update(b=[1.0, 2.0])), Reason.FORM, "is not a tensor, but a list"),
        (answer(update=Part("WEIGHT_DIFF", {"release": "model_update"}, [torch.ones(2)])), Reason.FORM, "got list"),
        (answer(update=Part("WEIGHT_DIFF", {"release": "model_update"}, {})), Reason.FORM, "got dict"),
        (answer(**{"up\tdate": update()}), Reason.FORM, "a part has the name"),
        (
            answer(rows=Part("APP_DEFINED", {"release": "soft_labels"}, {"rows": torch.ones(1, 3)})),
            Reason.VALUES,
            r"soft_labels .*expected floating point or uint8 of shape \(public images, 2\)",
        ),
    ],
)
def test_what_is_not_known_or_not_named_ends_the_answer(gate, reply, reason, detail):
    refused = refusal(gate(), reply)
    assert refused.reason is reason
    assert re.search(detail, refused.detail), refused.detail


@pytest.mark.parametrize(
    ("reply", "detail"),
    [
        (answer(update=update(), extra=update()), "no rule allows model_update 'extra'"),
        (
            answer(rows=Part("APP_DEFINED", {"release": "soft_labels"}, {"images": torch.ones(1, 2)})),
            "no rule allows rows['images']",
        ),
    ],
)
def test_a_part_that_no_rule_allows_is_refused_but_with_noise_as_a_training_that_fails(gate, reply, detail):
    """A failed training has no such part, so a refusal would tell, for nothing, that this one has not failed."""
    plain = gate(ReleaseRule(UPDATE, "update", Unmodified()), RELATION, ROWS)
    refused = refusal(plain, reply)
    assert (refused.reason, refused.detail) == (Reason.DENIED, detail)
    noisy = gate()
    before = len(booked(noisy))
    left = noisy.release(facts(), reply)
    assert left.parts.keys() == noisy.release_failure(facts(), "another failure").parts.keys() == {"update", "metrics"}
    assert len(booked(noisy)) == before + 2
    assert [line["in_place_of"] for line in audited(noisy)][-2:] == [detail, "another failure"]


@pytest.mark.parametrize(
    ("reply", "detail"),
    [
        (
            answer(update=Part("WEIGHT_DIFF", {"release": "model_update"}, {"w": torch.ones(2, 3)})),
            "the update lacks b",
        ),
        (Answer(answer().header, {METRICS: Part("METRICS", {}, {})}), "the training has no update"),
    ],
)
def test_the_form_of_an_update_with_noise_says_nothing(gate, reply, detail):
    """Which entries it has would have no noise; an answer without one would cost nothing."""
    noisy = gate()
    before = len(booked(noisy))
    left = noisy.release(facts(), reply)
    assert list(left.parts["update"].data) == ["b", "w"]
    assert len(booked(noisy)) == before + 1
    assert audited(noisy)[-1]["in_place_of"] == detail


def test_the_order_of_entries_says_nothing(gate):
    swapped = {"b": torch.ones(2), "w": torch.ones(2, 3)}
    for entries in (swapped, dict(reversed(swapped.items()))):
        left = gate().release(facts(), answer(update=Part("WEIGHT_DIFF", {"release": "model_update"}, entries)))
        assert list(left.parts["update"].data) == ["b", "w"]


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 1.1e12, 10**400, -(10**400)])
def test_a_number_that_is_too_large_is_a_result_of_the_images_and_no_refusal_tells_it(gate, value):
    """A model of the server's can make a loss overflow for one image."""
    reply = answer(metrics={"validation.loss": value})
    assert gate().release(facts("validate"), reply).parts[METRICS].data == {}
    left = gate().release(facts(), reply)
    assert left.parts.keys() == {"update", "metrics"}
    assert left.parts["update"].data.keys() == {"w", "b"}
    assert audited(gate())[-1]["in_place_of"] == "metric 'validation.loss' is not a finite number of at most 1e+12"


class Text(str):
    """A text that can carry anything beside its letters."""


@pytest.mark.parametrize(
    "header",
    [
        {"protocol": True},
        {"protocol": torch.tensor(2)},
        {"round": True},
        {"round": 1.0},
        {"run_id": Text("r-1")},
    ],
)
def test_a_header_that_only_equals_the_tasks_does_not_leave(gate, header):
    assert refusal(gate(), answer(header)).reason is Reason.FORM


@pytest.mark.parametrize("value", [True, 1j, None])
def test_what_is_no_number_does_not_leave(gate, value):
    assert refusal(gate(), answer(metrics={"validation.f1": value})).reason is Reason.VALUES


def test_metrics_are_too_few_for_an_image(gate):
    pixels = {f"validation.{number}": 0.5 for number in range(MAX_NUMBERS + 1)}
    assert "at most" in refusal(gate(), answer(metrics=pixels)).detail
    pixels.popitem()
    assert (
        len(gate().release(facts(), answer(metrics=pixels)).parts[METRICS].data) == MAX_NUMBERS + 1
    )  # and the gate's own samples


@pytest.mark.parametrize("odd", [{Text("validation.f1"): 0.5}, {7: 0.5}, {"": 0.5}, {"x" * 129: 0.5}, {"é": 0.5}])
def test_a_metric_with_a_name_that_is_no_short_plain_text_does_not_leave(gate, odd):
    assert refusal(gate(), answer(metrics=odd)).reason is Reason.FORM


ODD_TENSORS = {
    "int16": lambda: torch.ones(2, dtype=torch.int16),
    "uint16": lambda: torch.ones(2, dtype=torch.uint16),
    "float8": lambda: torch.ones(2).to(torch.float8_e4m3fn),
    "complex128": lambda: torch.ones(2, dtype=torch.complex128),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "rows in sparse form": lambda: torch.ones(2, 2).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "without values": lambda: torch.ones(2, device="meta"),
}


@pytest.mark.parametrize("name", ODD_TENSORS)
@pytest.mark.filterwarnings("ignore:.*")
def test_an_invalid_tensor_does_not_leave_by_any_rule(gate, name):
    value = ODD_TENSORS[name]()
    assert refusal(gate(), answer(update=update(b=value))).reason is Reason.FORM
    generous = gate(ReleaseRule(ReleaseKind.DISCRIMINATOR, "critic", Unmodified(), ("*",)))
    part = Part("APP_DEFINED", {"release": "discriminator"}, {"w": value})
    assert refusal(generous, answer(critic=part)).reason is Reason.FORM


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8])
def test_an_update_of_another_type_than_the_models_does_not_leave(gate, dtype):
    assert refusal(gate(), answer(update=update(b=torch.ones(2, dtype=dtype)))).reason is Reason.VALUES


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (ReleaseKind.SOFT_LABELS, torch.full((1, 4, 2), 0.5)),
        (ReleaseKind.SOFT_LABELS, torch.full((2,), 0.5)),
        (ReleaseKind.SOFT_LABELS, torch.ones(1, 2, dtype=torch.int64)),
        (ReleaseKind.EMBEDDINGS, torch.ones(1, 8, 8)),
        (ReleaseKind.EMBEDDINGS, torch.ones(1, 8, dtype=torch.uint8)),
        (ReleaseKind.DISCRIMINATOR, torch.ones(8, dtype=torch.uint8)),
    ],
)
def test_a_tensor_without_the_form_of_its_kind_does_not_leave_even_unmodified(gate, kind, value):
    chosen = gate(ReleaseRule(kind, "part", Unmodified(), ("x",)))
    reply = answer(part=Part("APP_DEFINED", {"release": kind.value}, {"x": value}))
    assert refusal(chosen, reply).reason is Reason.VALUES


@pytest.mark.parametrize(
    "tensors",
    [
        {"matrix": torch.full((5, 2), 0.5), "support": torch.tensor([9, 9])},
        {"matrix": torch.full((2, 2), 0.5), "support": torch.tensor([9, 9, 9])},
        {"matrix": torch.full((2, 2), 0.5), "support": torch.tensor([61, 9])},  # the site has 60 patients
    ],
)
def test_class_statistics_are_of_the_problems_classes_and_the_sites_patients(gate, tensors):
    part = Part("APP_DEFINED", {"release": "class_statistics"}, tensors)
    assert refusal(gate(), answer(relation=part)).reason is Reason.VALUES


def test_a_rule_that_names_entries_of_an_update_lets_out_none_that_the_model_has_not(gate):
    chosen = gate(ReleaseRule(UPDATE, "update", Unmodified(), ("w", "x")))
    assert refusal(chosen, answer(update=Part("WEIGHT_DIFF", {"release": "model_update"}, {"x": torch.ones(9)})))
    assert refusal(chosen, answer()).reason is Reason.DENIED  # b is in the model and not named
    only = Part("WEIGHT_DIFF", {"release": "model_update"}, {"w": torch.ones(2, 3)})
    assert chosen.release(facts(), answer(update=only)).parts["update"].data.keys() == {"w"}


def test_a_rule_without_entries_lets_out_no_tensor_but_those_of_an_update(gate):
    chosen = gate(ReleaseRule(SOFT, "rows", Unmodified()))
    rows = Part("APP_DEFINED", {"release": "soft_labels"}, {"w": torch.full((2, 2), 0.5)})
    assert refusal(chosen, answer(rows=rows)).reason is Reason.DENIED


class Turncoat(Mapping):
    """Returns one value at first and another when it is read again."""

    def __init__(self, *values):
        self.values_left = list(values)

    def __getitem__(self, key):
        return self.values_left.pop(0) if len(self.values_left) > 1 else self.values_left[0]

    def __iter__(self):
        return iter(["b"])

    def __len__(self):
        return 1


def test_the_inspected_values_are_those_that_leave(gate):
    chosen = gate(ReleaseRule(UPDATE, "update", Unmodified()))
    part = Part("WEIGHT_DIFF", {"release": "model_update"}, Turncoat(torch.ones(2), torch.ones(99)))
    left = chosen.release(facts(), answer(update=part))
    assert torch.equal(left.parts["update"].data["b"], torch.ones(2))


def test_a_subclass_of_tensor_and_what_hides_behind_it_does_not_leave(gate):
    class Loaded(torch.Tensor):
        pass

    assert refusal(gate(), answer(update=update(b=torch.ones(2).as_subclass(Loaded)))).reason is Reason.FORM
