"""Splits have every class in its share, whole patients, and leave published test images where they are."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.data.manifest import Record, require_grouped
from grandrounds.data.partition.splits import assign_stratified
from grandrounds.errors import DataError


def two_views(patients, malignant):
    return [
        Record(f"{patient}-{view}", "malignant" if patient < malignant else "benign", patient=f"p{patient}")
        for patient in range(patients)
        for view in range(2)
    ]


def counts(records):
    return Counter((record.label, record.split) for record in records)


def test_seventy_ten_twenty_of_each_class():
    found = counts(assign_stratified(two_views(100, 10), np.random.default_rng(0), site="a"))
    # 10 patients with cancer, two images each: 14, 2 and 4 images; of the 90 others 126, 18 and 36.
    assert found == {
        ("malignant", "train"): 14,
        ("malignant", "val"): 2,
        ("malignant", "test"): 4,
        ("benign", "train"): 126,
        ("benign", "val"): 18,
        ("benign", "test"): 36,
    }


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), malignant=st.integers(10, 30))
def test_patients_stay_whole_and_no_split_is_without_cancer(seed, malignant):
    records = two_views(60, malignant)
    found = assign_stratified(records, np.random.default_rng(seed), site="a")
    require_grouped(found, "a")
    assert [record.image for record in found] == [record.image for record in records]
    assert all(counts(found)["malignant", split] for split in ("train", "val", "test"))


def test_a_patient_counts_as_of_the_rarest_class():
    # Every patient has three benign images and one other: strata by most images would be one stratum.
    records = [
        Record(f"{patient}-{view}", "malignant" if view == 0 and patient < 10 else "benign", patient=f"p{patient}")
        for patient in range(100)
        for view in range(4)
    ]
    found = assign_stratified(records, np.random.default_rng(0), site="a")
    assert [counts(found)["malignant", split] for split in ("train", "val", "test")] == [7, 1, 2]


def test_only_a_share_of_the_labels_is_for_training():
    found = assign_stratified(two_views(100, 10), np.random.default_rng(0), site="a", labelled=0.5)
    training = [record for record in found if record.split == "train"]
    assert sum(record.labelled for record in training) == pytest.approx(70, abs=2)  # whole patients
    assert all(record.labelled for record in found if record.split != "train")


def test_published_test_images_stay_and_the_shares_are_of_the_others():
    records = [replace(record, split="test") if record.patient == "p3" else record for record in two_views(40, 10)]
    found = assign_stratified(records, np.random.default_rng(0), site="a", validation=0.25, test=0.0)
    assert [record.patient for record in found if record.split == "test"] == ["p3", "p3"]
    assert sum(record.split == "val" for record in found) == pytest.approx(0.25 * 78, abs=2)


def test_too_few_patients_are_said():
    with pytest.raises(DataError, match="site-1 has too few patients or lesions for a part val of 10%"):
        assign_stratified(two_views(2, 1), np.random.default_rng(0), site="site-1")


def test_refuses_shares_that_leave_nothing():
    with pytest.raises(ValueError, match="must leave something for training"):
        assign_stratified(two_views(9, 3), np.random.default_rng(0), site="a", validation=0.5, test=0.5)
