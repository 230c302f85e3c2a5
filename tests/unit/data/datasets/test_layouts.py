"""What folders mean: read where it is clear, and otherwise asked with options that each work."""

import re
from pathlib import Path

import pytest

from grandrounds.data.datasets.layouts import read_layout
from grandrounds.errors import ConfigurationError, DataError, SeveralReadings

ROOT = Path("images")


def names(*folders, images=2):
    return [f"{folder}/{number}.png" for folder in folders for number in range(images)]


def read(images, layout="auto"):
    found = read_layout(ROOT, images, layout)
    return found, list(zip(images, found.owners, found.splits, strict=True))


def offered(images):
    """The layouts that a question offers; each can be read."""
    with pytest.raises(SeveralReadings) as asked:
        read_layout(ROOT, images, "auto")
    ways = re.findall(r"--layout (?:'(.+?)'|(\S+)) ", str(asked.value))
    layouts = [quoted or plain for quoted, plain in ways]
    for layout in layouts:
        read_layout(ROOT, images, layout)
    return layouts


@pytest.mark.parametrize(
    "pieces",
    [
        ("fold0", "fold1"),
        ("Batch 1", "Batch 2"),
        ("left", "right"),
        ("OD", "OS"),
        ("L", "R"),
        ("Links", "rechts"),
        ("Part 1", "Part 2"),
    ],
)
def test_pieces_of_a_set_and_sides_of_the_body_are_asked_about(pieces):
    ways = offered(names(*(f"{piece}/{label}" for piece in pieces for label in ("nevus", "melanoma"))))
    assert {"site/class", "*/class"} <= {*ways}


@pytest.mark.parametrize(
    "sites", [("left bank", "right bank"), ("X1", "X2"), ("OS 1", "OS 2"), ("left", "right", "centre"), ("L", "M")]
)
def test_names_that_are_not_only_pieces_or_the_two_sides_are_sites(sites):
    found, _ = read(names(*(f"{site}/{label}" for site in sites for label in ("nevus", "melanoma"))))
    assert found.layout == "site/class"


SPLIT_WORDS = [
    ("train_images", "test_images"),
    ("TrainSet", "TestSet"),
    ("training-data", "validation-data"),
    ("01_train", "02_test"),
    ("Train", "Test-A"),
    ("imgs_val", "imgs_test"),
    ("seg_train", "seg_test"),
    ("ISIC2018_Task3_Training_Input", "ISIC2018_Task3_Test_Input"),
]


@pytest.mark.parametrize("words", SPLIT_WORDS)
@pytest.mark.parametrize(
    "form", ["{split}/{label}", "{label}/{split}", "data/{split}/{label}", "{split}/{split}/{label}"]
)
def test_folders_called_after_splits_are_splits_wherever_they_are(words, form):
    paths = [form.format(split=split, label=label) for split in words for label in "ab"]
    found, rows = read(names(*paths))
    assert (found.layout.replace("*/", ""), {own["class"] for _, own, _ in rows}) == ("class", {"a", "b"})
    assert len(set(found.splits)) == 2
    assert all(split for _, _, split in rows)


def test_a_word_of_a_split_in_some_names_of_a_level_is_no_split():
    found, _ = read(names("test_strip", "biopsy", "swab"))
    assert (found.layout, set(found.splits)) == ("class", {""})


def test_images_beside_folders_of_splits_are_asked_about_and_unlabelled_ones_are_not():
    paths = ["train/a", "train/b", "test/a", "test/b"]
    with pytest.raises(ConfigurationError, match=re.escape("--layout '*/class'")):
        read(names(*paths, "extra/a"))
    assert read(names(*paths, "extra/a"), "*/class")[0].splits == [""] * 10
    assert {split for _, own, split in read(names(*paths, "unlabelled"))[1] if not own["class"]} == {""}
    assert set(read(names(*paths), "split/class")[0].splits) == {"train", "test"}


@pytest.mark.parametrize(
    ("paths", "layout"),
    [
        (["basophil", "eosinophil"], "class"),
        (["0", "1", "2", "10"], "class"),
        (["Leeds/a", "Leeds/b", "York/a", "York/b"], "site/class"),
        (["a/site-1", "a/site-2", "b/site-1", "b/site-2"], "class/site"),
        (["Covid/images", "Normal/images"], "class/*"),
        ([f"{split}/{site}/{label}" for split in ("train", "test") for site in "AB" for label in "xy"], "site/class"),
    ],
)
def test_folders_that_are_clear_are_read(paths, layout):
    assert read(names(*paths))[0].layout == layout


@pytest.mark.parametrize(
    ("paths", "likely"),
    [
        ([f"{10250 + patient}/{label}" for patient in range(24) for label in "01"], "patient/class"),
        ([f"P{patient}/{label}" for patient in range(4) for label in ("benign", "malignant")], "patient/class"),
        ([f"{name}/{label}" for name in "ABCDEFGHIJ" for label in "xy"], "patient/class"),
        ([f"{label}/{patient}" for label in "ab" for patient in range(30)], "class/patient"),
        ([f"{'ab'[patient % 2]}/PAT{patient:03}/ST0/SE{series}" for patient in range(16) for series in (0, 98)],
         "class/patient/*/*"),
        (["colon_sets/colon_aca", "colon_sets/colon_n", "lung_sets/lung_aca"], "*/class"),
        (["Covid/nevus", "Normal/nevus"], "class/*"),
        ([f"P{patient}" for patient in range(30)], "class"),
    ],
)  # fmt: skip
def test_folders_that_can_be_read_in_several_ways_are_asked_about(paths, likely):
    assert likely in offered(names(*paths))[:2]


def test_a_layout_that_does_not_fit_is_refused_with_those_that_do():
    with pytest.raises(DataError, match=r"--layout 'class/patient'"):
        read(names(*[f"{label}/P{patient}" for label in "ab" for patient in range(30)]), "class")
