"""The rows of the haemorrhage challenge become one class for each slice; what is wrong in them is named."""

import numpy as np
import pytest
from published_data import rsna_ich as rsna_patients
from published_data.rsna_ich import RSNA_ICH_CLASSES, find_patients, read_subtypes, single_labels

from grandrounds.errors import ConfigurationError, DataError

HEADER = "ID,Label"


def write(tmp_path, *lines):
    path = tmp_path / "stage_2_train.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def six(image, *positive):
    known = [f"{image}_{name},{int(name in positive)}" for name in RSNA_ICH_CLASSES]
    return [*known, f"{image}_any,{int(bool(positive))}"]


def test_the_subtypes_of_a_slice_are_in_the_order_of_the_classes(tmp_path):
    table = write(
        tmp_path, HEADER, *reversed(six("ID_b", "subdural", "epidural")), *six("ID_a"), *six("ID_c", "subarachnoid")
    )
    found = read_subtypes(table)
    assert found == {"ID_b": ("epidural", "subdural"), "ID_a": (), "ID_c": ("subarachnoid",)}
    assert list(found) == ["ID_b", "ID_a", "ID_c"]


def test_the_classes_are_in_the_order_of_the_published_rows():
    assert RSNA_ICH_CLASSES == ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")


def test_rows_that_are_there_twice_count_once(tmp_path):
    assert read_subtypes(write(tmp_path, HEADER, *six("ID_a", "subdural") * 2)) == {"ID_a": ("subdural",)}


def test_slices_with_several_subtypes_are_dropped_or_count_as_of_the_first():
    subtypes = {"a": ("intraventricular", "subdural"), "b": ("epidural",), "c": (), "d": ("subdural",)}
    counts = {"without_subtype": 1, "several_subtypes": 1}
    assert single_labels(subtypes, "drop") == ({"b": "epidural", "d": "subdural"}, counts)
    assert single_labels(subtypes, "first") == ({"a": "intraventricular", "b": "epidural", "d": "subdural"}, counts)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["id,label", *six("ID_a")], r"stage_2_train\.csv line 1: expected the columns ID, Label, got id, label"),
        ([HEADER], "has a header but no rows"),
        ([HEADER, *six("ID_a"), "ID_b_any,0,1"], "line 8 has 3 values, expected 2"),
        (
            [HEADER, "ID_a_subdurale,0"],
            "line 2: ID must be an image, _ and one of epidural, .*any; got 'ID_a_subdurale'",
        ),
        ([HEADER, "any,0"], "line 2: ID must be an image, _ and one of .*; got 'any'"),
        ([HEADER, "ID_a_any,2"], "line 2: Label must be 0 or 1, got '2'"),
        ([HEADER, *six("ID_a", "subdural"), "ID_a_subdural,0"], "line 8: ID_a_subdural is both 0 and 1"),
        ([HEADER, *six("ID_a")[:2], *six("ID_a")[3:]], "image 'ID_a' has no row for intraventricular"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path, lines, message):
    with pytest.raises(DataError, match=message):
        read_subtypes(write(tmp_path, *lines))


def test_an_invalid_table_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"gone\.csv cannot"):
        read_subtypes(tmp_path / "gone.csv")
    (tmp_path / "x.csv").write_bytes(b"ID,Label\n\xff\xfe,1\n")
    with pytest.raises(DataError, match=r"x\.csv is not a CSV file in UTF-8"):
        read_subtypes(tmp_path / "x.csv")


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


def test_values_read_before_an_error_are_kept(tmp_path, files, ct_slice, headers_read):
    table = tmp_path / "patients.csv"
    whole = files["ID_c"].read_bytes()
    files["ID_c"].write_bytes(ct_slice(np.zeros((4, 4))))
    with pytest.raises(DataError, match=r"ID_c\.dcm.*patient"):
        find_patients(files, table)
    files["ID_c"].write_bytes(whole)
    assert find_patients(files, table)["ID_c"] == "ID_p"
    assert headers_read == ["ID_b", "ID_a", "ID_c", "ID_c"]


def test_progress_is_reported_from_the_first_header_to_the_last(tmp_path, files, monkeypatch):
    reported = []
    monkeypatch.setattr(rsna_patients, "STEP", 2)
    find_patients(files, tmp_path / "patients.csv", lambda *state: reported.append(state))
    assert reported == [(0, 3), (2, 3), (3, 3)]
    find_patients(files, tmp_path / "patients.csv", lambda *state: reported.append(state))
    assert len(reported) == 3


def test_headers_that_cannot_be_read_are_named(tmp_path, files):
    files["ID_b"].write_bytes(b"no header" * 50)
    with pytest.raises(DataError, match=r"ID_b\.dcm.*header"):
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
    with pytest.raises(ConfigurationError, match=r"gone/p\.csv.*another"):
        find_patients(files, tmp_path / "gone" / "p.csv")
    assert headers_read == []
