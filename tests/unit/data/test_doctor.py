"""The doctor names what would spoil training at a site, and lets healthy data pass."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.doctor import examine, examine_location
from grandrounds.data.fitness import Finding, require_healthy
from grandrounds.data.images.cache import DecodedCache
from grandrounds.data.manifest import Record, write_manifest
from grandrounds.data.site import DatasetLocation, SiteData
from grandrounds.errors import DataError
from grandrounds.protocol.problem import Problem
from grandrounds.seeding import numpy_generator

CLASSES = ("nevus", "melanoma")


def healthy(**changes):
    """Four training, two validation and two test images of eight patients, both classes in each part."""
    data = SiteData(
        cache=DecodedCache(
            numpy_generator("doctor").integers(0, 256, (8, 4, 4, 3), dtype=np.uint8), shapes=((4, 4, 3, 8),)
        ),
        labels=np.array([0, 1, 0, 1, 0, 1, 0, 1]),
        labelled=np.ones(8, np.bool_),
        split=np.array(["train"] * 4 + ["val"] * 2 + ["test"] * 2),
        names=tuple(f"{row}.png" for row in range(8)),
        groups=tuple(f"p{row}" for row in range(8)),
        classes=CLASSES,
    )
    decoded = {name: changes.pop(name) for name in ("images", "quarantined", "rules", "shapes") if name in changes}
    return dataclasses.replace(data, cache=dataclasses.replace(data.cache, **decoded), **changes)


def messages(findings, level):
    return [finding.message for finding in findings if finding.level == level]


def only(findings, level):
    """The one message of this level; the site is named in every message."""
    assert all(finding.message.startswith("site-1: ") for finding in findings)
    (message,) = messages(findings, level)
    return message


def test_healthy_data_pass_every_check():
    findings = examine(healthy(), "site-1", needs_labels=True)
    assert {finding.level for finding in findings} == {"ok"}
    assert len({finding.check for finding in findings}) == 12
    require_healthy(findings)


def test_quarantined_images_are_listed_and_left_out():
    quarantined = tuple((row, f"{row}.png", f"{row}.png is broken") for row in (0, 1, 2, 3, 5))
    data = healthy(quarantined=quarantined)
    found = messages(examine(data, "site-1"), "warning")
    assert "5 of 8 images (62.50%) cannot be read" in found[0]
    assert found[0].endswith("0.png is broken; 1.png is broken; 2.png is broken and 2 more")


def test_a_label_outside_the_vocabulary_is_a_failure():
    data = healthy(labels=np.array([0, 2, 0, 1, 0, 1, 0, 1]))
    assert "1 labels are outside the vocabulary of 2 classes, first at 1.png" in only(
        examine(data, "site-1"), "failure"
    )


@pytest.mark.parametrize(("needs_labels", "level"), [(True, "failure"), (False, "warning")])
def test_an_empty_labelled_set_is_a_failure_where_labels_are_needed(needs_labels, level):
    findings = examine(healthy(labelled=np.zeros(8, np.bool_)), "site-1", needs_labels=needs_labels)
    message = only(findings, level)
    assert "empty labelled set" in message
    assert message.endswith("the column label") == needs_labels
    assert message.endswith("or let the site take part without labels") != needs_labels


def test_one_training_image_is_not_enough():
    split = np.array(["train"] + ["val"] * 4 + ["test"] * 3)
    assert "1 training images, expected at least 2" in only(examine(healthy(split=split), "site-1"), "failure")


def test_two_training_images_are_enough():
    split = np.array(["train"] * 2 + ["val"] * 4 + ["test"] * 2)
    assert messages(examine(healthy(split=split), "site-1"), "failure") == []


@pytest.mark.parametrize(("missing", "kept", "word"), [("val", "test", "validation"), ("test", "val", "test")])
def test_no_validation_or_test_images_is_a_warning(missing, kept, word):
    data = healthy()
    split = np.where(data.split == missing, kept, data.split)
    message = only(examine(healthy(split=split), "site-1"), "warning")
    assert message == f"site-1: no {word} images with a label; give some patients the split {missing}"


def test_evaluation_images_without_a_label_are_a_warning():
    data = healthy(labels=np.array([0, 1, 0, 1, 0, 1, 0, -1]))
    found = messages(examine(data, "site-1"), "warning")
    assert any("1 test images have no label and are not used" in message for message in found)


@pytest.mark.parametrize(
    ("labels", "word"),
    [
        ([0, 0, 0, 0, 0, 1, 0, 1], "labelled training"),
        ([0, 1, 0, 1, 0, 0, 0, 1], "validation"),
        ([0, 1, 0, 1, 0, 1, 0, 0], "test"),
    ],
)
def test_a_class_without_a_case_in_a_split_is_named(labels, word):
    message = only(examine(healthy(labels=np.array(labels)), "site-1"), "warning")
    assert f"no {word} image of melanoma" in message


def test_a_patient_in_two_splits_is_a_failure():
    groups = ("p0", "p1", "p2", "p3", "p4", "p5", "p6", "p1")
    message = only(examine(healthy(groups=groups), "site-1"), "failure")
    assert "1 patients or lesions are in two splits, first 'p1' in train and test" in message


def test_a_patient_with_several_images_in_one_split_is_fine():
    groups = ("p0", "p0", "p0", "p0", "p4", "p4", "p6", "p6")
    assert messages(examine(healthy(groups=groups), "site-1"), "failure") == []


def test_unknown_patients_are_a_warning():
    data = healthy(groups=healthy().names)
    assert "no patient or lesion is named" in only(examine(data, "site-1"), "warning")


def test_the_same_pixels_in_two_splits_are_a_failure():
    images = healthy().images.copy()
    images[7] = images[1]
    message = only(examine(healthy(images=images), "site-1"), "failure")
    assert "1 images are in two splits, first 1.png (train) and 7.png (test)" in message


def test_the_same_pixels_within_a_split_are_a_warning():
    images = healthy().images.copy()
    images[3] = images[1]
    message = only(examine(healthy(images=images), "site-1"), "warning")
    assert "1 images occur more than once in a split, first 1.png and 3.png" in message


def test_empty_images_are_a_warning_and_not_taken_for_the_same_image():
    images = healthy().images.copy()
    images[[0, 7]] = 9, 9, 8
    findings = examine(healthy(images=images), "site-1")
    assert messages(findings, "failure") == []
    assert "2 images have one colour only: 0.png, 7.png" in only(findings, "warning")


def test_images_that_are_almost_black_are_a_warning_that_says_what_to_state():
    images = healthy().images.copy()
    images[[1, 4]] //= 16
    findings = examine(healthy(images=images), "site-1")
    message = only(findings, "warning")
    assert "2 images use less than an eighth of their range" in message
    assert all(word in message for word in ("1.png, 4.png", '"bits": 12', "--bits 12", "grandrounds.json"))


def test_rules_of_decoding_are_counted():
    rules = (("orientation",), ("orientation", "depth"), (), (), (), (), (), ("depth",))
    (found,) = [one for one in examine(healthy(rules=rules), "site-1") if one.check == "decoding"]
    assert found.level == "ok"
    assert "of 8 images: 2 scaled from more or fewer bits to 8, 2 turned (EXIF)" in found.message


def test_quarantined_rows_are_neither_empty_nor_repeated():
    images = healthy().images.copy()
    images[[2, 3]] = 0
    quarantined = ((2, "2.png", "2.png is broken"), (3, "3.png", "3.png is broken"))
    message = only(examine(healthy(images=images, quarantined=quarantined), "site-1"), "warning")
    assert "cannot be read" in message


def test_grey_among_colour_images_is_a_warning_and_sizes_are_reported():
    findings = examine(healthy(shapes=((4, 4, 1, 3), (10, 20, 3, 5))), "site-1")
    assert "3 grey and 5 colour images" in only(findings, "warning")
    assert "site-1: 2 original sizes, 4x4 to 10x20 (height x width)" in messages(findings, "ok")


def test_an_unreadable_data_set_is_a_failure_not_an_error(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "skin.csv").write_text("image,label,split\na.png,nevus,train\n")
    location = DatasetLocation(tmp_path / "skin.csv", tmp_path / "images")
    message = only(examine_location(location, Problem("skin", CLASSES, 4), tmp_path / "cache", "site-1")[0], "failure")
    assert "column 'patient' is missing" in message
    (tmp_path / "skin.csv").write_text("image,label,split,patient\na.png,nevus,train,p1\n")
    message = only(examine_location(location, Problem("skin", CLASSES, 4), tmp_path / "cache", "site-1")[0], "failure")
    assert "1 of 1 images cannot be read" in message


def test_a_location_is_loaded_and_examined(tmp_path):
    (tmp_path / "images").mkdir()
    for row, pixels in enumerate(healthy().images[:2]):
        Image.fromarray(pixels).save(tmp_path / "images" / f"{row}.png")
    write_manifest([Record(f"{row}.png", CLASSES[row], "train", f"p{row}") for row in range(2)], tmp_path / "m.csv")
    location = DatasetLocation(tmp_path / "m.csv", tmp_path / "images")
    findings, _ = examine_location(
        location, Problem("skin", CLASSES, 4), tmp_path / "cache", "site-1", needs_labels=True
    )
    assert messages(findings, "failure") == []
    assert "site-1: 2 training images, 2 with a label that may be used" in messages(findings, "ok")
    assert len(messages(findings, "warning")) == 2


def test_the_first_failure_is_raised_with_the_number_of_others():
    bad = [Finding("warning", "a", "w"), Finding("failure", "b", "first"), Finding("failure", "c", "second")]
    with pytest.raises(DataError, match=r"^first \(and 1 more\)$"):
        require_healthy(bad)
    with pytest.raises(DataError, match=r"^first$"):
        require_healthy(bad[:2])
    require_healthy(bad[:1])


def test_the_scores_that_a_policy_will_withhold_are_named_before_a_run_with_the_largest_class_and_the_minimum():
    data = healthy(
        labels=np.array([0] * 26 + [1] * 14),
        labelled=np.ones(40, np.bool_),
        split=np.array(["test"] * 40),
        names=tuple(f"{row}.png" for row in range(40)),
        groups=tuple([f"a{row}" for row in range(26)] + [f"b{row // 2}" for row in range(14)]),
        images=numpy_generator("doctor").integers(0, 256, (40, 4, 4, 3), dtype=np.uint8),
    )
    assert data.patients_by_class("test") == {"nevus": 26, "melanoma": 7}
    (told,) = [one for one in examine(data, "site-1") if one.check == "released scores"]
    assert told.level == "ok"
    for said in ("10 patients behind a count", "melanoma 7", "the largest class is nevus with 26"):
        assert said in told.message
    strict = dataclasses.replace(data, min_support=30)
    (told,) = [one for one in examine(strict, "site-1") if one.check == "released scores"]
    assert (told.level, "nevus 26, melanoma 7" in told.message) == ("warning", True)
