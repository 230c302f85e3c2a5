"""INbreast is read from its published layout; assessments become classes as the paper counts them."""

from collections import Counter

import pytest
from published_data.mammography.inbreast import read_inbreast
from published_data.mammography.records import Mammogram

from grandrounds.errors import DataError

ROWS = [
    ("20586908", "6c613a14b80a8591", "R", "CC", "6"),
    ("20586934", "6c613a14b80a8591", "L", "MLO", "1"),
    ("22678622", "61b13c59bcba149e", "L", "CC", "4a"),
    ("22678646", "61b13c59bcba149e", "R", "MLO", "2"),
    ("22678980", "8d0b9620c53c0268", "L", "CC", "3"),
]


@pytest.mark.parametrize("delimiter", [";", ","])
def test_reads_patient_side_view_and_finding(inbreast, tmp_path, delimiter):
    found = read_inbreast(inbreast(tmp_path, ROWS, delimiter))
    assert [one.finding for one in found] == ["malignant", "normal", "malignant", "benign", "malignant"]
    assert found[0] == Mammogram(
        "AllDICOMs/20586908_6c613a14b80a8591_MG_R_CC_ANON.dcm", "malignant", "6c613a14b80a8591", "R", "CC", "Siemens"
    )
    assert (found[1].laterality, found[1].view, found[1].patient) == ("L", "MLO", "6c613a14b80a8591")


@pytest.mark.parametrize(("choice", "expected"), [("malignant", 3), ("benign", 2), ("drop", 2)])
def test_an_assessment_of_3_counts_as_chosen(inbreast, tmp_path, choice, expected):
    found = read_inbreast(inbreast(tmp_path, ROWS), choice)
    assert Counter(one.finding for one in found)["malignant"] == expected
    assert len(found) == (4 if choice == "drop" else 5)


def test_rows_without_a_file_name_are_the_end_of_the_sheet(inbreast, tmp_path):
    root = inbreast(tmp_path, ROWS)
    with (root / "INbreast.csv").open("a") as stream:
        stream.write(";;;;;;;410\n")
    assert len(read_inbreast(root)) == 5


def test_names_what_is_missing(inbreast, tmp_path):
    (tmp_path / "INbreast.xls").touch()
    with pytest.raises(DataError, match=r"INbreast\.xls.*INbreast\.csv"):
        read_inbreast(tmp_path)
    root = inbreast(tmp_path, ROWS)
    next((root / "AllDICOMs").glob("22678622*")).unlink()
    with pytest.raises(DataError, match=r"line 4.*22678622_PATIENT"):
        read_inbreast(root)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("1", "p", "L", "CC", "0"), "column Bi-Rads: expected 1 to 6 or 4a to 4c, got '0'"),
        (("1", "p", "B", "CC", "1"), "column Laterality: expected L or R, got 'B'"),
    ],
)
def test_refuses_other_values(inbreast, tmp_path, row, message):
    with pytest.raises(DataError, match=f"line 2, {message}"):
        read_inbreast(inbreast(tmp_path, [row]))


def test_refuses_an_image_listed_twice(inbreast, tmp_path):
    with pytest.raises(DataError, match="an image is listed twice"):
        read_inbreast(inbreast(tmp_path, [ROWS[0], ROWS[0]]))
