"""ISIC 2020 is read from each of its published tables, and what is wrong in them is named."""

import pytest

from grandrounds.data.datasets.skin.isic import read_isic2020
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError

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
def test_mistakes_are_named(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_isic2020(published(tmp_path, "train.csv", text))


def test_a_folder_without_the_data_set_says_what_was_looked_for(tmp_path):
    with pytest.raises(
        DataError, match=r"no ISIC 2020 in .*: looked for ISIC_2020_Training_GroundTruth_v2\.csv, .*train"
    ):
        read_isic2020(tmp_path)
