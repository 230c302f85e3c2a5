"""Curves as whole numbers of one shape: what is told comes back, and what could not be counted so is refused."""

import numpy as np
import pytest

from grandrounds.evaluation.curves import JOINED, SiteCurve, SiteCurves, counts_of, counts_shape, curves_from

CLASSES = ("nevus", "melanoma")
HALVES = SiteCurve(np.array([0.0, 0.5, 1.0]), np.array([10.0, 30]), np.array([15.0, 0]))
TENTHS = SiteCurve(np.array([0.0, 0.1, 0.3, 1.0]), np.array([0.0, 12, 11]), np.array([40.0, 0, 10]))


def flat(value=JOINED):
    return np.full(counts_shape(2), value, np.int64)


def test_a_count_stands_at_its_first_range_and_a_class_that_is_not_told_has_none():
    counts = counts_of(SiteCurves({"nevus": HALVES}, TENTHS), CLASSES)
    expected = flat()
    expected[0, :, 0], expected[0, :, 25] = (10, 15), (30, 0)
    expected[2, :, 0], expected[2, :, 5], expected[2, :, 15] = (0, 40), (12, 0), (11, 10)
    assert counts.tolist() == expected.tolist()


def test_what_is_told_comes_back():
    told = SiteCurves({"melanoma": TENTHS}, HALVES)
    found = curves_from(counts_of(told, CLASSES), CLASSES, least=10)
    assert list(found.classes) == ["melanoma"]
    for came, sent in ((found.classes["melanoma"], TENTHS), (found.reliability, HALVES)):
        assert all(a.tolist() == pytest.approx(b.tolist()) for a, b in zip(came, sent, strict=True))
    assert curves_from(flat(), CLASSES, least=10) == ({}, None)


def changed(place, value):
    counts = counts_of(SiteCurves({"nevus": HALVES}, None), CLASSES)
    counts[place] = value
    return counts


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (flat()[:2], r"int64 of shape \(3, 2, 50\), got int64 \(2, 2, 50\)"),
        (flat().astype(np.float64), "got float64"),
        (changed((0, 0, 25), 9), "a count must be 0 or at least 10"),
        (changed((0, 0, 25), -7), "a count must be 0 or at least 10"),
        (changed((0, 0, 25), JOINED), "both sides of a curve must have the same ranges"),
        (changed((0, slice(None), 0), JOINED), "boundaries must rise from 0 to 1"),
        (changed((0, 1, 0), 0), "must have cases on both sides"),
    ],
)
def test_counts_that_no_site_should_send_are_refused(counts, message):
    with pytest.raises(ValueError, match=message):
        curves_from(counts, CLASSES, least=10)
