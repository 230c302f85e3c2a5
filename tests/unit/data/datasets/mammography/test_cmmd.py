"""CMMD's table of breasts meets what the DICOM headers say of images."""

import pytest
from published_data.mammography.cmmd import read_cmmd
from published_data.mammography.records import Mammogram

from grandrounds.errors import DataError

BREASTS = [("D1-0001", "R", "Benign"), ("D1-0002", "L", "Benign"), ("D1-0002", "L", "Malignant")]
IMAGES = [
    ("D1-0002", "L", "CC", "SIEMENS"),
    ("D1-0001", "R", "CC", "GE MEDICAL SYSTEMS"),
    ("D1-0001", "R", "MLO", "GE MEDICAL SYSTEMS"),
    ("D1-0001", "L", "CC", "GE MEDICAL SYSTEMS"),
]
FOLDER = "07-18-2010-NA-NA-79377/1.000000-NA-70244"


def test_images_take_the_finding_of_their_breast(cmmd, tmp_path):
    found, counts = read_cmmd(cmmd(tmp_path, BREASTS, IMAGES))
    assert found == (
        Mammogram(f"CMMD/D1-0001/{FOLDER}/1-2.dcm", "benign", "D1-0001", "R", "CC", "GE"),
        Mammogram(f"CMMD/D1-0001/{FOLDER}/1-3.dcm", "benign", "D1-0001", "R", "MLO", "GE"),
        Mammogram(f"CMMD/D1-0002/{FOLDER}/1-1.dcm", "malignant", "D1-0002", "L", "CC", "Siemens"),
    )
    assert counts == {"without_label": 1}


def test_progress_is_reported(cmmd, tmp_path):
    reported = []
    read_cmmd(cmmd(tmp_path, BREASTS, IMAGES), lambda done, total: reported.append((done, total)))
    assert reported == [(3, 4), (4, 4)]


def test_names_what_is_missing(cmmd, tmp_path):
    (tmp_path / "CMMD_clinicaldata_revision.xlsx").touch()
    with pytest.raises(DataError, match=r"revision\.xlsx.*CMMD_clinicaldata_revision\.csv"):
        read_cmmd(tmp_path)
    with pytest.raises(DataError, match="no DICOM file in a folder D1-0002"):
        read_cmmd(cmmd(tmp_path, BREASTS, IMAGES[1:]))


def test_refuses_a_header_without_a_side(cmmd, tmp_path):
    with pytest.raises(DataError, match=r"1-1\.dcm: its DICOM header does not state the breast"):
        read_cmmd(cmmd(tmp_path, BREASTS[:1], [("D1-0001", "", "CC", "GE")]))


@pytest.mark.parametrize(
    ("breast", "message"),
    [
        (("D1-0001", "B", "Benign"), "column LeftRight: expected L or R, got 'B'"),
        (("D1-0001", "L", "Normal"), "column classification: 'Normal' is not one of the classes Benign, Malignant"),
    ],
)
def test_refuses_other_values(cmmd, tmp_path, breast, message):
    with pytest.raises(DataError, match=f"line 2, {message}"):
        read_cmmd(cmmd(tmp_path, [breast], IMAGES[1:2]))
