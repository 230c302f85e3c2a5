"""Patients come from a table or from the headers, and what was read from headers is written down."""

import numpy as np
import pytest

from grandrounds.data.datasets import rsna_ich as rsna_patients
from grandrounds.data.datasets.rsna_ich import find_patients
from grandrounds.errors import ConfigurationError, DataError


@pytest.fixture
def files(tmp_path, ct_slice):
    """Three slices of two patients."""
    found = {}
    for image, patient in (("ID_b", "ID_p"), ("ID_a", "ID_q"), ("ID_c", "ID_p")):
        found[image] = tmp_path / f"{image}.dcm"
        found[image].write_bytes(ct_slice(np.zeros((4, 4)), PatientID=patient))
    return found


@pytest.fixture
def headers_read(monkeypatch):
    """The files whose header is read."""
    seen = []
    read = rsna_patients.read_patient
    monkeypatch.setattr(rsna_patients, "read_patient", lambda path: (seen.append(path.stem), read(path))[1])
    return seen


def test_headers_are_read_once_and_then_the_table(tmp_path, files, headers_read):
    table = tmp_path / "patients.csv"
    expected = {"ID_b": "ID_p", "ID_a": "ID_q", "ID_c": "ID_p"}
    assert find_patients(files, table) == expected
    assert table.read_text() == "image,patient\nID_a,ID_q\nID_b,ID_p\nID_c,ID_p\n"
    assert find_patients(files, table) == expected
    assert headers_read == ["ID_b", "ID_a", "ID_c"]


def test_a_table_from_elsewhere_wins_and_is_completed(tmp_path, files, headers_read):
    table = tmp_path / "patients.csv"
    table.write_text("image,patient\nID_b.dcm,p-7\nother,p-8\n")
    assert find_patients(files, table) == {"ID_b": "p-7", "ID_a": "ID_q", "ID_c": "ID_p"}
    assert headers_read == ["ID_a", "ID_c"]
    assert table.read_text() == "image,patient\nID_a,ID_q\nID_b,p-7\nID_c,ID_p\nother,p-8\n"


def test_what_was_read_before_an_error_is_kept(tmp_path, files, ct_slice, headers_read):
    table = tmp_path / "patients.csv"
    whole = files["ID_c"].read_bytes()
    files["ID_c"].write_bytes(ct_slice(np.zeros((4, 4))))
    with pytest.raises(DataError, match=r"ID_c\.dcm: its DICOM header names no patient \(PatientID\)"):
        find_patients(files, table)
    files["ID_c"].write_bytes(whole)
    assert find_patients(files, table)["ID_c"] == "ID_p"
    assert headers_read == ["ID_b", "ID_a", "ID_c", "ID_c"]


def test_progress_is_told_from_the_first_header_to_the_last(tmp_path, files, monkeypatch):
    told = []
    monkeypatch.setattr(rsna_patients, "STEP", 2)
    find_patients(files, tmp_path / "patients.csv", lambda *state: told.append(state))
    assert told == [(0, 3), (2, 3), (3, 3)]
    find_patients(files, tmp_path / "patients.csv", lambda *state: told.append(state))
    assert len(told) == 3


def test_headers_that_cannot_be_read_are_named(tmp_path, files):
    files["ID_b"].write_bytes(b"no header" * 50)
    with pytest.raises(DataError, match=r"ID_b\.dcm: its DICOM header cannot be read"):
        find_patients(files, tmp_path / "patients.csv")
    files["ID_b"].unlink()
    with pytest.raises(DataError, match=r"ID_b\.dcm: No such file"):
        find_patients(files, tmp_path / "patients.csv")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("image,patient\nID_a,p\nID_a.dcm,q\n", "line 3: image 'ID_a' has two patients, p and q"),
        ("image,patient\nID_a,\n", "line 2, column patient: it is empty"),
        ("image\nID_a\n", "line 1: column 'patient' is missing"),
    ],
)
def test_mistakes_in_the_table_are_named(tmp_path, files, content, message):
    (tmp_path / "patients.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        find_patients(files, tmp_path / "patients.csv")


def test_a_place_that_cannot_be_written_is_refused_before_the_headers_are_read(tmp_path, files, headers_read):
    with pytest.raises(ConfigurationError, match=r"gone/p\.csv cannot be written.*name another file \(patients\)"):
        find_patients(files, tmp_path / "gone" / "p.csv")
    assert headers_read == []
