"""Tables as people have them: CSV with any separator and encoding, .xlsx, Parquet and DataFrames, as rows of text.

What a cell shows is data: a formula is never evaluated, and a name keeps its characters (``007`` stays ``007``). What was
assumed about a file (separator, encoding, decimal commas) is part of the result, so that commands can say it.
"""

from __future__ import annotations

import csv
import difflib
import io
import itertools
import math
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from grandrounds.checks import reraised_as
from grandrounds.csv_files import Row, csv_cells
from grandrounds.data.keys import canonical, comparison_key
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS: Mapping[str, str] = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
TABLE_SUFFIXES = (".csv", ".tsv", ".tab", ".txt", ".xlsx", ".xlsm", ".xls", ".ods", ".parquet", ".pq")
"""How files that are taken for tables are called; what they are is seen from their bytes."""
MAX_EXPANDED = 2**30
"""Bytes of the parts of an .xlsx file, which is an archive."""

_DECIMAL = re.compile(r"[+-]?[0-9]+(?:[.,][0-9]+)?")
_FILE = re.compile(r"^(?!.*://).*\.[a-z][a-z0-9]{1,4}$")
_HINT = re.compile(r"sep=(.)\r?\n", re.IGNORECASE)
_WORDS: Mapping[str, tuple[str, ...]] = {
    "image": ("bild", "datei", "dateiname", "file", "filename", "image id", "path", "pfad", "bilddatei", "picture",
              "image index", "image name", "id code", "md5hash"),
    "label": ("diagnose", "diagnosis", "class", "klasse", "dx", "target", "befund", "finding", "findings",
              "finding labels", "pathology", "level", "grade"),
    "patient": ("fall", "patientid", "patientennummer", "patient id", "case", "pid"),
    "lesion": ("lesion id",),
    "split": ("set", "partition"),
}  # fmt: skip
"""Usual headings in the form of :func:`comparison_key`; a refusal proposes them, nothing takes them by itself."""
_ZEROS = re.compile(r"(?<=\d)[.,]0*$")
"""What spreadsheets write after a whole number."""
_MARKS: Mapping[str, str | None] = {
    "1": "", "true": "", "0": None, ".0": None, ",0": None, "false": None, "-1": "?", "": "?",
}  # fmt: skip
"""Values of a column that is a class or finding of its own, and what precedes its name in the label."""
_ABOVE = 20
"""Lines among which the headings are looked for."""
_SHOWN = 1000
"""Lines whose values show what a column without a known heading may be."""


@dataclass(frozen=True)
class Table:
    """Rows of text with known columns.

    Attributes:
        source: the file, for errors.
        rows: of all lines that are not blank; each has the required columns.
        taken: what was assumed in reading them, one phrase each; empty for UTF-8 with commas.
    """

    source: str
    rows: tuple[Row, ...]
    taken: tuple[str, ...] = ()


class _Raw(NamedTuple):
    """A table before its headings are matched: lines with their cells, the heading first."""

    lines: list[tuple[int, list[str]]]
    taken: tuple[str, ...]
    decimal_commas: bool


@dataclass(frozen=True)
class Columns:
    """Which columns a table has.

    Attributes:
        required: must be there.
        optional: are known by these names in any letter case; further ones keep their heading.
        mapped: ``COLUMN=HEADING``, as on the command line.
        sheet: of a workbook; may be empty where one sheet alone has the required columns.
        published: whether the headings are fixed, so that no option maps them.
        task: what a label is.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    mapped: tuple[str, ...] = ()
    sheet: str = ""
    published: bool = False
    task: Task = SINGLE

    def headings(self) -> dict[str, str]:
        """Headings by the column that they are.

        Raises:
            ConfigurationError: if an entry is not ``COLUMN=HEADING`` with a known column.
        """
        headings = {}
        for entry in self.mapped:
            column, equals, heading = (part.strip() for part in entry.partition("="))
            if not equals or not heading or column not in (*self.required, *self.optional):
                known = ", ".join((*self.required, *self.optional))
                raise ConfigurationError(f"columns: expected COLUMN=HEADING with COLUMN one of {known}; got {entry!r}")
            headings[column] = heading
        return headings

    def known_headings(self) -> set[str]:
        """The headings of all columns that have a meaning, and the parts of ``A|B``, casefolded."""
        mapped = self.headings()
        own = [mapped.get(name, name) for name in (*self.required, *self.optional)]
        return {part for heading in own for part in (heading.casefold(), *_parts(heading))}

    def line_of_headings(self, lines: Sequence[Sequence[str]]) -> int:
        """Which of the lines has the headings: the first with all required ones, else the first with several cells."""
        mapped = self.headings()
        wanted = {part for name in self.required for part in _parts(mapped.get(name, name))}
        cells = [{canonical(cell).casefold() for cell in line} - {""} for line in lines[:_ABOVE]]
        fitting = (number for number, own in enumerate(cells) if wanted <= own)
        several = (number for number, own in enumerate(cells) if len(own) >= min(2, len(self.required)))
        return next(fitting, next(several, 0))


def open_table(path: Path, columns: Columns) -> Table:
    """Read a table; what it is, is seen from its bytes.

    Values lose the blanks around them; blank lines are skipped; headings match in any letter case.

    Raises:
        DataError: if it cannot be read, is empty, a column is missing or occurs twice, or a row has more or fewer values
            than the heading; file, line and headings are named.
        ConfigurationError: if a library is missing, or columns are mapped in a wrong way.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    if data.startswith(b"PAR1"):
        raw = _parquet(data, path)
    elif data.startswith(b"PK\3\4"):
        raw = _workbook(data, path, columns)
    elif data.startswith(b"\xd0\xcf\x11\xe0"):
        raise DataError(
            f"{path} is an old Excel file, or has a password; save it as .xlsx without one, or as CSV UTF-8"
        )
    elif path.suffix.casefold() == ".parquet":
        raise DataError(f"{path} is no readable Parquet file: it does not begin as one")
    else:
        raw = _separated(data, path, columns)
    return _table(str(path), raw, columns)


def frame_cells(frame: pd.DataFrame) -> list[list[str]]:
    """Heading and rows of a pandas DataFrame as text; an index with a name is a column, and missing values are empty."""
    whole = frame.reset_index() if any(frame.index.names) else frame
    names = [str(name) for name in whole.columns]
    rows = whole.itertuples(index=False, name=None)
    return [names, *(_typed(names, row, f"the DataFrame, row {number}") for number, row in enumerate(rows, 1))]


def _typed(names: Sequence[str], values: Iterable[Any], where: str) -> list[str]:
    """The cells of a typed row as text.

    Raises:
        DataError: if one holds several values.
    """
    cells = list(values)
    for name, value in zip(names, cells, strict=True):
        if isinstance(value, list | tuple | set | dict) or getattr(value, "ndim", False):
            shown = f"{type(value).__name__} {str(value)[:40]}"
            raise DataError(f"{where}, column {name}: expected one value, got the {shown}; write it as one text")
    return [_cell(value) for value in cells]


def _numbered(lines: Iterable[list[str]], first: int) -> list[tuple[int, list[str]]]:
    return [(number, line) for number, line in enumerate(lines, first) if number == first or any(line)]


def _separated(data: bytes, path: Path, columns: Columns) -> _Raw:
    text, encoding = _decoded(data, path)
    hint = _HINT.match(text)
    start = hint.end() if hint else 0
    separator = hint[1] if hint else _separator(text, columns)
    reader = csv.reader(io.StringIO(text[start:], newline=""), delimiter=separator, strict=True)
    lines = list(_non_blank(reader, path, 1 if hint else 0))
    separated = "" if separator == "," else f"separated by {SEPARATORS.get(separator, separator)}"
    return _Raw(lines, tuple(filter(None, (separated, encoding))), separator != ",")


def _decoded(data: bytes, path: Path) -> tuple[str, str]:
    """The text, and its encoding where that is not UTF-8."""
    even, odd = data[:400:2].count(0), data[1:400:2].count(0)
    wide = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
    if not wide and max(even, odd) > len(data[:400]) // 5:
        wide = "utf-16-be" if even > odd else "utf-16-le"
    for encoding, name in ((wide, "encoded in UTF-16"), ("utf-8-sig", ""), ("cp1252", "encoded in Windows-1252")):
        if not encoding or (wide and encoding != wide):
            continue
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return text, name
    raise DataError(
        f"{path} is no text in UTF-8, UTF-16 or Windows-1252; save it with UTF-8 encoding (Excel: Save as > CSV UTF-8)"
    )


def _separator(text: str, columns: Columns) -> str:
    """The separator by which a line has most known headings, then most lines have as many cells; else the comma."""
    lines = list(itertools.islice(filter(str.strip, text.splitlines()), _ABOVE))
    wanted = columns.known_headings()

    def quality(separator: str) -> tuple[int, int, int]:
        try:
            rows = list(csv.reader(lines, delimiter=separator))
        except csv.Error:
            return 0, 0, 0
        known = [len({canonical(cell).casefold() for cell in row} & wanted) for row in rows]
        cells, agreeing = next(iter(Counter(len(row) for row in rows if len(row) > 1).most_common(1)), (0, 0))
        return max(known, default=0), agreeing, cells

    return max(SEPARATORS, key=quality)


def _non_blank(reader: Iterator[list[str]], path: Path, before: int) -> Iterator[tuple[int, list[str]]]:
    # csv counts lines on the reader object, which its type does not declare.
    line = before
    try:
        for values in reader:
            line = before + int(getattr(reader, "line_num", line + 1))
            if any(value.strip() for value in values):
                yield line, csv_cells(values)
    except csv.Error as error:
        raise DataError(f"{path} line {line + 1} is not valid CSV: {error}") from error


def _parquet(data: bytes, path: Path) -> _Raw:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ConfigurationError(
            f"{path}: Parquet needs pyarrow; install it: pip install 'grandrounds[parquet]', or save the table as CSV"
        ) from error
    try:
        content = parquet.read_table(io.BytesIO(data))
        rows = content.to_pylist()
    except Exception as error:  # a damaged file fails in many ways
        raise DataError(f"{path} is no readable Parquet file: {' '.join(str(error).split())[:200]}") from error
    names = list(content.column_names)
    lines = [_typed(names, [row[name] for name in names], f"{path} row {number}") for number, row in enumerate(rows, 1)]
    return _Raw(_numbered([names, *lines], 0), (), False)


def _workbook(data: bytes, path: Path, columns: Columns) -> _Raw:
    _require_small(data, path)
    shown, written = _load_workbooks(data, path)
    name = _sheet({sheet.title: _first_cells(sheet, columns) for sheet in shown.worksheets}, path, columns)
    sheet = shown[name]
    lines, without_result = _sheet_lines(sheet, written[name])
    number, headings = lines[columns.line_of_headings([cells for _, cells in lines])] if lines else (1, [])
    known = columns.known_headings()
    used = {column for column, heading in enumerate(headings, 1) if canonical(heading).casefold() in known}
    needed = [cell for cell in without_result if cell.row == number or (cell.row > number and cell.column in used)]
    _require_results(needed if lines else without_result, path)
    _require_unmerged(sheet, number, path)
    hidden = sum(bool(sheet.row_dimensions[line].hidden) for line, _ in lines)
    taken = [f"sheet {name!r}"] if len(shown.worksheets) > 1 else []
    if hidden:
        taken.append(f"{hidden} hidden rows are read too")
    return _Raw(lines, tuple(taken), True)


def _sheet_lines(sheet: Any, formulas: Any) -> tuple[list[tuple[int, list[str]]], list[Any]]:
    """The lines of a sheet that are not blank, and the cells with a formula without a result."""
    lines, without_result = [], []
    for row, written in zip(sheet.iter_rows(), formulas.iter_rows(), strict=True):
        without_result += [cell for value, cell in zip(row, written, strict=True) if _lacks_result(value, cell)]
        cells = [_shown(cell.value, cell.number_format) for cell in row]
        if any(cells):
            lines.append((row[0].row, cells))
    return lines, without_result


def _load_workbooks(data: bytes, path: Path) -> tuple[Any, Any]:
    """The workbook with the results of its formulas, and with the formulas."""
    try:
        import openpyxl
    except ImportError as error:
        raise ConfigurationError(
            f"{path}: .xlsx needs openpyxl; install it: pip install 'grandrounds[tables]', or save the table as CSV UTF-8"
        ) from error
    try:
        return openpyxl.load_workbook(io.BytesIO(data), data_only=True), openpyxl.load_workbook(io.BytesIO(data))
    except Exception as error:  # a damaged file fails in many ways
        raise DataError(f"{path} is no readable .xlsx file: {' '.join(str(error).split())[:200]}") from error


def _lacks_result(value: Any, formula: Any) -> bool:
    """Whether a cell is a formula whose result was not saved; of an empty text as the result, openpyxl keeps the type."""
    return value.value is None and formula.data_type == "f" and value.data_type != "str"


def _require_results(without_result: Sequence[Any], path: Path) -> None:
    if without_result:
        raise DataError(
            f"{path}, cell {without_result[0].coordinate}: a formula whose result is not in the file; open and save it in "
            "Excel, or put values in place of the formulas"
        )


def _require_small(data: bytes, path: Path) -> None:
    with reraised_as(DataError, zipfile.BadZipFile, where=f"{path} is a damaged .xlsx file"):
        parts = zipfile.ZipFile(io.BytesIO(data)).infolist()
    if not any(part.filename.startswith("xl/") for part in parts):
        raise DataError(f"{path} is an archive, not a table; expected CSV, .xlsx or Parquet")
    if sum(part.file_size for part in parts) > MAX_EXPANDED:
        raise DataError(
            f"{path} expands to more than {MAX_EXPANDED >> 20} MiB; save the sheet of the images as CSV UTF-8"
        )


def _first_cells(sheet: Any, columns: Columns) -> list[str]:
    rows = ([_shown(cell.value, cell.number_format) for cell in row] for row in sheet.iter_rows())
    lines = list(itertools.islice(filter(any, rows), _ABOVE))
    return lines[columns.line_of_headings(lines)] if lines else []


def _sheet(headings: Mapping[str, list[str]], path: Path, columns: Columns) -> str:
    """The sheet that is asked for, else the only one with the required columns, else the first with any row."""
    if columns.sheet:
        if columns.sheet not in headings:
            raise DataError(f"{path} has no sheet {columns.sheet!r}; it has {', '.join(headings)}")
        return columns.sheet
    mapped = columns.headings()
    wanted = {part for name in columns.required for part in _parts(mapped.get(name, name))}
    filled = sorted(filter(headings.get, headings), key=lambda name: sum(map(bool, headings[name])) < 2)
    fitting = [name for name in filled if wanted <= {canonical(cell).casefold() for cell in headings[name]}]
    if len(fitting) > 1:
        raise DataError(
            f"{path}: the sheets {', '.join(fitting)} all list images; choose one by --sheet '{fitting[0]}', or put all "
            "rows into one sheet"
        )
    return (fitting or filled or list(headings))[0]


def _require_unmerged(sheet: Any, heading: int, path: Path) -> None:
    for merged in sheet.merged_cells.ranges:
        if merged.max_row > heading:
            raise DataError(
                f"{path}, cells {merged.coord} are merged, so only the first of their rows has the value; undo the merge "
                "and fill in every row"
            )


def _shown(value: Any, number_format: str) -> str:
    """A cell of a sheet; a number whose format is zeros has its leading zeros, as on the screen."""
    text = _cell(value)
    zeros = re.fullmatch("0+", number_format or "")
    return text.zfill(len(number_format)) if zeros and text.isdecimal() else text


def _cell(value: Any) -> str:
    """A typed value as text: nothing for null and NaN, ``7`` for 7.0, dates as ISO 8601."""
    if value is None or str(value) in ("<NA>", "NaT"):
        return ""
    if isinstance(value, datetime):
        return value.date().isoformat() if value.time() == time() else value.isoformat(" ")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):  # also of numpy
        if math.isnan(value):
            return ""
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(float(value))
    return str(value).strip()


def _table(source: str, raw: _Raw, columns: Columns) -> Table:
    if not raw.lines or not any(cell.strip() for cell in raw.lines[0][1]):
        raise DataError(f"{source} is empty; expected a header with the columns {', '.join(columns.required)}")
    above = columns.line_of_headings([cells for _, cells in raw.lines])
    number, first = raw.lines[above]
    for line, cells in raw.lines[:above]:
        if sum(map(bool, map(canonical, cells))) >= sum(map(bool, map(canonical, first))):
            raise DataError(
                f"{source} line {line} is above the headings on line {number} and has as many values; delete the lines "
                f"above line {number}, or line {number} if the headings are above it"
            )
    (number, first), *lines = _with_label(raw.lines[above:], columns, source)
    headings = [canonical(cell) for cell in first]
    names = _names(headings, lines, columns, f"{source} line {number}" if number else source)
    rows = [(line, _row(names, values, f"{source} line {line}")) for line, values in lines]
    if not rows:
        raise DataError(f"{source} has a header but no rows; add one row per image")
    changed = _with_points(rows, (*columns.required, *columns.optional), raw.decimal_commas)
    commas = [f"decimal commas in {', '.join(changed)}"] if changed else []
    mapped = [f"{column} is {heading!r}" for column, heading in columns.headings().items()]
    over = [f"{above} lines above the headings are no rows"] if above else []
    return Table(source, tuple(rows), (*raw.taken, *over, *commas, *mapped))


def _parts(heading: str) -> list[str]:
    return [canonical(part).casefold() for part in heading.split("|")]


def _with_label(lines: list[tuple[int, list[str]]], columns: Columns, source: str) -> list[tuple[int, list[str]]]:
    """The lines, with one column in place of those of ``label=A|B``: the names of the columns that are 1, or ``none``.

    Raises:
        DataError: if such a heading occurs twice, a value is neither 1 nor 0, or the task has no label of these values.
    """
    (first, cells), *rows = lines
    headings = [canonical(cell) for cell in cells]
    label = columns.headings().get("label", "")
    indices = _label_columns(label, headings, f"{source} line {first}, columns {label}")
    if not indices:
        return lines
    kept = [index for index in range(len(cells)) if index not in indices]
    merged = [(first, [label, *(headings[index] for index in kept)])]
    for line, values in rows:
        marks = [(headings[index], values[index].strip() if index < len(values) else "") for index in indices]
        own = _joined_label(marks, columns.task, headings, label, f"{source} line {line}")
        merged.append((line, [own, *(values[index] for index in kept if index < len(values)), *values[len(cells) :]]))
    return merged


def _label_columns(label: str, headings: Sequence[str], where: str) -> list[int]:
    """Where the columns of ``label=A|B`` are; none if there is one column of that name, or not all of these."""
    folded = [heading.casefold() for heading in headings]
    parts = _parts(label)
    if len(parts) == 1 or label.casefold() in folded or not set(parts) <= set(folded):
        return []
    for part in parts:
        if folded.count(part) > 1:
            raise DataError(f"{where}: {headings[folded.index(part)]!r} occurs twice; rename or delete one")
    return [folded.index(part) for part in parts]


def _joined_label(
    values: Sequence[tuple[str, str]], task: Task, headings: Sequence[str], label: str, where: str
) -> str:
    """The names of the columns that are 1, or unknown with a ``?``, joined by ``|``; ``none`` if all are 0."""
    marks = [(_mark(value, f"{where}, column {name}"), name, value) for name, value in values]
    present = [(f"{mark}{name}", f"{name} {value or 'empty'}") for mark, name, value in marks if mark is not None]
    joined = "|".join(name for name, _ in present) or "none"
    if present and not set(task.mentioned_in(joined)) <= set(headings):
        cells = ", ".join(cell for _, cell in present)
        raise DataError(
            f"{where}, columns {label}: expected 1 in one and 0 in the others, got {cells}; "
            "for findings, which may be several or not known, add --task multi (simulate: --set problem.task=multi)"
        )
    return joined


def _mark(value: str, where: str) -> str | None:
    """What precedes the column's name in the label; None if the class or finding is absent."""
    text = _ZEROS.sub("", value.casefold())
    if text not in _MARKS:
        raise DataError(f"{where}: expected 1 or 0, or -1 or nothing for a finding that is not known, got {value!r}")
    return _MARKS[text]


def _names(
    headings: Sequence[str], lines: Sequence[tuple[int, list[str]]], columns: Columns, where: str
) -> list[tuple[str, ...]]:
    """The columns that each heading is: several if they are mapped to the same one; none without a heading."""
    mapped = columns.headings()
    _require_mapped(mapped, headings, where)
    known = {name.casefold(): name for name in (*columns.required, *columns.optional)}
    names = []
    for heading in headings:
        folded = heading.casefold()
        own = tuple(column for column, wanted in mapped.items() if wanted.casefold() == folded)
        direct = known.get(folded, heading)
        names.append(own or ((direct,) if heading and direct not in mapped else ()))
    flat = list(itertools.chain.from_iterable(names))
    for name, count in Counter(flat).items():
        if count > 1:
            raise DataError(f"{where}: column {name!r} occurs twice; keep one")
    missing = [name for name in columns.required if name not in flat]
    if missing:
        raise DataError(_missing(missing, headings, lines, columns, where))
    return names


def _require_mapped(mapped: Mapping[str, str], headings: Sequence[str], where: str) -> None:
    """Raise ``DataError`` for a column that is mapped to a heading which the table does not have."""
    folded = [heading.casefold() for heading in headings]
    for column, heading in mapped.items():
        if heading.casefold() not in folded:
            near = difflib.get_close_matches(heading.casefold(), folded, n=1)
            hint = f"; did you mean {column}={headings[folded.index(near[0])]}?" if near else ""
            raise DataError(f"{where}: there is no column {heading!r} for {column}{hint} (found {', '.join(headings)})")


def _missing(
    missing: Sequence[str],
    headings: Sequence[str],
    lines: Sequence[tuple[int, list[str]]],
    columns: Columns,
    where: str,
) -> str:
    """What to type where required columns are missing."""
    taken = {name.casefold() for name in (*columns.headings().values(), *columns.required, *columns.optional)}
    free = [heading for heading in headings if heading and heading.casefold() not in taken]
    values = {heading: _values(heading, headings, lines) for heading in free}
    if any(_is_image_name(heading, values[heading]) for heading in free):
        return (
            f"{where} has an image's name in place of headings; add a line with the headings above it: image,label,..."
        )
    if columns.published:
        remedy = "; correct the heading, or make a manifest of the table by grandrounds import"
    else:
        remedy = _proposed_option(missing, values, columns)
    named = ", ".join(repr(name) for name in missing)
    return f"{where}: column {named} is missing; expected {', '.join(columns.required)}, found {', '.join(headings)}{remedy}"


def _is_image_name(heading: str, values: Sequence[str]) -> bool:
    """Whether a heading is a file's name that ends as one of the values below it."""
    name = heading.casefold()
    return bool(_FILE.search(name)) and name.rpartition(".")[2] in {value.rpartition(".")[2] for value in values}


def _proposed_option(missing: Sequence[str], values: Mapping[str, Sequence[str]], columns: Columns) -> str:
    """The option ``--columns`` with the likeliest heading for each column; ``values`` are those of free headings."""
    free = list(values)
    proposed, hint = [*columns.mapped], ""
    for name in (*missing, *(column for column in columns.optional if column not in columns.headings())):
        best = _likeliest(name, free, values)
        marks = [heading for heading in free if name == "label" and _are_marks(values[heading])]
        if len(marks) > 1 and not best:
            hint = f"; it is label={'|'.join(marks)} if these columns of 1 and 0 are the classes or findings"
        if best or name in missing:
            proposed.append(f"{name}={best or 'HEADING'}")
            free = [heading for heading in free if heading != best]
    option = f"; if these are other names for them, add --columns '{','.join(proposed)}'"
    explanation = ", with the heading that it is for HEADING" if "=HEADING" in option else ""
    return f"{option}{explanation}{hint}"


def _likeliest(column: str, free: Sequence[str], values: Mapping[str, Sequence[str]]) -> str:
    """The first heading above names of files, for images, or else the first usual one; empty if there is none."""
    files = [heading for heading in free if column == "image" and all(map(_FILE.search, values[heading] or [""]))]
    usual = [heading for heading in free if comparison_key(heading) in _WORDS.get(column, ())]
    return next(iter([*files, *usual]), "")


def _are_marks(values: Sequence[str]) -> bool:
    return bool(set(values) - {""}) and set(values) <= set(_MARKS)


def _values(heading: str, headings: Sequence[str], lines: Sequence[tuple[int, list[str]]]) -> list[str]:
    """The first values of a column; of whole numbers without a decimal point."""
    index = headings.index(heading)
    shown = (values[index].strip() for _, values in lines[:_SHOWN] if index < len(values))
    return [_ZEROS.sub("", value.casefold()) for value in shown]


def _row(names: Sequence[tuple[str, ...]], values: Sequence[str], where: str) -> dict[str, str]:
    filled = len(values) - next((n for n, value in enumerate(reversed(values)) if value.strip()), len(values))
    if len(values) < len(names) or filled > len(names):
        raise DataError(f"{where} has {len(values)} values, expected {len(names)} as in the header")
    pairs = zip(names, values[: len(names)], strict=True)
    return {name: value.strip() for own, value in pairs for name in own}


def _with_points(rows: Sequence[Row], keys: Sequence[str], usual: bool) -> list[str]:
    """Write the decimal commas of further columns as points; returns these columns.

    In a file with commas between values, and with three digits after it, a comma may separate thousands.
    """
    changed = []
    for name in rows[0][1]:
        values = [row[name] for _, row in rows if row[name]]
        with_comma = [value for value in values if "," in value]
        if name in keys or not with_comma or not all(map(_DECIMAL.fullmatch, values)):
            continue
        if not usual and any(len(value.partition(",")[2]) == 3 for value in with_comma):
            continue
        changed.append(name)
        for _, row in rows:
            row[name] = row[name].replace(",", ".")
    return changed
