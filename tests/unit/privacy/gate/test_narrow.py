"""What a policy lets out is narrow: known names, ranges, enough images, distributions, few releases."""

import pytest
import torch
from gate_answers import SCALARS, STATISTICS, answer, facts, refusal, update

from grandrounds.privacy.gate.audit import Reason
from grandrounds.privacy.gate.inspection import MAX_RELEASES, Part
from grandrounds.privacy.gate.policy import ReleaseRule, ScalarRule
from grandrounds.privacy.gate.treatments import Logits, MinimumSupport, Unmodified
from grandrounds.protocol.messages import FACTS, METRICS, ReleaseKind

SOFT = ReleaseKind.SOFT_LABELS
PLAIN = ReleaseRule(SOFT, "rows", Unmodified(), ("rows",))
DIGEST = "0" * 64


def soft(rows):
    return {"rows": Part("APP_DEFINED", {"release": "soft_labels"}, {"rows": rows})}


@pytest.mark.parametrize(
    "rows",
    [
        torch.rand(3, 2) * 255,
        torch.full((4, 2), 1e38),
        torch.tensor([[0.5, 0.6]]),
        torch.tensor([[-0.1, 1.1]]),
        torch.tensor([[9, 9]], dtype=torch.uint8),
        torch.full((5, 2), 0.5),
        torch.zeros(0, 2),
    ],
    ids=["picture", "huge", "sum", "negative", "bytes", "more rows than public images", "no row"],
)
def test_soft_labels_are_distributions_of_the_public_images(gate, rows):
    assert refusal(gate(PLAIN), answer(**soft(rows))).reason is Reason.VALUES


def test_soft_labels_that_are_distributions_leave_in_every_format(gate):
    exact = torch.tensor([[0.7, 0.3], [0.25, 0.75]], dtype=torch.float64)
    for rows in (exact, exact.float(), exact.half(), (exact * 255).round().to(torch.uint8)):
        assert torch.equal(gate(PLAIN).release(facts(), answer(**soft(rows))).parts["rows"].data["rows"], rows)


def test_logits_need_a_rule_of_their_own(gate):
    logits = soft(torch.tensor([[3.0, -1.0]]))
    assert refusal(gate(PLAIN), answer(**logits)).reason is Reason.VALUES
    assert "rows" in gate(ReleaseRule(SOFT, "rows", Logits(), ("rows",))).release(facts(), answer(**logits)).parts


def test_an_answer_has_few_releases(gate):
    rule = ReleaseRule(STATISTICS, "*", MinimumSupport(5), ("matrix", "support"))
    matrix = {"matrix": torch.eye(2), "support": torch.tensor([9, 9])}
    parts = {
        f"Jane_Doe_{n}": Part("APP_DEFINED", {"release": "class_statistics"}, matrix) for n in range(MAX_RELEASES + 2)
    }
    assert refusal(gate(rule), answer(**parts)).reason is Reason.FORM


@pytest.mark.parametrize(
    ("name", "leaves"),
    [
        ("validation.balanced_accuracy", True),
        ("validation.n", True),
        ("validation.Jane_Doe", False),
        ("validation.balanced_accuracy.Jane", False),
        ("validation.1234567", False),
        ("validation.", False),
        ("validation.٣", False),
    ],
)
def test_the_rest_of_a_numbers_name_is_of_known_words(gate, name, leaves):
    if not name.isascii():
        assert refusal(gate(), answer(metrics={name: 0.5})).reason is Reason.FORM
        return
    left = gate().release(facts(), answer(metrics={name: 30.0})).parts[METRICS].data
    assert (name in left) == leaves


def test_numbers_are_of_single_precision_and_limited(gate):
    left = gate().release(facts(), answer(metrics={"validation.f1": 0.1})).parts[METRICS].data["validation.f1"]
    assert left == float(torch.tensor(0.1)) != 0.1
    assert gate().release(facts("validate"), answer(metrics={"validation.n": 9.6e270})).parts[METRICS].data == {}


@pytest.mark.parametrize(
    ("count", "minimum", "leaves"), [(0, 0, True), (1, 0, False), (9, 0, False), (10, 0, True), (19, 20, False)]
)
def test_a_count_of_few_images_does_not_leave_whatever_the_job_asks_for(gate, count, minimum, leaves):
    chosen = gate(
        ReleaseRule(ReleaseKind.MODEL_UPDATE, "update", Unmodified()),
        scalars=(*SCALARS, ScalarRule("images.*", "train", 5, minimum)),
    )
    left = (
        chosen.release(facts(), answer(metrics={"images.labelled.0": 0, "images.labelled.1": count}))
        .parts[METRICS]
        .data
    )
    assert left == ({"images.labelled.0": 0, "images.labelled.1": count} if leaves else {})


def test_facts_leave_with_a_registration_only_and_in_their_form(gate):
    chosen = gate(facts=("backbone", "public", "architecture"))
    texts = {"backbone": "resnet10", "public": DIGEST, "architecture": "Jane Doe, 4711"}
    told = answer(**{FACTS: Part("APP_DEFINED", {}, texts), "update": update()})
    assert FACTS not in chosen.release(facts(), told).parts
    joining = answer(**{FACTS: Part("APP_DEFINED", {}, texts)})
    left = chosen.release(facts("join"), joining)
    assert left.parts[FACTS].data == {"backbone": "resnet10", "public": DIGEST}
    for text in ("melanoma of patient 4711", "resnet18"):  # one that neither the job nor the site names
        free = answer(**{FACTS: Part("APP_DEFINED", {}, {"backbone": text})})
        assert FACTS not in chosen.release(facts("join"), free).parts
