"""Wrong labels follow their matrix, are drawn once for each site, spare the test images and are noted."""

import hashlib

import numpy as np
import pytest
from scipy import stats

from grandrounds.data.manifest import Record
from grandrounds.data.partition.label_noise import (
    DrawnLabel,
    LabelNoise,
    flip_labels,
    flip_records,
    noise_counts,
    write_drawn_labels,
)
from grandrounds.errors import DataError
from grandrounds.seeding import numpy_generator

CLASSES = ("basophil", "eosinophil", "lymphocyte", "monocyte")


def drawn(noise, images=50_000, classes=13, seed=1):
    labels = numpy_generator("labels").integers(0, classes, images)
    return labels, flip_labels(labels, classes, noise, numpy_generator(seed))


@pytest.mark.parametrize("kind", ["none", "symmetric", "pair"])
def test_without_a_rate_no_label_changes(kind):
    labels, noisy = drawn(LabelNoise(kind, 0.0), images=100)
    assert np.array_equal(labels, noisy)


@pytest.mark.parametrize("kind", ["symmetric", "pair"])
def test_a_fifth_of_the_labels_is_wrong_at_a_rate_of_a_fifth(kind):
    labels, noisy = drawn(LabelNoise(kind, 0.2))
    assert abs((labels != noisy).mean() - 0.2) < 0.006


def test_pair_errors_go_to_the_next_class_and_the_last_to_the_first():
    labels, noisy = drawn(LabelNoise("pair", 0.3))
    assert set(zip(labels[labels != noisy], noisy[labels != noisy], strict=True)) == {
        (i, (i + 1) % 13) for i in range(13)
    }


# The published transition matrices of four classes at a rate of 0.3: rows are clean classes.
MATRICES = {
    "symmetric": [[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.1, 0.1, 0.7, 0.1], [0.1, 0.1, 0.1, 0.7]],
    "pair": [[0.7, 0.3, 0, 0], [0, 0.7, 0.3, 0], [0, 0, 0.7, 0.3], [0.3, 0, 0, 0.7]],
}


@pytest.mark.parametrize("kind", ["symmetric", "pair"])
def test_errors_of_each_class_are_distributed_according_to_the_matrix(kind):
    labels, noisy = drawn(LabelNoise(kind, 0.3), classes=4)
    for clean, row in enumerate(np.array(MATRICES[kind])):
        seen = np.bincount(noisy[labels == clean], minlength=4)
        assert (seen[row == 0] == 0).all()
        assert stats.chisquare(seen[row > 0], seen.sum() * row[row > 0]).pvalue > 1e-4


@pytest.mark.parametrize(("rate", "elsewhere"), [(0.1, 0.00833), (0.2, 0.01667), (0.3, 0.025)])
def test_with_thirteen_classes_a_symmetric_error_is_rare_for_each_class(rate, elsewhere):
    labels, noisy = drawn(LabelNoise("symmetric", rate), images=400_000)
    assert (noisy[labels == 5] == 6).mean() == pytest.approx(elsewhere, abs=0.003)


def test_at_rate_one_symmetric_noise_never_keeps_a_label():
    labels, noisy = drawn(LabelNoise("symmetric", 1.0))
    assert (labels != noisy).all()
    assert noisy.min() == 0
    assert noisy.max() == 12


@pytest.mark.parametrize("kind", ["symmetric", "pair"])
def test_what_is_wrong_at_a_low_rate_is_wrong_alike_at_a_higher_one(kind):
    labels, some = drawn(LabelNoise(kind, 0.1), images=1000)
    _, more = drawn(LabelNoise(kind, 0.3), images=1000)
    assert np.array_equal(some[some != labels], more[some != labels])
    assert (more != labels).sum() > (some != labels).sum()


def test_only_the_eligible_part_can_be_wrong():
    labels, noisy = drawn(LabelNoise("pair", 1.0, eligible=0.2), images=1003)
    assert (labels != noisy).sum() == 201  # round(200.6)
    labels, noisy = drawn(LabelNoise("pair", 0.3, eligible=0.2))
    assert abs((labels != noisy).mean() - 0.06) < 0.004


def test_no_labels_have_no_noise():
    assert len(flip_labels(np.array([], dtype=np.int64), 4, LabelNoise("pair", 0.1), numpy_generator(1))) == 0


def site_records(count=400):
    splits = ("train", "train", "val", "test")
    labels = (*CLASSES, "")
    return [Record(f"{i}.png", labels[i % 5], splits[i % 4], f"p{i}", labelled=i % 7 != 0) for i in range(count)]


def test_training_and_validation_labels_are_flipped_and_test_and_unknown_ones_are_not():
    records = site_records()
    noisy, labels = flip_records(records, CLASSES, LabelNoise("pair", 1.0), 1, "site-1")
    following = dict(zip(CLASSES, (*CLASSES[1:], CLASSES[0]), strict=True))
    for before, after in zip(records, noisy, strict=True):
        touched = before.split != "test" and before.label
        assert after.label == (following[before.label] if touched else before.label)
        assert (after.image, after.split, after.patient, after.labelled) == (
            before.image, before.split, before.patient, before.labelled,
        )  # fmt: skip
    assert [label.image for label in labels] == [r.image for r in records if r.label and r.split != "test"]


def test_each_site_has_different_label_errors_that_are_reproducible():
    noise, records = LabelNoise("symmetric", 0.3), site_records()
    once, again, other_site, other_seed = (
        flip_records(records, CLASSES, noise, seed, site)[0]
        for seed, site in ((1, "site-1"), (1, "site-1"), (1, "site-2"), (2, "site-1"))
    )
    assert once == again
    assert once not in (other_site, other_seed)


def test_what_was_drawn_is_a_table_and_comes_with_its_hash(tmp_path):
    labels = [DrawnLabel("a,b.png", "basophil", "monocyte"), DrawnLabel("c.png", "monocyte", "monocyte")]
    digest = write_drawn_labels(labels, tmp_path / "labels.csv")
    written = (tmp_path / "labels.csv").read_bytes()
    assert written == b'image,clean,noisy\n"a,b.png",basophil,monocyte\nc.png,monocyte,monocyte\n'
    assert digest == hashlib.sha256(written).hexdigest()


def test_a_label_outside_the_vocabulary_is_refused():
    with pytest.raises(DataError, match=r"site-1: label of image 'a': 'monocytes' is not .*did you mean 'monocyte'"):
        flip_records([Record("a", "monocytes")], CLASSES, LabelNoise(), 1, "site-1")


def test_counts_have_clean_classes_in_rows():
    counts = noise_counts(["basophil"] * 3 + ["monocyte"], ["basophil", "monocyte", "monocyte", "basophil"], CLASSES)
    expected = np.zeros((4, 4), dtype=int)
    expected[0, 0], expected[0, 3], expected[3, 0] = 1, 2, 1
    assert np.array_equal(counts, expected)
    with pytest.raises(ValueError, match="shorter"):
        noise_counts(["basophil"], [], CLASSES)
