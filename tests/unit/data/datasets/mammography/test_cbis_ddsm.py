"""CBIS-DDSM's four tables become one record per film, and no patient is on both sides of its test set."""

import shutil

import pytest
from published_data.mammography.cbis_ddsm import read_cbis_ddsm
from published_data.mammography.records import Mammogram

from grandrounds.errors import DataError

ROWS = [
    ("mass_train", "P_00001", "LEFT", "CC", "MALIGNANT"),
    ("mass_train", "P_00001", "LEFT", "CC", "BENIGN"),
    ("mass_train", "P_00001", "LEFT", "MLO", "BENIGN_WITHOUT_CALLBACK"),
    ("mass_test", "P_00016", "RIGHT", "MLO", "MALIGNANT"),
    ("calc_train", "P_00005", "RIGHT", "CC", "BENIGN"),
    ("calc_test", "P_00001", "LEFT", "MLO", "MALIGNANT"),
    ("calc_test", "P_00038", "LEFT", "CC", "BENIGN"),
]
FOLDER = "07-20-2016-DDSM-NA-1/1.000000-full mammogram images-2"


def test_a_film_is_one_record_with_the_gravest_of_its_abnormalities(cbis_ddsm, tmp_path):
    found, counts = read_cbis_ddsm(cbis_ddsm(tmp_path, ROWS))
    assert counts == {"abnormalities": 7, "patients_in_both": 1}
    assert found[0] == Mammogram(
        f"CBIS-DDSM/Mass-Training_P_00001_LEFT_CC/{FOLDER}/1-1.dcm", "malignant", "P_00001", "L", "CC", "film"
    )
    # The second view is benign as a mass and malignant as a calcification: the same film, listed in two tables.
    assert [(one.patient, one.view, one.finding) for one in found] == [
        ("P_00001", "CC", "malignant"),
        ("P_00001", "MLO", "malignant"),
        ("P_00016", "MLO", "malignant"),
        ("P_00005", "CC", "benign"),
        ("P_00038", "CC", "benign"),
    ]


def test_patients_of_both_sets_are_for_training(cbis_ddsm, tmp_path):
    other_film = ("calc_test", "P_00005", "LEFT", "CC", "BENIGN")
    found, counts = read_cbis_ddsm(cbis_ddsm(tmp_path, [*ROWS, other_film]))
    assert counts["patients_in_both"] == 2
    assert {one.patient for one in found if one.test} == {"P_00016", "P_00038"}


def test_the_tables_own_path_decides_between_several_files(cbis_ddsm, tmp_path):
    root = cbis_ddsm(tmp_path, [*ROWS[:1], *ROWS[3:5], ROWS[6]])
    folder = root / "CBIS-DDSM" / "Mass-Training_P_00001_LEFT_CC"
    shutil.copytree(folder / FOLDER, folder / "other")
    with pytest.raises(DataError, match=r"line 3: 2.*Mass-Training_P_00001_LEFT_CC"):
        read_cbis_ddsm(root)
    stated = folder / "1.3.6" / "1.4.1"
    stated.mkdir(parents=True)
    shutil.copy(folder / "other" / "1-1.dcm", stated / "000000.dcm")
    assert read_cbis_ddsm(root)[0][0].image == "CBIS-DDSM/Mass-Training_P_00001_LEFT_CC/1.3.6/1.4.1/000000.dcm"


def test_names_what_is_missing(cbis_ddsm, tmp_path):
    root = cbis_ddsm(tmp_path, ROWS)
    shutil.rmtree(root / "CBIS-DDSM" / "Calc-Training_P_00005_RIGHT_CC")
    with pytest.raises(DataError, match="folder Calc-Training_P_00005_RIGHT_CC"):
        read_cbis_ddsm(root)
    (root / "calc_case_description_test_set.csv").unlink()
    with pytest.raises(DataError, match=r"calc_case_description_test_set\.csv.*missing"):
        read_cbis_ddsm(root)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("mass_train", "P", "LEFT", "CC", "UNPROVEN"), "column pathology: 'UNPROVEN' is not one of the classes"),
        (
            ("mass_train", "P", "BOTH", "CC", "BENIGN"),
            "column left or right breast: expected LEFT or RIGHT, got 'BOTH'",
        ),
        (("mass_train", "P", "LEFT", "ML", "BENIGN"), "column image view: expected CC or MLO, got 'ML'"),
    ],
)
def test_refuses_other_values(cbis_ddsm, tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        read_cbis_ddsm(cbis_ddsm(tmp_path, [row]))
