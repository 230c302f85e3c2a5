"""No hidden count comes back from all that a data set has released: totals, accuracies, other jobs and rounds."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gate_answers import SKIN, answer, facts

from grandrounds.privacy.gate.count_treatments import CountSupport, CurveSupport
from grandrounds.privacy.gate.gate import Gate
from grandrounds.privacy.gate.inspection import Part
from grandrounds.privacy.gate.policy import ReleaseRule, ScalarRule
from grandrounds.privacy.gate.treatment import Unmodified
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.privacy.mechanisms.auditor import HiddenTable, Released, Sum, Undecided, gives_away
from grandrounds.protocol.messages import METRICS, ReleaseKind
from grandrounds.protocol.tasks import task_named

RULES = (
    ReleaseRule(ReleaseKind.MODEL_UPDATE, "update", Unmodified()),
    ReleaseRule(ReleaseKind.COUNTS, "counts_*", CountSupport(10), ("images", "patients")),
)
NUMBERS = tuple(
    ScalarRule(name, part, 5)
    for name, part in (
        ("validation.*", "val"),
        ("samples", "train"),
        ("images.val.*", "val"),
        ("images.*", "train"),
        ("size.*", "train"),
    )
)


def asked(images, labelled, classes=4, val=60):
    """A task about ``images`` training images, of which some have a label."""
    made = facts(train=images, val=val, labelled=labelled)
    names = tuple("abcdefghij"[:classes])
    expected = replace(made.expected, classes=classes, names=names, images=images, labelled=labelled)
    return replace(made, expected=expected)


def table(*rows):
    tensor = torch.tensor([rows])
    return Part("APP_DEFINED", {"release": "counts"}, {"images": tensor, "patients": tensor.clone()})


def test_the_reviews_jobs_do_not_give_a_class_of_one_patient_away(gate):
    """``statistics`` hides it; ``fedavg`` told 240 samples: 240 - 162 - 53 - 24 = 1."""
    site = gate(*RULES, scalars=NUMBERS)
    counts = {"images.labelled.0": 162, "images.labelled.1": 53, "images.labelled.2": 24}
    first = site.release(asked(240, 240), answer({"samples": 0}, counts, update=answer().parts["update"]))
    assert counts.items() <= first.parts[METRICS].data.items()
    second = site.release(asked(240, 240), answer({"samples": 240}, {}))
    assert second.header["samples"] == 240, "from 235 to 244, so that the class may have 0 to 5 images"


def test_a_total_that_leaves_too_few_values_even_in_tens_stays(gate):
    """Of 244 images 243 are known; 240 says that there are at most 244, so that the class has 0 or 1."""
    site = gate(*RULES, scalars=NUMBERS)
    counts = {"images.labelled.0": 166, "images.labelled.1": 53, "images.labelled.2": 24}
    site.release(asked(244, 244), answer({"samples": 0}, counts, update=answer().parts["update"]))
    left = site.release(asked(244, 244), answer({"samples": 244}, {}))
    assert (left.header["samples"], left.parts[METRICS].data) == (1, {})


def test_sizes_leave_in_tens_and_not_where_their_sum_is_too_near(gate):
    site = gate(*RULES, scalars=NUMBERS)
    left = site.release(asked(400, 400, val=100), answer({"samples": 0}, {"size.256": 391, "size.512": 12}))
    assert {"size.256": 390.0, "size.512": 10.0}.items() <= left.parts[METRICS].data.items()


def test_a_number_of_images_beside_all_but_one_of_the_classes_stays(gate):
    site = gate(*RULES, scalars=NUMBERS)
    counts = {"images.val.0": 30, "images.val.1": 20, "images.val.2": 15}
    site.release(asked(99, 99), answer({"samples": 0}, counts, update=answer().parts["update"]))
    left = site.release(asked(99, 99), answer({"samples": 0}, {"validation.n": 66, "validation.f1": 0.5}))
    assert "validation.n" not in left.parts[METRICS].data
    assert left.parts[METRICS].data["validation.f1"] == 0.5


def test_what_has_left_before_is_no_new_question_and_a_table_that_shows_all_leaves(gate):
    site = gate(*RULES, scalars=NUMBERS)
    rows = ((14, 12, 11), (13, 11, 12), (0, 0, 0), (0, 0, 0))
    scores = {"validation.n": 50, "validation.accuracy": 27 / 50}
    for _ in range(3):
        left = site.release(asked(99, 99), answer({"samples": 0}, scores, counts_validation=table(*rows)))
        assert left.parts["counts_validation"].data["images"].tolist() == [list(map(list, rows))]
        assert left.parts[METRICS].data.keys() >= scores.keys()
    lines = site.ledger().content()
    assert len(lines.disclosed(SKIN)) == 1


HIDING = ((30, 0, 0), (-1, -1, 0), (-1, -1, 0), (14, 0, 28))
"""A table in which two classes are hidden: of b there are 25, of c 3."""


def hidden_after(site, first, second):
    """Whether a table leaves after another one of the same images."""
    assert "counts_validation" in site.release(first, answer({"samples": 0}, counts_validation=table(*HIDING))).parts
    other = table((30, 0, 0), (25, 0, 42), (-1, -1, 0), (-1, -1, 0))
    scores = {"validation.n": 72}
    return (
        "counts_validation" not in site.release(second, answer({"samples": 0}, scores, counts_validation=other)).parts
    )


@pytest.mark.parametrize("names", ["abcd", ["a ", "b ", "c ", "d "], [f"{name}\u200b" for name in "abcd"]])
def test_a_class_has_one_cell_in_whatever_spelling_it_is_asked_for(gate, names):
    first = asked(99, 99, val=72)
    second = replace(first, expected=replace(first.expected, names=tuple(names)))
    assert hidden_after(gate(*RULES, scalars=NUMBERS), first, second)


def findings(*present):
    """A table of findings: images without and with each."""
    rows = [[[72 - n, 0, 0] if n else [-1, -1, -1], [n, 0, 0] if n else [-1, -1, -1]] for n in present]
    tensor = torch.tensor(rows)
    return Part("APP_DEFINED", {"release": "counts"}, {"images": tensor, "patients": tensor.clone()})


@pytest.mark.parametrize("exclusive", [True, False])
def test_findings_of_which_each_image_has_one_add_up_like_classes(gate, exclusive):
    """30 + 25 + 14 of 72 leave 3 for the one that is hidden; where images have several, nothing adds up."""
    task = asked(99, 99, val=72)
    task = replace(task, expected=replace(task.expected, task=task_named("multi"), one_class=exclusive))
    left = gate(*RULES, scalars=NUMBERS).release(
        task, answer({"samples": 0}, counts_validation=findings(30, 25, 0, 14))
    )
    assert ("counts_validation" in left.parts) != exclusive


def test_curves_and_a_table_that_hides_a_class_of_the_same_images_do_not_both_leave(gate):
    rule = ReleaseRule(ReleaseKind.CURVES, "curves_*", CurveSupport(10), ("counts",))
    curves = torch.full((5, 2, 50), -1)
    curves[:2, :, 0] = 30
    part = Part("APP_DEFINED", {"release": "curves"}, {"counts": curves})
    expected = asked(99, 99).expected
    task = replace(facts("test"), expected=replace(expected, patients={**expected.patients, "test": 72}))
    for first, second in ((part, table(*HIDING)), (table(*HIDING), part)):
        site = gate(*RULES, rule, scalars=NUMBERS)
        site = Gate(site.policy, site.folder / str(first is part), "site-1")
        Ledger.create(site.folder, "site-1")
        parts = [{"curves_common": one} if one is part else {"counts_common": one} for one in (first, second)]
        left = [site.release(task, answer({"samples": 0}, **one)).parts.keys() - {METRICS} for one in parts]
        assert [len(found) for found in left] == [1, 0]


def enumerated(known, table, limit=40):
    """All values of each hidden number, by trying every one: an oracle for two hidden classes."""
    found = {name: set() for name in ("n0", "n1", "c0", "c1", "m0", "m1")}
    (total,) = known.sums
    rest = sum(known.cells.values())
    for n0 in range(limit):
        for n1 in range(limit):
            if not total.low <= rest + n0 + n1 <= total.high:
                continue
            for c0 in range(n0 + 1):
                c1 = table.correct - c0
                if 0 <= c1 <= n1:
                    for name, value in zip(found, (n0, n1, c0, c1, n0 - c0, n1 - c1), strict=True):
                        found[name].add(value)
    return found


@pytest.mark.parametrize("seed", range(30))
def test_the_auditor_agrees_with_trying_all_values(seed):
    draw = np.random.default_rng(seed)
    sizes = draw.integers(0, 6, 2)
    correct = int(sum(draw.integers(0, size + 1) for size in sizes))
    cells = ("val/a", "val/b", "val/c")
    total = 20 + int(sizes.sum())
    known = Released({"val/c": 20}, (Sum(cells, total, total),))
    hidden = HiddenTable(("val/a", "val/b"), correct)
    few = any(len(values) < 3 for values in enumerated(known, hidden).values())
    assert gives_away(Released(), known + Released(tables=(hidden,))) == few


def test_no_time_and_contradictions_withhold(gate):
    with pytest.raises(Undecided):
        gives_away(Released(), Released(sums=(Sum(("a", "b"), 9, 9),)), seconds=0.0)
    with pytest.raises(Undecided, match="contradicts itself"):
        gives_away(Released({"a": 10}), Released(sums=(Sum(("a", "b"), 9, 9),)))


def left_of(site, draw, classes=4, rounds=5):
    """How many of the tables, numbers of images and accuracies of a site's rounds leave, of how many."""
    sizes = draw.integers(4, 60, classes)
    names = {"counts_validation", "validation.n", "validation.accuracy"}
    left = dict.fromkeys(names, 0)
    for _ in range(rounds):
        correct = draw.binomial(sizes, 0.8)
        false = draw.multinomial((sizes - correct).sum(), np.ones(classes) / classes)
        rows = zip(correct.tolist(), (sizes - correct).tolist(), false.tolist(), strict=True)
        scores = {"validation.n": int(sizes.sum()), "validation.accuracy": float(correct.sum() / sizes.sum())}
        task = asked(int(sizes.sum()), int(sizes.sum()), classes, int(sizes.sum()))
        released = site.release(task, answer({"samples": 0}, scores, counts_validation=table(*rows)))
        for name in names & {*released.parts, *released.parts[METRICS].data}:
            left[name] += 1
    return left


@pytest.mark.fuzz
def test_what_the_audit_costs_in_scores(gate, tmp_path):
    """Of 20 sites with 4 classes of 4 to 59 patients, in 5 rounds each: docs/privacy.md states these numbers."""
    total = dict.fromkeys(("counts_validation", "validation.n", "validation.accuracy"), 0)
    for seed in range(20):
        site = gate(*RULES, scalars=NUMBERS)
        site.folder = tmp_path / str(seed)
        Ledger.create(site.folder, "site-1")
        for name, count in left_of(site, np.random.default_rng(seed)).items():
            total[name] += count
    assert total == {"counts_validation": 91, "validation.n": 100, "validation.accuracy": 91}


def test_ten_classes_take_less_than_five_seconds():
    import time

    cells = tuple(f"val/{number}" for number in range(10))
    known = Released(sums=(Sum(cells, 150, 150),))
    started = time.monotonic()
    assert not gives_away(Released(), known + Released(tables=(HiddenTable(cells, 80, 10, 70),)))
    assert time.monotonic() - started < 5
