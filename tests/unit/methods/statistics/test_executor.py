"""Statistics of a site, counted by hand, without values of too few patients."""

import math

import numpy as np

from grandrounds.methods.statistics.executor import class_counts, intensity_shares, size_counts

PATIENTS = ["p", "p", "q", "r", "s", "s"]
LABELS = np.array([0, 0, 0, 1, 1, -1])


def test_images_are_counted_and_patients_decide():
    assert class_counts(LABELS, PATIENTS, 3, min_count=2) == {0: 3, 1: 2, 2: 0}
    assert class_counts(LABELS, PATIENTS, 3, min_count=1) == {0: 3, 1: 2, 2: 0}
    assert class_counts(LABELS, PATIENTS, 3, min_count=3) == {}


def test_a_class_of_many_images_of_one_patient_is_withheld():
    assert class_counts(np.zeros(50, np.int64), ["p"] * 50, 1, min_count=2) == {}


def test_shares_of_intensities():
    # Two channels of 1x2 pixels: the first has 0 and 255 at p, 0 and 0 at q; the second is 200 throughout.
    images = np.array([[[[0, 200], [255, 200]]], [[[0, 200], [0, 200]]]], np.uint8)
    shares = intensity_shares(images, np.array([0, 1]), ["p", "q"], bins=4, min_count=1)
    np.testing.assert_allclose(shares, [[0.75, np.nan, np.nan, 0.25], [np.nan, np.nan, np.nan, 1.0]])


def test_a_bin_that_one_patient_fills_is_withheld_and_leaves_no_gap():
    images = np.array([[[[0], [255]]], [[[0], [0]]]], np.uint8)
    shares = intensity_shares(images, np.array([0, 1]), ["p", "q"], bins=2, min_count=2)
    assert shares[0, 0] == 1.0, "the share of the hidden bin must not be what is missing from one"
    assert math.isnan(shares[0, 1])


def test_only_the_rows_asked_for_count():
    images = np.array([[[[0]]], [[[255]]]], np.uint8)
    np.testing.assert_allclose(intensity_shares(images, np.array([1]), ["p", "q"], 2, 1), [[np.nan, 1.0]])


def test_sizes_are_those_of_the_shorter_side():
    shapes = [(600, 450, 3, 40), (63, 5000, 3, 7), (64, 64, 1, 8), (4096, 4096, 1, 3)]
    assert size_counts(shapes, min_count=4) == {0: 7, 64: 8, 256: 40}
