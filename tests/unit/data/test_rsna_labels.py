"""The rows of the haemorrhage challenge become one class for each slice; what is wrong in them is named."""

import pytest

from grandrounds.data.datasets.rsna_ich import RSNA_ICH_CLASSES, read_subtypes, single_labels
from grandrounds.errors import DataError

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


def test_what_is_no_table_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"gone\.csv cannot be read: No such file"):
        read_subtypes(tmp_path / "gone.csv")
    (tmp_path / "x.csv").write_bytes(b"ID,Label\n\xff\xfe,1\n")
    with pytest.raises(DataError, match=r"x\.csv is no CSV file in UTF-8"):
        read_subtypes(tmp_path / "x.csv")
