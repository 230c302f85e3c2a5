"""Counts leave if the policy names them and none is below its minimum; else they and scores of single classes stay."""

import pytest
import torch

from grandrounds.privacy.gate.gate import without_scores_of_classes, without_small_tables
from grandrounds.privacy.gate.inspection import Inspected, Part
from grandrounds.privacy.gate.kinds import KINDS, Expected
from grandrounds.privacy.gate.policy import ReleaseRule
from grandrounds.privacy.gate.treatments import CountSupport, SumSupport
from grandrounds.protocol.messages import ReleaseKind


def tensors(rows):
    counts = torch.tensor([rows], dtype=torch.int64)
    return {"images": counts, "patients": counts.clone()}


SMALL, LARGE = tensors([[90, 15, 24], [30, 20, 15], [12, 4, 0]]), tensors([[90, 15, 24], [30, 20, 15], [12, 10, 0]])


def test_a_table_with_a_small_count_stays_and_one_with_zeros_leaves():
    treatment = CountSupport(10)
    assert treatment.withholds(SMALL)
    assert not treatment.withholds(LARGE)
    assert {name: value.tolist() for name, value in treatment.apply(LARGE).items()} == {
        name: value.tolist() for name, value in LARGE.items()
    }
    assert not CountSupport(2).withholds(SMALL)
    with pytest.raises(ValueError, match="fewer than 10 patients"):
        treatment.apply(SMALL)


def test_other_tensors_are_refused():
    with pytest.raises(ValueError, match="counts must be images and patients"):
        CountSupport(5).apply({"images": torch.zeros((2, 3), dtype=torch.int64)})


def test_the_rule_fits_counts_alone():
    rule = ReleaseRule(ReleaseKind.COUNTS, "counts_*", CountSupport(10), ("images", "patients"))
    assert rule.treatment.name == "minimum_support"
    assert Part("APP_DEFINED", {"release": "counts"}, {}).meta["release"] == rule.kind


def answered(*releases, scalars):
    """An answer with tables of which all counts are of enough patients, and with numbers."""
    rule = ReleaseRule(ReleaseKind.COUNTS, "counts_*", CountSupport(10), ("images", "patients"))
    return Inspected({name: (rule, table) for name, table in releases}, scalars, {}, (), 1)


def test_the_whole_table_is_named_among_what_is_withheld():
    known = answered(("counts_common", LARGE), ("counts_own", SMALL), scalars={"loss": 0.5})
    left = without_small_tables(known, classes=3)
    assert (left.releases.keys(), left.scalars, left.withheld) == ({"counts_common"}, {"loss": 0.5}, ("counts_own",))


@pytest.mark.parametrize(("second", "leaves"), [({"images.val.1": 0.0}, True), ({}, False)])
def test_numbers_of_images_leave_for_all_classes_of_a_part_or_for_none(second, leaves):
    """One that is too small was withheld before; its total would give it away."""
    others = {"images.test.0": 20.0, "images.test.1": 30.0, "images.unlabelled": 40.0}
    left = without_small_tables(answered(scalars={"images.val.0": 12.0, **second, **others}), classes=2)
    assert left.scalars == {**others, **({"images.val.0": 12.0, **second} if leaves else {})}


@pytest.mark.parametrize(
    ("released", "tables", "left"),
    [
        (["counts_common"], ["counts_common"], {"validation", "common"}),
        (["counts_common"], ["counts_common", "counts_own"], {"validation", "common"}),
        (["counts_common"], ["counts_validation"], {"common", "own_last", "test", "aligned"}),
        (["counts_validation"], ["counts_validation"], {"validation", "common", "own_last", "test", "aligned"}),
        ([], ["counts_common"], {"validation"}),
        ([], [], {"validation", "common", "own_last", "test", "aligned"}),
    ],
)
def test_scores_of_single_classes_leave_only_beside_a_table_where_the_policy_lets_tables_out(released, tables, left):
    names = ("validation", "common", "own_last", "test", "aligned")
    scalars = {f"{name}.{score}": 0.5 for name in names for score in ("balanced_accuracy", "accuracy", "auc_macro")}
    found = without_scores_of_classes(answered(*((name, LARGE) for name in released), scalars=scalars), tables)
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
        ({"label_margins": [[12, 0, 0], [8, 8, 0]]}, ""),
        ({"label_margins": [[12, 0, 0], [8, 8, 9]]}, "a class of no patients has images"),
        ({"label_margins": [[13, 0, 0], [7, 8, 0]]}, "label_margins is of fewer than 8 patients"),
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
