"""No text that we write is a formula to a spreadsheet, and what we read is what was written."""

import ast
import csv
import io
from pathlib import Path

import numpy as np
import pytest

import grandrounds
from grandrounds.csv_files import csv_bytes, csv_cells, write_csv
from grandrounds.data.manifest import Record, read_manifest, write_manifest
from grandrounds.data.tables import Columns, open_table
from grandrounds.protocol.tasks import SINGLE
from grandrounds.reporting.runs import read_predictions

FORMULAS = ["@SUM(1+1)", "+cmd|' /C calc'!A0", "=1", "-a.png", "-inf", "\t=1", "\r=1", "\n=1", "\uff1d1", "'=1", "''=1"]
ODD = [*FORMULAS, "'", "nevus", "'quoted'", "a\nb", "a\r=1", ""]
NUMBERS = [-0.5, "-0.500000", 7, "+1e3", "-.5", np.float32(-2), "-1"]


def test_no_text_is_a_formula_and_numbers_stay():
    content = csv_bytes(ODD, [ODD, NUMBERS]).decode()
    first, second, numbers = csv.reader(io.StringIO(content, newline=""))
    assert first == second
    assert first == [f"'{text}" for text in FORMULAS] + ODD[len(FORMULAS) :]
    assert numbers == [str(number) for number in NUMBERS]
    assert csv_cells(first) == ODD


def test_a_path_is_guarded_like_its_text():
    assert csv_bytes(["image"], [[Path("=a.png")]]) == b"image\n'=a.png\n"


@pytest.mark.parametrize("text", [text for text in ODD if text and text == text.strip()])
def test_a_table_that_is_read_has_the_text_again(tmp_path, text):
    write_csv(tmp_path / "t.csv", ["image", text], [[text, text]])
    ((_, row),) = open_table(tmp_path / "t.csv", Columns(("image",))).rows
    assert row == {"image": text, text: text}


def test_a_manifest_keeps_names_that_are_guarded(tmp_path):
    records = (Record("-a.png", "+", "train", "@7", "=l", "-site", more=(("=age", "-5"),)), Record("b.png", "-x"))
    write_manifest(records, tmp_path / "manifest.csv")
    assert "'-a.png,'+,train,'@7,'=l,'-site,1,-5" in (tmp_path / "manifest.csv").read_text()
    found = read_manifest(tmp_path / "manifest.csv")
    assert [(one.image, one.label, one.patient) for one in found] == [("-a.png", "+", "@7"), ("b.png", "-x", "")]


def test_predictions_of_classes_called_plus_and_minus_are_read(tmp_path):
    classes = ("+", "-")
    header = ["image", *SINGLE.prediction_header(classes), "case"]
    cells = SINGLE.prediction_cells(1, [0.25, 0.75], 1, classes)
    write_csv(tmp_path / "predictions.csv", header, [["-a.png", *cells, "0"]])
    assert "'-a.png,'-,'-,0.25" in (tmp_path / "predictions.csv").read_text()
    (cases,) = read_predictions(tmp_path / "predictions.csv", SINGLE, classes)
    assert cases.labels.tolist() == [1]
    assert cases.probabilities.tolist() == [[0.25, 0.75]]


def test_tables_are_written_in_one_place():
    """A writer of its own would let a formula pass."""
    writers = {"writer", "DictWriter", "to_csv"}
    found = {
        path.name
        for path in Path(grandrounds.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in writers
    }
    assert found == {"csv_files.py"}
