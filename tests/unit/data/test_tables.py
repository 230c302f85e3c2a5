"""Tables of any separator, encoding and format have the same rows; what was assumed is said, what is missing is named."""

import io
import re
import zipfile
from dataclasses import replace
from datetime import date
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from grandrounds.data import tables
from grandrounds.data.conventions import CONVENTIONS
from grandrounds.data.tables import frame_cells, open_table
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.tasks import FINDINGS

Columns = partial(tables.Columns, conventions=CONVENTIONS)
OWN = Columns(("image", "label"), ("patient", "site"))
ROWS = [["image", "label", "patient", "Größe"], ["ä.JPG", "bösartig", "007", "65,5"], ["b.JPG", "gut", "7", "64"]]


def text(separator):
    quoted = [[f'"{cell}"' if separator in cell else cell for cell in row] for row in ROWS]
    return "\r\n".join(separator.join(row) for row in quoted) + "\r\n"


def written(tmp_path, content, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252"])
def test_any_separator_and_encoding_give_the_same_rows(tmp_path, separator, encoding):
    table = open_table(written(tmp_path, text(separator).encode(encoding)), OWN)
    assert [row for _, row in table.rows] == [
        {"image": "ä.JPG", "label": "bösartig", "patient": "007", "Größe": "65.5"},
        {"image": "b.JPG", "label": "gut", "patient": "7", "Größe": "64"},
    ]
    assert any("separated by" in one for one in table.taken) == (separator != ",")
    assert any("encoded in" in one for one in table.taken) == (not encoding.startswith("utf-8"))


def test_what_may_be_another_encoding_than_windows_1252_is_said(tmp_path):
    table = open_table(written(tmp_path, "image,label\na.jpg,невус\n".encode("cp1251")), OWN)
    assert table.taken == ("encoded in Windows-1252; where a word looks wrong, save the table with UTF-8 encoding",)


def test_a_text_that_excel_is_kept_from_reading_is_the_text(tmp_path):
    content = b'image,label,patient\na.jpg,x,="007"\nb.jpg,x,"=""1e5"""\nc.jpg,x,="a"&"b"\n'
    rows = open_table(written(tmp_path, content), OWN).rows
    assert [row["patient"] for _, row in rows] == ["007", "1e5", '="a"&"b"']


def test_lines_are_counted_as_an_editor_does_and_excels_hint_is_followed(tmp_path):
    table = open_table(written(tmp_path, b'sep=;\r\nimage;label\r\n\r\n"a,b.png";x\r\n'), OWN)
    assert table.rows == ((4, {"image": "a,b.png", "label": "x"}),)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ('image,label,dose\na,x,"1,234"\n', "1,234"),
        ('image,label,dose\na,x,"1,5"\n', "1.5"),
        ("image;label;dose\na;x;1,234\n", "1.234"),
        ("image;label;dose\na;x;1,2 mg\n", "1,2 mg"),
    ],
)
def test_a_comma_that_may_separate_thousands_stays(tmp_path, content, wanted):
    assert open_table(written(tmp_path, content.encode()), OWN).rows[0][1]["dose"] == wanted


def test_a_comma_in_a_key_is_data(tmp_path):
    table = open_table(written(tmp_path, b"image;label;patient\na;1,0;7,0\n"), OWN)
    assert table.rows[0][1] == {"image": "a", "label": "1,0", "patient": "7,0"}


def workbook(rows, formats=(), **sheets):
    book = pytest.importorskip("openpyxl").Workbook()
    for row in rows:
        book.active.append(row)
    for place, number_format in formats:
        book.active[place].number_format = number_format
    for title, more in sheets.items():
        sheet = book.create_sheet(title)
        for row in more:
            sheet.append(row)
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def test_a_workbook_shows_what_its_cells_show_and_evaluates_nothing(tmp_path):
    rows = [
        ["Image", "LABEL", "patient", "day", "age"],
        [],
        ["a.png", "x", 7, date(2020, 5, 4), 65.5],
        ["b.png", "x", 7.0],
    ]
    path = written(tmp_path, workbook(rows, [("C3", "000")]), "t.xlsx")
    assert open_table(path, OWN).rows == (
        (3, {"image": "a.png", "label": "x", "patient": "007", "day": "2020-05-04", "age": "65.5"}),
        (4, {"image": "b.png", "label": "x", "patient": "7", "day": "", "age": ""}),
    )


def computed(book, cell, result):
    """The workbook with the result of a formula, as Excel writes it."""
    with zipfile.ZipFile(io.BytesIO(book)) as found:
        parts = {name: found.read(name) for name in found.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    formula = rf'(<c r="{cell}")[^>]*>(<f>[^<]*</f>)<v ?/?>(</v>)?'.encode()
    parts[sheet], count = re.subn(formula, rf'\1 t="str">\2<v>{result}</v>'.encode(), parts[sheet])
    assert count == 1
    return archive(**parts)


def test_a_formula_is_its_result_and_never_its_text(tmp_path):
    rows = [["image", "label", "patient"], ["a.png", "=UPPER(C2)", "p"], ["b.png", "x", "=LOWER(B3)"]]
    written(tmp_path, workbook(rows), "t.xlsx")
    with pytest.raises(DataError, match=r"t\.xlsx.*formula"):
        open_table(tmp_path / "t.xlsx", OWN)
    label = computed((tmp_path / "t.xlsx").read_bytes(), "B2", "P")
    with pytest.raises(DataError, match=r"u\.xlsx, cell C3: a formula"):
        open_table(written(tmp_path, label, "u.xlsx"), OWN)
    assert [row for _, row in open_table(written(tmp_path, computed(label, "C3", ""), "v.xlsx"), OWN).rows] == [
        {"image": "a.png", "label": "P", "patient": "p"},
        {"image": "b.png", "label": "x", "patient": ""},
    ]


def test_a_formula_without_result_matters_in_the_columns_that_are_read(tmp_path):
    rows = [["as of", "=TODAY()"], ["image", "A", "B", "age"], ["a.png", 1, 0, "=2024-1950"], ["b.png", 0, 1, "=1+1"]]
    path = written(tmp_path, workbook(rows), "t.xlsx")
    columns = replace(OWN, mapped=("label=A|B",))
    assert [row["label"] for _, row in open_table(path, columns).rows] == ["A", "B"]
    for place in ("B", "D"):
        number = "BD".index(place) * 2 + 1
        changed = [[*row] for row in rows]
        changed[1][number] = "=UPPER(A1)"
        with pytest.raises(DataError, match=f"cell {place}2: a formula"):
            open_table(written(tmp_path, workbook(changed), "t.xlsx"), columns)
    with pytest.raises(DataError, match="cell A2: a formula"):
        open_table(written(tmp_path, workbook([[], ["=B1"]]), "t.xlsx"), columns)
    rows[3][2] = "=1-B4"
    with pytest.raises(DataError, match="cell C4: a formula"):
        open_table(written(tmp_path, workbook(rows), "t.xlsx"), columns)


def test_an_images_name_is_no_heading(tmp_path):
    with pytest.raises(
        DataError, match=r"line 1 has an image's name in place of headings; add a line with the headings"
    ):
        open_table(written(tmp_path, b"valid/p1/image1.png,1,x\nvalid/p2/image1.png,0,x\n"), OWN)
    table = open_table(written(tmp_path, b"valid/p1/image1.png,1\nvalid/p2/image1.png,0\n"), OWN)
    assert [row["label"] for _, row in table.rows] == ["1", "0"]


def test_the_sheet_with_the_columns_is_taken_and_two_of_them_are_asked_about(tmp_path):
    own = [["image", "label"], ["a.png", "x"]]
    path = written(tmp_path, workbook([["notes"], ["nothing"]], images=own), "t.xlsx")
    table = open_table(path, OWN)
    assert (table.rows[0][1], table.taken) == ({"image": "a.png", "label": "x"}, ("sheet 'images'",))
    both = written(tmp_path, workbook(own, Leeds=[["image", "label"], ["b.png", "y"]]), "u.xlsx")
    with pytest.raises(DataError, match="--sheet 'Sheet'"):
        open_table(both, OWN)
    chosen = Columns(OWN.required, OWN.optional, sheet="Leeds")
    assert open_table(both, chosen).rows[0][1]["image"] == "b.png"


def test_merged_cells_are_named(tmp_path):
    book = pytest.importorskip("openpyxl").Workbook()
    for row in (["image", "label"], ["a.png", "x"], ["b.png", None]):
        book.active.append(row)
    book.active.merge_cells("B2:B3")
    book.save(tmp_path / "t.xlsx")
    with pytest.raises(DataError, match="B2:B3"):
        open_table(tmp_path / "t.xlsx", OWN)


def test_frames_and_parquet_have_no_value_where_it_is_missing(tmp_path):
    frame = pd.DataFrame(
        {
            "image": ["a", "b"],
            "label": pd.array(["x", pd.NA], dtype="string"),
            "patient": [7.0, np.nan],
            "age": [40, 50],
        }
    )
    wanted = [
        {"image": "a", "label": "x", "patient": "7", "age": "40"},
        {"image": "b", "label": "", "patient": "", "age": "50"},
    ]
    frame.to_parquet(tmp_path / "t.parquet")
    assert [row for _, row in open_table(tmp_path / "t.parquet", OWN).rows] == wanted
    heading, *rows = frame_cells(frame.set_index("image"))
    assert [dict(zip(heading, row, strict=True)) for row in rows] == wanted


@pytest.mark.parametrize("value", [["a", "b"], {"a": 1}, np.array([1, 2])], ids=["list", "dict", "array"])
def test_a_cell_of_several_values_is_named(tmp_path, value):
    frame = pd.DataFrame({"image": ["1.png", "2.png"], "label": ["a", value]})
    with pytest.raises(DataError, match="the DataFrame, row 2, column label: expected one value, got the"):
        frame_cells(frame)
    if not isinstance(value, dict):
        frame["label"] = [["a"], list(value)] if isinstance(value, list) else [np.array([1]), value]
        frame.to_parquet(tmp_path / "t.parquet")
        with pytest.raises(DataError, match=r"t\.parquet row 1, column label: expected one value"):
            open_table(tmp_path / "t.parquet", Columns(("image", "label")))


def test_headings_are_mapped_and_the_refusal_says_what_to_type(tmp_path):
    path = written(tmp_path, "Diagnose;Fall;Bilddatei\nnävus;7;a.jpg\n".encode("cp1252"))
    with pytest.raises(DataError, match="--columns 'image=Bilddatei,label=Diagnose,patient=Fall'"):
        open_table(path, OWN)
    columns = Columns(OWN.required, OWN.optional, ("image=bilddatei", "label=DIAGNOSE", "patient=Fall"))
    assert open_table(path, columns).rows[0][1] == {"label": "nävus", "patient": "7", "image": "a.jpg"}


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("Path,Sex,Edema\nv/a.jpg,F,1\nv/b.jpg,M,0\n", "image=Path,label=HEADING"),
        ("Image.Index,Finding.Labels,Patient.Age\na.png,Mass,50\n", "image=Image.Index,label=Finding.Labels"),
        ("study_id,image_id,birads\ns1,i1,B1\n", "image=image_id,label=birads"),
        ("url,md5hash,label\nhttps://x/a.jpg,00ff,mel\n", "image=md5hash"),
        ("image_id,dx,patient_id,note\nI1,nv,P1,x\n", "image=image_id,label=dx,patient=patient_id"),
    ],
)
def test_only_what_may_be_a_column_is_proposed_for_it(tmp_path, text, columns):
    with pytest.raises(DataError, match=f"add --columns '{re.escape(columns)}'"):
        open_table(written(tmp_path, text.encode()), OWN)


def test_columns_of_ones_and_zeros_are_named_and_never_proposed_as_the_label(tmp_path):
    rows = b"image,note,male,smoker\na,mel,1,.0\nb,nv,0,-1.0\nc,nv,,1\n"
    with pytest.raises(DataError) as refused:
        open_table(written(tmp_path, rows), OWN)
    option, named = str(refused.value).split("--columns ")[1].split("; ")
    assert option == "'label=HEADING', with the heading that it is for HEADING"
    assert named == "it is label=male|smoker if these columns of 1 and 0 are the classes or findings"


def test_columns_of_ones_and_zeros_are_one_label(tmp_path):
    rows = b'image,Edema,Mass,age\na,1.0,.0,50\nb,true,1,60\nc,0,"0,0",70\n'
    columns = Columns(OWN.required, OWN.optional, ("label=mass|Edema",), task=FINDINGS)
    found = open_table(written(tmp_path, rows), columns).rows
    assert [row for _, row in found] == [
        {"image": "a", "label": "Edema", "age": "50"},
        {"image": "b", "label": "Mass|Edema", "age": "60"},
        {"image": "c", "label": "none", "age": "70"},
    ]
    unknown = written(tmp_path, b"image,Edema,Mass\na,1,-1\nb,,0\n")
    assert [row["label"] for _, row in open_table(unknown, columns).rows] == ["?Mass|Edema", "?Edema"]
    with pytest.raises(DataError, match=r"line 2, column Edema: expected 1 or 0, .*, got '2'"):
        open_table(written(tmp_path, b"image,Edema,Mass\na,2,1\n"), columns)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,1", "line 3, columns MEL|NV: expected 1 in one and 0 in the others, got MEL 1, NV 1; .* --task multi"),
        ("0,", "line 3, columns MEL|NV: .* got NV empty; .* --task multi"),
        ("-1,0", "line 3, columns MEL|NV: .* got MEL -1; .* --task multi"),
    ],
)
def test_of_exclusive_classes_one_is_marked(tmp_path, row, message):
    path = written(tmp_path, f"image,MEL,NV\na,0,1\nb,{row}\n".encode())
    with pytest.raises(DataError, match=message.replace("|", r"\|")):
        open_table(path, Columns(OWN.required, mapped=("label=MEL|NV",)))


def test_a_part_of_the_label_that_occurs_twice_is_named(tmp_path):
    path = written(tmp_path, b"image,MEL,NV,mel\na,1,0,0\n")
    with pytest.raises(DataError, match=r"t\.csv line 1, columns MEL\|NV: 'MEL' occurs twice"):
        open_table(path, Columns(OWN.required, mapped=("label=MEL|NV",)))


def test_lines_above_the_headings_are_no_rows(tmp_path):
    sheet = [["Clinic"], [], ["as of", "1 March"], ["image", "label", "age"], ["a.png", "x", 5]]
    path = written(tmp_path, workbook([["Contents"], ["of this file"]], cases=sheet), "t.xlsx")
    table = open_table(path, OWN)
    assert table.rows == ((5, {"image": "a.png", "label": "x", "age": "5"}),)
    assert table.taken == ("sheet 'cases'", "2 lines above the headings are no rows")
    with pytest.raises(DataError, match=r"line 2: .*found Bild, Diagnose"):
        open_table(written(tmp_path, b"Clinic;;\nBild;Diagnose;\na;x;\n"), OWN)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Export of our hospital, 1, 2, 3\nimage;label\na;x\nb;y\n", ["x", "y"]),
        ("Export, of our hospital\nBild;Diagnose\na;1,5 cm, melanoma\nb;nevus\n", ["1,5 cm, melanoma", "nevus"]),
        ("Bild;Diagnose\na;1,5,2\nb;1,5,2\n", ["1,5,2", "1,5,2"]),
    ],
)
def test_a_title_above_the_headings_hides_no_separator(tmp_path, text, wanted):
    columns = OWN if "image" in text else replace(OWN, mapped=("image=Bild", "label=Diagnose"))
    assert [row["label"] for _, row in open_table(written(tmp_path, text.encode()), columns).rows] == wanted


def test_a_second_line_of_headings_takes_no_rows_away(tmp_path):
    rows = "Bild,Diagnose\na,x\nb,y\nimage,label\nc,x\n"
    with pytest.raises(DataError, match=r"line 1 is above the headings on line 4 and has as many values; delete"):
        open_table(written(tmp_path, rows.encode()), OWN)


def test_one_column_may_be_two(tmp_path):
    columns = Columns(OWN.required, OWN.optional, ("image=id", "patient=id"))
    assert open_table(written(tmp_path, b"id,label\na,x\n"), columns).rows[0][1] == {
        "image": "a", "patient": "a", "label": "x",
    }  # fmt: skip


def archive(**parts):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as found:
        for name, content in parts.items():
            found.writestr(name, content)
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xd0\xcf\x11\xe0" + bytes(600), "old Excel file"),
        (archive(a="x"), "is an archive, not a table"),
        (b"PK\3\4 damaged", "damaged"),
        (b"\xef\xbb\xbf\r\n<html><table><tr><td>image", r"is HTML or XML; .*\.xlsx"),
        (b"<?xml version='1.0'?><Workbook>", "is HTML or XML"),
        (b"PAR1 damaged", "no readable Parquet file"),
        (b"image,label\n\x81,x\n", "UTF-8"),
        (b"\n\n", "is empty"),
        (b"image,label\n", "no rows"),
        (b"Image,image,label\na,b,c\n", "occurs twice"),
    ],
)
def test_what_is_no_table_is_named(tmp_path, content, message):
    with pytest.raises(DataError, match=f"t.csv.*{message}"):
        open_table(written(tmp_path, content), OWN)


@pytest.mark.parametrize(
    ("entry", "error", "message"),
    [
        ("label", ConfigurationError, "COLUMN=HEADING"),
        ("colour=x", ConfigurationError, "colour=x"),
        ("label=Diagnos", DataError, "label=Diagnose"),
    ],
)
def test_a_wrong_mapping_is_named(tmp_path, entry, error, message):
    path = written(tmp_path, b"image,Diagnose\na,x\n")
    with pytest.raises(error, match=message):
        open_table(path, Columns(OWN.required, OWN.optional, (entry,)))


def test_a_parquet_file_that_repeats_one_text_is_refused_before_it_is_long(tmp_path):
    """622 KiB of a dictionary are 6 GiB of text."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 600_000, pa.int32()), pa.array(["A" * 1000]))
    parquet.write_table(pa.table({"image": text, "label": text}), tmp_path / "t.parquet", compression="zstd")
    assert (tmp_path / "t.parquet").stat().st_size < 2**20
    with pytest.raises(DataError, match=r"t\.parquet expands to more than"):
        open_table(tmp_path / "t.parquet", OWN)


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.int64())], ids=str)
def test_a_parquet_file_of_very_many_values_is_refused_by_its_description(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(tables, "MAX_CELLS", 1000)
    values = [0] * 2000 if kind == pa.int64() else [[0] * 2000]
    parquet.write_table(pa.table({"image": pa.array(values, kind)}), tmp_path / "t.parquet")
    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", lambda *arguments: pytest.fail("read"))
    with pytest.raises(DataError, match="expands to more than 1000 values"):
        open_table(tmp_path / "t.parquet", OWN)


def test_a_table_of_very_many_columns_is_refused(tmp_path):
    names = ["image", "label", *map(str, range(5000))]
    pd.DataFrame([["a.png", "x", *range(5000)]], columns=names).to_parquet(tmp_path / "t.parquet")
    for path in (written(tmp_path, ",".join(names).encode()), tmp_path / "t.parquet"):
        with pytest.raises(DataError, match="has 5002 columns, at most 4096"):
            open_table(path, OWN)
