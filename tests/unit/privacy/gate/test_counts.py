"""Counts leave a site when its policy names them, with the policy's minimum; else they stay, and the scores do not."""

from itertools import product

import numpy as np
import pytest
import torch

from grandrounds.evaluation.bootstrap import cases_from_confusion
from grandrounds.evaluation.confusion import confusion_scores
from grandrounds.evaluation.counts import site_counts
from grandrounds.evaluation.metrics import OF_CLASSES
from grandrounds.privacy.gate.count_treatments import CountSupport, PooledSupport, SumSupport
from grandrounds.privacy.gate.gate import without_scores_of_hidden
from grandrounds.privacy.gate.inspection import Inspected, Part
from grandrounds.privacy.gate.kinds import KINDS, Expected
from grandrounds.privacy.gate.policy import ReleaseRule
from grandrounds.protocol.messages import ReleaseKind


def tensors(rows):
    counts = torch.tensor([rows], dtype=torch.int64)
    return {"images": counts, "patients": counts.clone()}


def test_counts_below_the_policys_minimum_are_hidden_with_those_that_would_give_them_away():
    sent = tensors([[90, 15, 24], [30, 20, 15], [12, 4, 0]])
    shown = CountSupport(10).apply(sent)
    assert shown["images"].tolist() == [[[90, 15, 24], [-1, -1, 15], [-1, -1, 0]]]
    assert torch.equal(shown["patients"] == -1, shown["images"] == -1)
    assert CountSupport(2).apply(sent)["images"].tolist() == sent["images"].tolist()


def test_other_tensors_are_refused():
    with pytest.raises(ValueError, match="counts must be images and patients"):
        CountSupport(5).apply({"images": torch.zeros((2, 3), dtype=torch.int64)})


def test_the_rule_fits_counts_alone():
    rule = ReleaseRule(ReleaseKind.COUNTS, "counts_*", CountSupport(10), ("images", "patients"))
    assert rule.treatment.name == "minimum_support"
    assert Part("APP_DEFINED", {"release": "counts"}, {}).meta["release"] == rule.kind


def tables_with_two_hidden_classes(count=40):
    """Confusion matrices of which the policy's minimum hides two classes, with the counts that leave."""
    generator = np.random.default_rng(7)
    while count:
        sizes = np.array([generator.integers(1, 10), generator.integers(12, 30), *generator.integers(30, 60, 2)])
        matrix = np.stack(
            [
                generator.multinomial(size, generator.dirichlet(np.eye(4)[row] * 4 + 0.4))
                for row, size in enumerate(sizes)
            ]
        )
        shown = site_counts([cases_from_confusion(matrix)], 10)
        if shown.hidden[0].tolist() == [True, True, False, False] and (shown.images[0, :, 2] >= 0).all():
            count -= 1
            yield matrix, shown.images[0]


def candidates(matrix, shown, balanced):
    """All correct and missed images of the first class that agree with what leaves: counts, n, accuracy, and a score."""
    true, hidden = matrix.sum(axis=1), shown[:, 0] < 0
    right = int(np.trace(matrix))
    correct, missed = right - shown[~hidden, 0].sum(), matrix.sum() - right - shown[~hidden, 1].sum()
    sensitivities = np.diag(matrix) / true
    found = set()
    for one, two in product(range(correct + 1), range(missed + 1)):
        sizes = one + two, correct - one + missed - two
        if min(sizes) == 0 or not 1 <= sizes[0] < 10:
            continue
        guess = (one / sizes[0] + (correct - one) / sizes[1] + sensitivities[~hidden].sum()) / 4
        if balanced is None or abs(guess - balanced) < 1e-6:
            found.add((one, two))
    return found


def test_what_leaves_beside_a_table_no_longer_determines_its_hidden_cells():
    """With the exact balanced accuracy the cells of a class of few patients were found; the gate keeps it now."""
    unique = []
    for matrix, shown in tables_with_two_hidden_classes():
        exact = {name: float(value) for name, value in confusion_scores(matrix).items()}
        unique.append(len(candidates(matrix, shown, exact["balanced_accuracy"])) == 1)
        released = through_the_gate(matrix, exact)
        assert {"n", "accuracy"} <= released.keys()
        assert not OF_CLASSES & released.keys()
        assert len(candidates(matrix, shown, released.get("balanced_accuracy"))) > 1
    assert np.mean(unique) > 0.25, "else there was nothing to protect"


def test_an_exact_score_leaves_beside_a_table_that_hides_nothing():
    matrix = np.array([[40, 20], [15, 30]])
    exact = {name: float(value) for name, value in confusion_scores(matrix).items()}
    assert through_the_gate(matrix, exact)["balanced_accuracy"] == exact["balanced_accuracy"]


def through_the_gate(matrix, exact):
    """The numbers that the gate lets out beside the counts of a model's test, by name of the score."""
    counts = site_counts([cases_from_confusion(matrix)])
    tensors = {"images": torch.from_numpy(counts.images), "patients": torch.from_numpy(counts.patients)}
    scalars = {f"common.{name}": value for name, value in {**exact, "n": float(matrix.sum())}.items()}
    rule = ReleaseRule(ReleaseKind.COUNTS, "counts_*", CountSupport(10), ("images", "patients"))
    known = Inspected({"counts_common": (rule, tensors)}, scalars, {}, (), 1)
    left = without_scores_of_hidden(known, {"counts_common": CountSupport(10).apply(tensors)}, ["counts_common"])
    assert left.scalars.keys() | set(left.withheld) == scalars.keys()
    return {name.removeprefix("common."): value for name, value in left.scalars.items()}


@pytest.mark.parametrize(
    ("treated", "tables", "left"),
    [
        ({"counts_common": 9}, ["counts_common"], {"validation"}),
        ({"counts_common": 20, "counts_own": 9}, ["counts_common", "counts_own"], {"validation"}),
        ({"counts_common": 20}, ["counts_common"], {"validation", "common"}),
        ({"counts_validation": 9}, ["counts_validation"], {"common", "own_last", "test", "aligned"}),
        ({}, ["counts_common"], {"validation"}),
        ({}, ["counts_validation"], {"common", "own_last", "test", "aligned"}),
        ({}, [], {"validation", "common", "own_last", "test", "aligned"}),
        ({"pooled_common": 0}, [], {"validation"}),
    ],
)
def test_no_models_scores_of_single_classes_leave_beside_a_hidden_class_of_the_same_images(treated, tables, left):
    names = ("validation", "common", "own_last", "test", "aligned")
    scalars = {f"{name}.{score}": 0.5 for name in names for score in ("balanced_accuracy", "accuracy", "auc_macro")}
    counts = {
        name: PooledSupport(10).apply(
            tensors([[90, 15, 24], [30, 20, 15], [12, least, 11]]) if least else {"contribution": torch.zeros(4)}
        )
        for name, least in treated.items()
    }
    found = without_scores_of_hidden(Inspected({}, scalars, {}, (), 1), counts, tables)
    assert {name for name in names if f"{name}.balanced_accuracy" in found.scalars} == left
    assert len([name for name in found.scalars if "balanced" not in name]) == 10
    assert found.scalars.keys() | set(found.withheld) == scalars.keys()


@pytest.mark.parametrize(
    ("entries", "wrong"),
    [
        ({"class_counts": [30, 12, 0]}, ""),
        ({"targets": [[1.0, 2.0, 0.0]]}, ""),
        ({"class_counts": [30, 12, 1]}, "a class of no patients has images"),
        ({"targets": [[1.0, 2.0, 0.5]]}, "a class of no patients has images"),
    ],
)
def test_a_class_that_is_left_out_of_the_patients_is_left_out_of_the_sums(entries, wrong):
    tensors = {name: torch.tensor(value) for name, value in entries.items()}
    asked = {**tensors, "support": torch.tensor([20, 8, 0])}
    if wrong:
        with pytest.raises(ValueError, match=wrong):
            SumSupport(8).apply(asked)
    else:
        assert SumSupport(8).apply(asked).keys() == asked.keys()


def test_counts_of_sums_are_of_the_training_images():
    expected = Expected(1, "run", 3, {}, {"train": 60}, images=90)
    mismatch = KINDS[ReleaseKind.SUFFICIENT_STATISTICS].mismatch
    for name, counts, fits in (
        ("class_counts", [90, 0, 0], True),
        ("class_counts", [91, 0, 0], False),
        ("class_counts", [3, -1, 0], False),
        ("support", [60, 0, 0], True),
        ("support", [61, 0, 0], False),
        ("support", [8, -1, 0], False),
    ):
        assert (mismatch(name, torch.tensor(counts), expected) == "") == fits, (name, counts)
