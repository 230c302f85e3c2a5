"""ISIC 2019 is read from its published tables, and what is wrong in them is named."""

import re

import pytest

from grandrounds.data.datasets.skin.lesions import LESION_CLASSES, read_isic2019
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError

ROWS = [("ISIC_1", "SCC", "BCN_1"), ("ISIC_2_downsampled", "NV", ""), ("ISIC_3", "MEL", "BCN_1")]
TRUTH = "ISIC_2019_Training_GroundTruth.csv"
METADATA = "ISIC_2019_Training_Metadata.csv"


def record(image, label, lesion=""):
    return Record(f"ISIC_2019_Training_Input/{image}.jpg", label, lesion=lesion, source="ISIC2019")


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_reads_the_published_layout(tmp_path, isic2019):
    assert read_isic2019(isic2019(tmp_path, ROWS)) == (
        record("ISIC_1", "scc", "BCN_1"),
        record("ISIC_2_downsampled", "nv"),
        record("ISIC_3", "mel", "BCN_1"),
    )


def test_every_column_is_its_class_and_unknown_images_are_left_out(tmp_path, isic2019):
    columns = ["MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK"]
    isic2019(tmp_path, [(f"ISIC_{i}", column, "") for i, column in enumerate(columns)])
    assert tuple(found.label for found in read_isic2019(tmp_path)) == LESION_CLASSES


def test_an_archive_that_was_unpacked_into_a_folder_of_its_own_name_is_found(tmp_path, isic2019):
    isic2019(tmp_path, ROWS[:1])
    inner = tmp_path / "ISIC_2019_Training_Input" / "ISIC_2019_Training_Input"
    inner.mkdir()
    (tmp_path / "ISIC_2019_Training_Input" / "ISIC_1.jpg").rename(inner / "ISIC_1.JPG")
    (found,) = read_isic2019(tmp_path)
    assert found.image == "ISIC_2019_Training_Input/ISIC_2019_Training_Input/ISIC_1.JPG"


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (TRUTH, ",SCC,", ",SCX,", f"{TRUTH} line 1: column 'SCC' is missing"),
        (TRUTH, "ISIC_1,0.0", "ISIC_1,1.0", f"{TRUTH} line 2: expected 1 in one of the columns MEL, .*UNK, got 2"),
        (TRUTH, "ISIC_1,0.0,0.0", "ISIC_1,0.0,0.3", f"{TRUTH} line 2, column NV: expected 0 or 1, got '0.3'"),
        (TRUTH, "ISIC_3", "ISIC_1", r"image 'ISIC_2019_Training_Input/ISIC_1\.jpg' is listed twice"),
        (METADATA, "ISIC_3", "ISIC_4", f"{TRUTH} line 4, column image: 'ISIC_3' has no row in {METADATA}"),
        (METADATA, "lesion_id", "lesion", f"{METADATA} line 1: column 'lesion_id' is missing"),
    ],
)
def test_mistakes_are_named(tmp_path, isic2019, file, old, new, message):
    isic2019(tmp_path, ROWS)
    edit(tmp_path / file, old, new)
    with pytest.raises(DataError, match=message):
        read_isic2019(tmp_path)


def test_a_missing_image_and_missing_tables_are_named(tmp_path, isic2019):
    isic2019(tmp_path, ROWS)
    (tmp_path / "ISIC_2019_Training_Input" / "ISIC_3.jpg").unlink()
    with pytest.raises(
        DataError, match=r"line 4: image 'ISIC_3' was looked for in .* and not found; complete the data"
    ):
        read_isic2019(tmp_path)
    for name in (METADATA, TRUTH):
        (tmp_path / name).unlink()
        with pytest.raises(
            DataError, match=rf"no ISIC 2019 in {re.escape(str(tmp_path))}: looked for {name}; name the"
        ):
            read_isic2019(tmp_path)
