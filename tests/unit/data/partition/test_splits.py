"""Divisions keep groups whole, meet their counts and depend on the generator alone."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grandrounds.data.manifest import Record, require_grouped
from grandrounds.data.partition.groups import (
    divide_groups,
    divide_into_counts,
    majority,
    shares_to_counts,
    whole_groups,
)
from grandrounds.data.partition.splits import assign_splits, assign_stratified, stratified_train_val
from grandrounds.errors import DataError
from grandrounds.seeding import numpy_generator


def patients(*sizes, label="nevus"):
    return tuple(
        Record(f"{patient}-{image}", label, patient=f"p{patient}")
        for patient, size in enumerate(sizes)
        for image in range(size)
    )


def part_sizes(parts):
    return {name: len(records) for name, records in parts.items()}


def parts_of_patients(parts):
    return Counter(patient for records in parts.values() for patient in {record.patient for record in records})


def test_groups_join_through_patients_and_lesions():
    records = [
        Record("a", patient="p", lesion="x"),
        Record("b", lesion="y"),
        Record("c", lesion="x"),
        Record("d", patient="q", lesion="y"),
        Record("e"),
        Record("f", patient="q"),
        Record("x"),
    ]
    assert whole_groups(records) == [(0, 2), (1, 3, 5), (4,), (6,)]


def test_groups_join_through_a_record_that_comes_late():
    records = [Record("a", patient="p"), Record("b", lesion="x"), Record("c", patient="p", lesion="x")]
    assert whole_groups(records) == [(0, 1, 2)]


def test_a_tie_of_a_majority_is_decided_alphabetically():
    assert majority(["b", "a", "b", "a", "c"]) == "a"
    assert majority(["b", "a", "b"]) == "b"


@pytest.mark.parametrize(
    ("shares", "total", "least", "expected"),
    [
        ((2259, 3363, 3954, 439), 10, 1, [2, 3, 4, 1]),  # quotas 2.26, 3.36, 3.95, 0.44
        ((2259, 3363, 3954, 439), 10, 0, [2, 3, 4, 1]),  # .44 is the second largest remainder
        ((1, 1, 1), 2, 0, [1, 1, 0]),
        ((98, 1, 1), 4, 1, [2, 1, 1]),
        ((0.6, 0.0, 0.4), 5, 1, [3, 0, 2]),
    ],
)
def test_counts_follow_the_largest_remainders(shares, total, least, expected):
    assert shares_to_counts(shares, total, least) == expected


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=6), st.integers(6, 500), st.integers(0, 1))
def test_counts_sum_to_the_total_and_each_is_at_least_the_minimum(shares, total, least):
    counts = shares_to_counts(shares, total, least)
    assert sum(counts) == total
    assert min(counts) >= least


@pytest.mark.parametrize(
    ("shares", "total", "message"),
    [((1.0, -0.5), 3, "must not be negative"), ((0.0,), 3, "one must be positive"), ((1, 1, 1), 2, "2 cannot give 1")],
)
def test_shares_that_cannot_be_met_are_refused(shares, total, message):
    with pytest.raises(ValueError, match=message):
        shares_to_counts(shares, total, minimum=1)


@given(
    sizes=st.lists(st.integers(1, 9), min_size=3, max_size=40),
    shares=st.lists(st.integers(1, 10), min_size=2, max_size=3),
    seed=st.integers(0, 999),
)
@example(sizes=[3, 3, 3], shares=[1, 1, 8], seed=0)
def test_a_division_keeps_groups_whole_loses_nothing_and_stays_within_one_group_of_its_fractions(sizes, shares, seed):
    records = patients(*sizes)
    fractions = {f"part-{index}": share / sum(shares) for index, share in enumerate(shares)}
    parts = divide_groups(records, fractions, np.random.default_rng(seed))
    assert sorted(record.image for part in parts.values() for record in part) == sorted(r.image for r in records)
    assert set(parts_of_patients(parts).values()) == {1}
    # A part that wants less than a group gets one all the same, which the others lack.
    small = sum(fraction * len(records) < max(sizes) for fraction in fractions.values())
    for name, fraction in fractions.items():
        assert abs(len(parts[name]) - fraction * len(records)) <= max(sizes) * max(1, small) + 1


@pytest.mark.parametrize("seed", range(20))
def test_a_division_into_halves_is_as_even_as_an_exhaustive_search(seed):
    sizes = np.random.default_rng(seed).integers(1, 6, size=8)
    total = int(sizes.sum())
    chosen = (itertools.compress(sizes, picks) for picks in itertools.product([0, 1], repeat=8))
    best = min(abs(total - 2 * sum(half)) for half in chosen)
    halves = divide_groups(patients(*sizes), {"a": 0.5, "b": 0.5}, np.random.default_rng(seed))
    assert abs(len(halves["a"]) - len(halves["b"])) == best


def test_fractions_are_met_exactly_where_there_are_single_images():
    records = patients(*[3] * 20, *[1] * 40)
    parts = divide_groups(records, {"train": 0.6, "val": 0.15, "test": 0.25}, numpy_generator(0))
    assert part_sizes(parts) == {"train": 60, "val": 15, "test": 25}


@pytest.mark.parametrize("seed", range(10))
def test_patients_that_fit_nowhere_exceed_the_largest_part_as_little_as_possible(seed):
    records = patients(*[1] * 60, 40, 40, 40)
    wanted = {"a": 22, "b": 67, "c": 68, "d": 23}
    parts = divide_into_counts(records, wanted, numpy_generator(seed))
    # Two of 40 in c: 12 too many there, 12 missing elsewhere. One of 40 in d: 17 and 17.
    assert sum(abs(len(parts[name]) - count) for name, count in wanted.items()) == 24


def test_large_groups_do_not_all_go_to_the_largest_part():
    records = patients(*[4] * 100, *[1] * 400)
    share = [
        sum(count == 4 for count in Counter(r.patient for r in parts["small"]).values())
        for parts in (divide_groups(records, {"large": 0.8, "small": 0.2}, numpy_generator(seed)) for seed in range(30))
    ]
    # A fifth of the 100 large groups; the mean of 30 divisions has a standard error below 1.
    assert np.mean(share) == pytest.approx(20, abs=3)


def test_records_keep_their_order_and_the_same_generator_divides_in_the_same_way():
    records = patients(*[2] * 30)
    first = divide_groups(records, {"a": 0.5, "b": 0.5}, numpy_generator(1, "x"))
    assert first == divide_groups(records, {"a": 0.5, "b": 0.5}, numpy_generator(1, "x"))
    assert first != divide_groups(records, {"a": 0.5, "b": 0.5}, numpy_generator(2, "x"))
    position = {record: index for index, record in enumerate(records)}
    places = [position[record] for record in first["a"]]
    assert places == sorted(places)


def test_records_beyond_the_counts_are_left_out():
    parts = divide_into_counts(patients(*[1] * 50), {"a": 10, "b": 5, "c": 0}, numpy_generator(0))
    assert part_sizes(parts) == {"a": 10, "b": 5, "c": 0}


def test_fewer_groups_than_parts_go_to_the_larger_parts():
    parts = divide_into_counts(patients(5, 5), {"a": 1, "b": 5, "c": 4}, numpy_generator(0))
    assert part_sizes(parts) == {"a": 0, "b": 5, "c": 5}


def test_a_part_is_not_emptied_to_bring_another_closer_to_its_count():
    parts = divide_into_counts(patients(6, 4), {"a": 1, "b": 9}, numpy_generator(0))
    assert part_sizes(parts) == {"a": 4, "b": 6}


def test_impossible_divisions_are_refused():
    records = patients(1, 1)
    with pytest.raises(ValueError, match=r"cannot divide 2 records into \{'a': 3\}"):
        divide_into_counts(records, {"a": 3}, numpy_generator(0))
    with pytest.raises(ValueError, match=r"fractions must sum to 1, got 0\.9"):
        divide_groups(records, {"a": 0.5, "b": 0.4}, numpy_generator(0))
    with pytest.raises(ValueError, match=r"the fraction of b must be between 0 and 1, got -0\.5"):
        divide_groups(records, {"a": 1.5 - 0.5, "b": -0.5}, numpy_generator(0))


def test_the_default_splits_are_those_of_fedperl():
    # 4000 images: 500 labelled, 1500 unlabelled, 500 for validation, 1500 for testing.
    records = assign_splits(patients(*[2] * 50, *[1] * 300), numpy_generator(0), site="site-1")
    counts = Counter((record.split, record.labelled) for record in records)
    assert counts == {("train", True): 50, ("train", False): 150, ("val", True): 50, ("test", True): 150}


def test_splits_keep_the_order_and_all_else_of_the_records():
    before = tuple(Record(f"{i}", "nevus", patient=f"p{i // 3}", lesion=f"l{i}", source="s") for i in range(60))
    after = assign_splits(before, numpy_generator(0), site="site-1")
    assert [(r.image, r.label, r.patient, r.lesion, r.source) for r in after] == [
        (r.image, r.label, r.patient, r.lesion, r.source) for r in before
    ]
    places = {(record.patient, record.split, record.labelled) for record in after}
    assert len(places) == 20


@pytest.mark.parametrize("sizes", [(9, 1, 6, 2), (1, 1, 1, 1), (30, 1, 1, 1)])
@pytest.mark.parametrize("seed", range(5))
def test_as_many_groups_as_parts_fill_every_part(sizes, seed):
    records = assign_splits(patients(*sizes), numpy_generator(seed), site="site-1")
    assert len({(record.split, record.labelled) for record in records}) == 4


def test_groups_without_a_label_train_unlabelled():
    records = patients(*[1] * 40) + tuple(Record(f"u{i}") for i in range(8))
    after = assign_splits(records, numpy_generator(0), site="site-1", labelled=1.0)
    assert {(record.split, record.labelled) for record in after[40:]} == {("train", False)}
    assert Counter(record.split for record in after[:40]) == {"train": 20, "val": 5, "test": 15}
    assert all(record.labelled for record in after[:40])


def test_a_share_of_zero_needs_no_group():
    after = assign_splits(patients(1, 1), numpy_generator(0), site="s", validation=0.0, test=0.5, labelled=1.0)
    assert sorted(record.split for record in after) == ["test", "train"]


@pytest.mark.parametrize("records", [patients(1), patients(40), patients(1, 1, 1)])
def test_a_site_with_too_few_groups_is_named(records):
    with pytest.raises(DataError, match=r"site-9 has \d groups .* one for each of labelled, unlabelled, val, test"):
        assign_splits(records, numpy_generator(0), site="site-9")


def test_shares_that_leave_nothing_to_train_on_are_refused():
    with pytest.raises(ValueError, match=r"must leave something for training, got 0\.5 \+ 0\.5"):
        assign_splits(patients(1, 1, 1, 1), numpy_generator(0), site="s", validation=0.5, test=0.5)


def test_a_stratified_division_has_every_class_in_proportion_and_groups_whole():
    records = patients(*[2] * 100, label="nevus") + tuple(
        Record(f"m{i}", "melanoma", patient=f"m{i // 2}", labelled=False) for i in range(40)
    )
    divided = stratified_train_val(records, 0.8, numpy_generator(0))
    assert Counter((record.label, record.split) for record in divided) == {
        ("nevus", "train"): 160,
        ("nevus", "val"): 40,
        ("melanoma", "train"): 32,
        ("melanoma", "val"): 8,
    }
    assert [record.image for record in divided] == [record.image for record in records]
    assert all(record.labelled for record in divided)
    assert len({(record.patient, record.split) for record in divided}) == 120


def test_rare_classes_do_not_change_the_number_of_training_images():
    # 0.8 of 7 classes with 3 images each is 2.4 everywhere: rounded class by class it would be 14.
    records = tuple(Record(f"{i}", f"class-{i % 7}") for i in range(21))
    assert Counter(record.split for record in stratified_train_val(records, 0.8, numpy_generator(0)))["train"] == 17


def test_a_stratified_division_needs_images_for_both_parts():
    with pytest.raises(DataError, match="1 images cannot be divided between training and validation"):
        stratified_train_val(patients(1), 0.8, numpy_generator(0))
    with pytest.raises(DataError, match="0 images cannot be divided"):
        stratified_train_val((), 0.8, numpy_generator(0))


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


@settings(max_examples=25)
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


def test_too_few_patients_are_reported():
    with pytest.raises(DataError, match="site-1 has too few patients or lesions for a part val of 10%"):
        assign_stratified(two_views(2, 1), np.random.default_rng(0), site="site-1")


def test_refuses_shares_that_leave_nothing():
    with pytest.raises(ValueError, match="must leave something for training"):
        assign_stratified(two_views(9, 3), np.random.default_rng(0), site="a", validation=0.5, test=0.5)
