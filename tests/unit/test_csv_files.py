"""No text that we write is a formula to a spreadsheet, and what we read is what was written."""

import ast
import csv
import io
from pathlib import Path

import grandrounds
from grandrounds.csv_files import csv_bytes, csv_cells

ODD = ["@SUM(1+1)", "+cmd|' /C calc'!A0", "=1", "-a.png", "\t=1", "'=1", "''=1", "'", "nevus", "'quoted'", "a\nb", ""]


def test_no_text_is_a_formula_and_numbers_stay():
    content = csv_bytes(ODD, [ODD, [-0.5, "-0.500000", 7, "+1e3"]]).decode()
    first, second, numbers = csv.reader(io.StringIO(content, newline=""))
    assert first == second
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in first)
    assert numbers == ["-0.5", "-0.500000", "7", "+1e3"]
    assert csv_cells(first) == ODD


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
