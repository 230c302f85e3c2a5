"""ISIC 2018 task 3 is read from its published tables, with lesions or image by image."""

import csv

import pytest
from published_data.isic import ISIC2018_CLASSES, read_isic2018, read_isic2020

from grandrounds.data.manifest import Record
from grandrounds.data.partition.schemes import make_partition
from grandrounds.errors import ConfigurationError, DataError

ROWS = [("ISIC_1", "MEL", "HAM_1"), ("ISIC_2", "AKIEC", "HAM_2"), ("ISIC_3", "MEL", "HAM_1")]
TRUTH = "ISIC2018_Task3_Training_GroundTruth.csv"
LESIONS = "ISIC2018_Task3_Training_LesionGroupings.csv"


def record(image, label, lesion=""):
    return Record(f"ISIC2018_Task3_Training_Input/{image}.jpg", label, lesion=lesion, source="ISIC2018")


def test_reads_the_published_layout(tmp_path, isic2018):
    assert read_isic2018(isic2018(tmp_path, ROWS)) == (
        record("ISIC_1", "mel", "HAM_1"),
        record("ISIC_2", "akiec", "HAM_2"),
        record("ISIC_3", "mel", "HAM_1"),
    )


def test_every_column_is_its_class(tmp_path, isic2018):
    columns = ["MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC"]
    isic2018(tmp_path, [(f"ISIC_{i}", column, f"L{i}") for i, column in enumerate(columns)])
    assert tuple(found.label for found in read_isic2018(tmp_path)) == ISIC2018_CLASSES


def test_a_table_in_the_folder_of_its_archive_is_found(tmp_path, isic2018):
    isic2018(tmp_path, ROWS)
    folder = tmp_path / "ISIC2018_Task3_Training_GroundTruth"
    folder.mkdir()
    (tmp_path / TRUTH).rename(folder / TRUTH)
    assert len(read_isic2018(tmp_path)) == 3


def test_without_the_table_of_lesions_images_can_only_be_taken_one_by_one(tmp_path, isic2018):
    isic2018(tmp_path, [(image, column, "") for image, column, _ in ROWS])
    with pytest.raises(DataError, match=rf"looked for {LESIONS}.*\(group_by image\), so that one lesion may be in"):
        read_isic2018(tmp_path)
    assert read_isic2018(tmp_path, with_lesions=False)[0] == record("ISIC_1", "mel")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (TRUTH, "AKIEC", "AK", f"{TRUTH} line 1: column 'AKIEC' is missing"),
        (TRUTH, "ISIC_1,1.0", "ISIC_1,0.0", f"{TRUTH} line 2: expected 1 in one of the columns MEL, .*VASC, got 0"),
        (TRUTH, "ISIC_1,1.0", "ISIC_1,0.9", f"{TRUTH} line 2, column MEL: expected 0 or 1, got '0.9'"),
        (TRUTH, "ISIC_3", "ISIC_1", r"image '.*ISIC_1\.jpg' is listed twice"),
        (LESIONS, "ISIC_3", "ISIC_4", f"{TRUTH} line 4, column image: 'ISIC_3' has no lesion in {LESIONS}"),
        (LESIONS, "HAM_2", "", f"{TRUTH} line 3, column image: 'ISIC_2' has no lesion in {LESIONS}"),
    ],
)
def test_mistakes_are_named(tmp_path, isic2018, file, old, new, message):
    isic2018(tmp_path, ROWS)
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new))
    with pytest.raises(DataError, match=message):
        read_isic2018(tmp_path)


def rows_of(out, site):
    with (out / site / "manifest.csv").open() as stream:
        return list(csv.DictReader(stream))


@pytest.fixture
def root(tmp_path, isic2018):
    return isic2018(tmp_path / "root", [(f"ISIC_{i}", ("MEL", "NV")[i % 2], f"L{i // 4}") for i in range(160)])


def test_lesions_are_whole_unless_images_are_divided_one_by_one(root, tmp_path):
    shares = {"validation": 0.1, "test": 0.2, "labelled": 1.0}
    whole = make_partition("isic2018", root, tmp_path / "whole", sites=4, **shares)
    assert (whole["dataset_name"], whole["scheme"]) == ("isic2018", "iid")
    assert whole["classes"] == list(ISIC2018_CLASSES)
    assert "group_by" not in whole
    places = [
        (row["lesion"], site, row["split"]) for site in whole["sites"] for row in rows_of(tmp_path / "whole", site)
    ]
    assert len({lesion for lesion, _, _ in places}) == len(set(places)) == 40
    single = make_partition("isic2018", root, tmp_path / "single", sites=4, group_by="image", **shares)
    assert single["group_by"] == "image"
    rows = [row for site in single["sites"] for row in rows_of(tmp_path / "single", site)]
    assert {row["lesion"] for row in rows} == {""}
    for site in single["sites"].values():
        assert site["images"] == {"train": 28, "val": 4, "test": 8}


def test_ham10000_can_be_divided_image_by_image(tmp_path, ham10000):
    root = ham10000(tmp_path / "root", [(f"HAM_{i // 2}", f"ISIC_{i}", "nv") for i in range(40)])
    description = make_partition("ham10000", root, tmp_path / "out", scheme="iid", sites=2, group_by="image")
    assert description["group_by"] == "image"
    assert {row["lesion"] for row in rows_of(tmp_path / "out", "site-1")} == {""}
    assert "group_by" not in make_partition(
        "ham10000", root, tmp_path / "whole", scheme="iid", sites=2, group_by="lesion"
    )
    assert all(row["lesion"] for row in rows_of(tmp_path / "whole", "site-1"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_by": "patient"}, "group_by must be lesion or image, got 'patient'"),
        ({"variant": "paper"}, "data set isic2018 has no option variant"),
        ({"several": "drop"}, "data set isic2018 has no option several"),
        ({"windows": [[40, 80]]}, "data set isic2018 has no option windows"),
    ],
)
def test_choices_of_other_data_sets_are_refused(root, tmp_path, options, message):
    with pytest.raises(ConfigurationError, match=message):
        make_partition("isic2018", root, tmp_path / "out", sites=4, **options)


V1 = (
    "image_name,patient_id,sex,age_approx,anatom_site_general_challenge,diagnosis,benign_malignant,target\n"
    "ISIC_1,IP_1,male,45.0,head/neck,unknown,benign,0\n"
    "ISIC_2,IP_1,male,45.0,torso,melanoma,malignant,1\n"
)
V2 = (
    "image_name,patient_id,lesion_id,sex,age_approx,anatom_site_general_challenge,diagnosis,benign_malignant,target\n"
    "ISIC_1,IP_1,IL_1,male,45.0,head/neck,unknown,benign,0\n"
    "ISIC_2,IP_1,IL_2,male,45.0,torso,melanoma,malignant,1\n"
)
TARGET = "image_name,patient_id,target\nISIC_1,IP_1,0\nISIC_2,IP_1,1\n"


def published(root, name, text, folder="train"):
    (root / name).write_text(text)
    (root / folder).mkdir(parents=True)
    for image in ("ISIC_1", "ISIC_2"):
        (root / folder / f"{image}.jpg").touch()
    return root


def records(lesions=("", ""), folder="train"):
    return tuple(
        Record(f"{folder}/ISIC_{number}.jpg", label, patient="IP_1", lesion=lesion, source="ISIC2020")
        for number, label, lesion in zip((1, 2), ("benign", "malignant"), lesions, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "text", "lesions"),
    [
        ("ISIC_2020_Training_GroundTruth.csv", V1, ("", "")),
        ("ISIC_2020_Training_GroundTruth_v2.csv", V2, ("IL_1", "IL_2")),
        ("train.csv", V1, ("", "")),
        ("train.csv", TARGET, ("", "")),
    ],
)
def test_reads_the_published_tables(tmp_path, name, text, lesions):
    assert read_isic2020(published(tmp_path, name, text)) == records(lesions)


def test_the_table_that_knows_lesions_comes_first(tmp_path):
    published(tmp_path, "ISIC_2020_Training_GroundTruth.csv", V1)
    (tmp_path / "ISIC_2020_Training_GroundTruth_v2.csv").write_text(V2)
    assert read_isic2020(tmp_path) == records(("IL_1", "IL_2"))


def test_images_are_found_in_a_folder_below(tmp_path):
    assert read_isic2020(published(tmp_path, "train.csv", V1, "jpeg/train")) == records(folder="jpeg/train")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (V1.replace(",malignant,", ",malign,"), r"train\.csv line 3, column benign_malignant: 'malign' is not one of"),
        (TARGET.replace("IP_1,1", "IP_1,2"), r"train\.csv line 3, column target: expected 0 or 1, got '2'"),
        (TARGET.replace("target", "label"), r"train\.csv line 2: column 'benign_malignant' or 'target' is missing"),
        (V1.replace("patient_id", "patient"), r"train\.csv line 1: column 'patient_id' is missing"),
        (V1.replace("ISIC_2", "ISIC_3"), r"train\.csv line 3: image 'ISIC_3' was looked for in .* and not found"),
        (V1.replace("ISIC_2", "ISIC_1"), r"image 'train/ISIC_1\.jpg' is listed twice"),
    ],
)
def test_mistakes_are_named_isic2020(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_isic2020(published(tmp_path, "train.csv", text))
