"""A site's file of curves holds counts of several patients, and what is read is checked again."""

import json

import numpy as np
import pytest

from grandrounds.errors import DataError
from grandrounds.evaluation.cases import cases_of
from grandrounds.evaluation.curves import coarser_curves, curves_of, curves_together, read_curves, write_curves
from grandrounds.seeding import numpy_generator

CLASSES = ("nevus", "melanoma", "other")


def drawn(name, counts):
    """Predictions that are right in about 70 of 100 cases, two images a patient."""
    generator = numpy_generator("curve release", name)
    labels = np.repeat(np.arange(3), counts)
    probabilities = generator.dirichlet(np.ones(3), len(labels)) * 0.5
    told = np.where(generator.random(len(labels)) < 0.7, labels, (labels + 1) % 3)
    probabilities[np.arange(len(labels)), told] += 0.5
    return cases_of(labels, probabilities, [f"{number // 2}" for number in range(len(labels))])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "curves_common.json"
    write_curves(path, curves_of(drawn("a", (80, 60, 8)), CLASSES))
    return path


def test_what_is_written_is_read_again(file):
    found = read_curves(file, CLASSES)
    expected = curves_of(drawn("a", (80, 60, 8)), CLASSES)
    assert found.classes.keys() == expected.classes.keys() != set()
    for name, curve in expected.classes.items():
        assert all(np.array_equal(a, b) for a, b in zip(found.classes[name], curve, strict=True))
    assert found.reliability.positives.sum() == expected.reliability.positives.sum()


@pytest.mark.parametrize(
    ("patients", "told"),
    [
        ((40, 30, 4), {"nevus"}),  # with nevus and melanoma told, 74 - 40 - 30 would give the four away
        ((40, 30, 0), {"nevus", "melanoma"}),
        ((40, 30, 10), {"nevus", "melanoma", "other"}),
        ((60, 6, 7), {"nevus"}),  # thirteen others together
        ((60, 6, 3), set()),
    ],
)
def test_a_class_of_few_patients_cannot_be_had_by_subtraction(patients, told):
    cases = drawn("rest", [2 * count for count in patients])
    assert curves_of(cases, CLASSES).classes.keys() == told


def test_a_greater_least_number_merges_ranges_and_leaves_classes_out():
    once = curves_of(drawn("a", (80, 60, 60)), CLASSES)
    found = coarser_curves(once, 35)
    assert found.classes.keys() == {"nevus"}
    assert found.classes["nevus"].positives.sum() == once.classes["nevus"].positives.sum() == 40
    counts = np.concatenate([found.classes["nevus"].positives, found.classes["nevus"].negatives])
    assert ((counts == 0) | (counts >= 35)).all()


def test_the_file_tells_of_no_image_and_of_no_count_below_ten(file):
    content = json.loads(file.read_text())
    assert set(content) == {"least", "classes", "reliability"}
    for curve in [*content["classes"].values(), content["reliability"]]:
        assert all(count == 0 or count >= 10 for side in ("positives", "negatives") for count in curve[side])


def test_sites_together_have_the_classes_that_any_of_them_tells_of():
    sites = [curves_of(drawn("a", (80, 60, 0)), CLASSES), curves_of(drawn("b", (80, 0, 60)), CLASSES)]
    found = curves_together(sites, CLASSES)
    assert {name: curve.positives.sum() for name, curve in found.classes.items()} == pytest.approx(
        {"nevus": 80, "melanoma": 30, "other": 30}
    )
    assert curves_together([], CLASSES) == ({}, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: {**content, "least": 1000}, "a count must be 0 or at least 1000"),
        (lambda content: {**content, "classes": {"mole": content["reliability"]}}, "'mole' is no class of it"),
        (lambda content: {"least": 10}, "is no file of a site's curves"),
        (lambda content: [], "is no file of a site's curves"),
        (lambda content: edited(content, edges=[0.5, 1.0]), "must be a boundary more than counts"),
        (lambda content: edited(content, edges=[0.0, 0.5], positives=[10], negatives=[10]), "must rise from 0 to 1"),
        (
            lambda content: edited(content, edges=[0.0, 1.0], positives=[float("nan")], negatives=[10]),
            "a count must be",
        ),
        (
            lambda content: edited(content, edges=[0.0, 1.0], positives=[0], negatives=[10]),
            "must have cases on both sides",
        ),
    ],
)
def test_what_is_wrong_is_named(file, change, message):
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(DataError, match=message):
        read_curves(file, CLASSES)


def edited(content, **changes):
    return {**content, "reliability": {**content["reliability"], **changes}}


def test_a_file_that_was_cut_is_named(file):
    file.write_text(file.read_text()[:50])
    with pytest.raises(DataError, match=r"curves_common\.json is no file of a site's curves"):
        read_curves(file, CLASSES)
