"""Each way of writing a table, by an example of it, has the rows of our own form; words are those of six languages."""

import json

import pytest

from grandrounds.data import words as words_module
from grandrounds.data.conventions import CONVENTIONS, ERRORS, FOOTERS, unused
from grandrounds.data.tables import Columns, open_table
from grandrounds.data.words import as_boolean, headings, split_named, word_key, words
from grandrounds.errors import DataError
from grandrounds.protocol.tasks import FINDINGS

OWN = Columns(("image", "label"), ("patient", "lesion", "split", "site"), conventions=CONVENTIONS)
ROWS = "image;label;age\na.png;x;50\nb.png;y;60\nc.png;x;70\nd.png;y;80\n"


def rows_of(tmp_path, text, columns=OWN):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    return open_table(tmp_path / "t.csv", columns)


@pytest.mark.parametrize(
    "footer",
    ["Summe;4;260\n", "Total: 4;;\n", ";4;260\n", ";;65,0\n", "Stand: 3. Mai\n", "Quelle: www.klinik.de;;\n",
     ";Summe;260\n", ";;\nExport of 2024\nend\n", "Durchschnitt;;65\n", "gez. Dr. Muster;;\n"],
)  # fmt: skip
def test_footers_are_no_rows(tmp_path, footer):
    table = rows_of(tmp_path, ROWS + footer)
    assert [row["image"] for _, row in table.rows] == ["a.png", "b.png", "c.png", "d.png"]
    assert set(table.left_out.values()) == {FOOTERS}


@pytest.mark.parametrize("last", ["e.png;;\n", "e.png;z;\n", ";x;90\n", "e;x;90\n", "e.png;;90\n"])
def test_what_may_be_a_row_is_none(tmp_path, last):
    table = rows_of(tmp_path, ROWS + last)
    assert (len(table.rows), table.left_out) == (5, {})


def test_a_line_that_is_shorter_in_the_middle_is_still_refused(tmp_path):
    with pytest.raises(DataError, match="line 3 has 1 values, expected 3"):
        rows_of(tmp_path, "image;label;age\na.png;x;50\nTotal\nb.png;y;60\n")


@pytest.mark.parametrize("value", ["#REF!", "#VALUE!", "#DIV/0!", "#NAME?", "#BEZUG!", "#¿NOMBRE?", "#RIF!", "Err:502"])
def test_error_values_are_no_classes_and_no_patients(tmp_path, value):
    table = rows_of(tmp_path, f"image,label,patient\na.png,{value},1\nb.png,y,{value}\n{value},y,1\n")
    assert [row for _, row in table.rows] == [{"image": "b.png", "label": "y", "patient": ""}]
    assert table.left_out == {2: ERRORS, 4: ERRORS}


@pytest.mark.parametrize(
    ("written", "label"),
    [
        ("['mass', 'effusion']", "mass|effusion"), ('["mass"]', "mass"), ("[mass, effusion]", "mass|effusion"),
        ("('mass', 'mass')", "mass"), ("{'effusion', 'mass'}", "effusion|mass"), ("['mass' 'effusion']", "mass|effusion"),
        ("[]", "none"), ("mass (left)", "mass (left)"), ("(mass)", "(mass)"), ("grade [2]", "grade [2]"),
    ],
)  # fmt: skip
def test_lists_as_a_program_prints_them_are_labels(tmp_path, written, label):
    quoted = written.replace('"', '""')
    table = rows_of(
        tmp_path, f'image,label\na.png,"{quoted}"\n', Columns(OWN.required, conventions=CONVENTIONS, task=FINDINGS)
    )
    assert table.rows[0][1]["label"] == label
    if label == "mass|effusion":
        with pytest.raises(DataError, match=r"line 2, column label.*--task multi"):
            rows_of(tmp_path, f'image,label\na.png,"{quoted}"\n')


def test_a_class_without_a_one_is_named(tmp_path):
    columns = Columns(OWN.required, mapped=("label=MEL|NV|UNK",), conventions=CONVENTIONS)
    table = rows_of(tmp_path, "image,MEL,NV,UNK\na,1.0,0.0,0.0\nb,0,1,0\n", columns)
    assert [row["label"] for _, row in table.rows] == ["MEL", "NV"]
    assert "without a 1: UNK" in table.taken


def test_columns_without_a_meaning_are_named_but_age_sex_and_device():
    assert unused(["image", "Alter", "sexo", "Scanner", "Notiz"], ["image"]) == ["Notiz"]


def test_a_manifest_follows_no_convention(tmp_path):
    with pytest.raises(DataError, match="'patient' is missing"):
        rows_of(tmp_path, "image,label,patient_id\na,x,1\n", Columns(("image", "label", "patient")))


def test_every_heading_belongs_to_one_column():
    of_key = {}
    for column in ("image", "patient", "lesion", "site", "study", "series", "age", "sex", "device"):
        for key in headings(column):
            assert of_key.setdefault(key, column) in (column, "study"), key


def test_words_are_of_six_languages_and_match_however_they_are_written():
    content = json.loads(words_module.Path(words_module.__file__).with_name("words.json").read_text(encoding="utf-8"))
    assert all({*own} == {"en", "de", "fr", "es", "it", "nl"} for own in content["headings"].values())
    assert word_key("Läsions_ID") == word_key("LASIONS-id") == word_key("läsionsid")
    assert word_key("no finding") in words("no_finding")
    assert [as_boolean(text) for text in ("TRUE", "Nein", "sí", "0", "maybe")] == ["true", "false", "true", "false", ""]
    assert [as_boolean(text) for text in ("1.0", "-1", "1+", "0%", "-0")] == ["true", "", "", "", ""]
    assert [split_named(text) for text in ("Train", "test_images", "VALIDATION set", "dev", "testis", "", "set")] == [
        "train", "test", "val", "val", "", "", "",
    ]  # fmt: skip
