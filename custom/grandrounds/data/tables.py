"""Tables as people have them: CSV with any separator and encoding, .xlsx, Parquet, JSON and DataFrames, as rows of text.

What a cell shows is data: a formula is never evaluated, and a name keeps its characters (``007`` stays ``007``). What was
assumed about a file (separator, encoding, decimal commas) is part of the result, so that commands can say it.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import lzma
import math
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from grandrounds.checks import did_you_mean, reraised_as
from grandrounds.csv_files import Row, csv_cells
from grandrounds.data.documents import SUFFIXES, document_rows
from grandrounds.data.keys import canonical
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS: Mapping[str, str] = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
TABLE_SUFFIXES = (".csv", ".tsv", ".tab", ".txt", ".xlsx", ".xlsm", ".xls", ".ods", ".parquet", ".pq", *SUFFIXES)
"""How files that are taken for tables are called; what they are is seen from their bytes."""
MAX_EXPANDED = 2**30
"""Bytes of a table, and of the parts of an .xlsx file, which is an archive."""
_PACKED: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
MAX_CELLS, MAX_TEXT, MAX_HEADINGS = 10_000_000, 2**28, 4096
"""Of a Parquet file its values and their characters, which a small file can repeat; of any table its columns."""

TEXTS = ("string", "large_string", "binary", "large_binary", "dictionary")
"""Types of Parquet's texts."""

_DECIMAL = re.compile(r"[+-]?[0-9]+(?:[.,][0-9]+)?")
_HINT = re.compile(r"sep=(.)\r?\n", re.IGNORECASE)
_AS_TEXT = re.compile(r'\A="([^"]*)"\Z')
"""``="007"``, by which programs keep Excel from reading a number."""
_ABOVE = 20
"""Lines among which the headings are looked for."""


@dataclass(frozen=True)
class Table:
    """Rows of text with known columns.

    Attributes:
        source: the file, for errors.
        rows: of all lines that are not blank; each has the required columns.
        taken: what was assumed in reading them, one phrase each; empty for UTF-8 with commas.
        left_out: why a line is no row, by its number.
        root: the folder of its images where that is not the file's own.
    """

    source: str
    rows: tuple[Row, ...]
    taken: tuple[str, ...] = ()
    left_out: Mapping[int, str] = field(default_factory=dict)
    root: Path | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.rows[0][1]) if self.rows else ()


class Sheet(NamedTuple):
    """A table before its headings are matched: lines with their cells, the heading first.

    Attributes:
        source: the file, for errors.
        lines: that are not blank, with their numbers.
        taken: as of :class:`Table`.
        decimal_commas: whether a comma in a number is usual.
        left_out: as of :class:`Table`.
    """

    source: str
    lines: list[tuple[int, list[str]]]
    taken: tuple[str, ...]
    decimal_commas: bool
    left_out: Mapping[int, str] = MappingProxyType({})


class Convention(Protocol):
    """A way in which people write tables; see :mod:`~grandrounds.data.conventions`."""

    def read(self, sheet: Sheet, columns: Columns) -> Sheet:
        """The sheet as if it had been written in our own way.

        Raises:
            DataError: if it follows this convention and contradicts it; line and column are named.
        """


@dataclass(frozen=True)
class Columns:
    """Which columns a table has.

    Attributes:
        required: must be there.
        optional: are known by these names in any letter case; further ones keep their heading.
        mapped: ``COLUMN=HEADING``, as on the command line.
        sheet: of a workbook; may be empty where one sheet alone has the required columns.
        conventions: other ways of writing than our own that are read, in their order; a hospital's manifest has none.
        task: what a label is.
        partial: whether entries of ``mapped`` may be of another table.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    mapped: tuple[str, ...] = ()
    sheet: str = ""
    conventions: tuple[Convention, ...] = ()
    task: Task = SINGLE
    partial: bool = False

    def headings(self) -> dict[str, str]:
        """Headings by the column that they are.

        Raises:
            ConfigurationError: if an entry is not ``COLUMN=HEADING`` with a known column; of an optional one the heading
                may be nothing, so that no column is it.
        """
        headings = {}
        for entry in self.mapped:
            column, equals, heading = (part.strip() for part in entry.partition("="))
            if not equals or column not in (*self.required, *self.optional) or not (heading or column in self.optional):
                known = ", ".join((*self.required, *self.optional))
                hint = f"; did you mean {heading}={column}?" if heading in (*self.required, *self.optional) else ""
                raise ConfigurationError(
                    f"columns: expected COLUMN=HEADING with COLUMN one of {known}; got {entry!r}{hint}"
                )
            headings[column] = heading
        return headings

    def known_headings(self) -> set[str]:
        """The headings of all columns that have a meaning, and the parts of ``A|B``, casefolded."""
        mapped = self.headings()
        own = [mapped.get(name, name) for name in (*self.required, *self.optional)]
        return {part for heading in own for part in (heading.casefold(), *label_parts(heading))}

    def line_of_headings(self, lines: Sequence[Sequence[str]]) -> int:
        """Which of the lines has the headings: the first with all required ones, else the first with several cells."""
        mapped = self.headings()
        wanted = {part for name in self.required for part in label_parts(mapped.get(name, name))}
        cells = [{canonical(cell).casefold() for cell in line} - {""} for line in lines[:_ABOVE]]
        fitting = (number for number, own in enumerate(cells) if wanted and wanted <= own)
        several = (number for number, own in enumerate(cells) if len(own) >= min(2, len(self.required or "12")))
        return next(fitting, next(several, 0))


def open_table(path: Path, columns: Columns) -> Table:
    """Read a table; what it is, is seen from its bytes.

    Values lose the blanks around them; blank lines are skipped; headings match in any letter case.

    Raises:
        DataError: if it cannot be read, is empty, a column is missing or occurs twice, or a row has more or fewer values
            than the heading; file, line and headings are named.
        ConfigurationError: if a library is missing, or columns are mapped in a wrong way.
    """
    data = _unpacked(path)
    if data.startswith(b"PAR1"):
        sheet = _parquet(data, path)
    elif data.startswith(b"PK\3\4"):
        sheet = _workbook(data, path, columns)
    elif data.startswith(b"\xd0\xcf\x11\xe0"):
        raise DataError(
            f"{path} is an old Excel file, or has a password; save it as .xlsx without one, or as CSV UTF-8"
        )
    elif _name_inside(path).endswith(SUFFIXES):
        entries = document_rows(data, path)
        names = list(dict.fromkeys(name for entry in entries for name in entry))
        _require_few(len(names), str(path))
        _require_bounded(path, len(names) * len(entries), len(data))
        rows = ([entry.get(name) for name in names] for entry in entries)
        sheet = Sheet(str(path), _numbered([names, *(_typed(names, row, str(path)) for row in rows)], 0), (), False)
    elif path.suffix.casefold() == ".parquet":
        raise DataError(f"{path} is no readable Parquet file: it does not begin as one")
    elif data.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"<"):
        raise DataError(f"{path} is HTML or XML; open it in a spreadsheet and save it as .xlsx, or as CSV UTF-8")
    else:
        sheet = _separated(data, path, columns)
    return _table(sheet, columns)


def is_table(path: Path) -> bool:
    """Whether a file is called as tables are, packed or not.

    Example:
        >>> is_table(Path("a.CSV")), is_table(Path("a.csv.gz")), is_table(Path("a.tar.gz"))
        (True, True, False)
    """
    return _name_inside(path).endswith(TABLE_SUFFIXES)


def _name_inside(path: Path) -> str:
    """The file's name, of a packed one that of what is inside."""
    name = path.name.casefold()
    return name.removesuffix(PurePath(name).suffix if name.endswith(tuple(_PACKED)) else "")


def archive_of(path: Path) -> Path | None:
    """The zip archive that a path leads into, as ``set.zip/train.csv`` does; None if it leads into none."""
    return next((above for above in path.parents if above.is_file() and zipfile.is_zipfile(above)), None)


def tables_in(folder: Path, most_bytes: int) -> list[Path]:
    """The tables of a size in a folder, a zip archive, or a folder of one, in the order of their names."""
    if folder.is_dir():
        sizes = {path: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    else:
        archive = folder if folder.is_file() else archive_of(folder)
        members = zipfile.ZipFile(archive).infolist() if archive else ()
        sizes = {archive / member.filename: member.file_size for member in members if archive}
    return sorted(
        path for path, size in sizes.items() if path.parent == folder and is_table(path) and size <= most_bytes
    )


def sheets_of(path: Path) -> list[str]:
    """The sheets of a workbook; none of another file."""
    data = _unpacked(path)
    if not data.startswith(b"PK\3\4"):
        return []
    _require_small(data, path)
    return list(_load_workbooks(data, path)[0].sheetnames)


def _unpacked(path: Path) -> bytes:
    """The bytes of a table, which may be in an archive, and packed by itself (``.csv.gz``)."""
    opener = _PACKED.get(path.suffix.casefold(), nullcontext)
    archive = archive_of(path)
    try:
        with (
            zipfile.ZipFile(archive).open(path.relative_to(archive).as_posix()) if archive else path.open("rb") as file,
            opener(file) as stream,
        ):
            data: bytes = stream.read(MAX_EXPANDED + 1)
    except (OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', '') or error}") from error
    if len(data) > MAX_EXPANDED:
        raise DataError(f"{path} has more than {MAX_EXPANDED >> 20} MiB; keep the columns of the images alone")
    return data


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


def _separated(data: bytes, path: Path, columns: Columns) -> Sheet:
    text, encoding = _decoded(data, path)
    hint = _HINT.match(text)
    start = hint.end() if hint else 0
    separator = hint[1] if hint else _separator(text, columns)
    reader = csv.reader(io.StringIO(text[start:], newline=""), delimiter=separator, strict=True)
    lines = list(_non_blank(reader, path, 1 if hint else 0))
    separated = "" if separator == "," else f"separated by {SEPARATORS.get(separator, separator)}"
    return Sheet(str(path), lines, tuple(filter(None, (separated, encoding))), separator != ",")


def _decoded(data: bytes, path: Path) -> tuple[str, str]:
    """The text, and its encoding where that is not UTF-8."""
    even, odd = data[:400:2].count(0), data[1:400:2].count(0)
    wide = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
    if not wide and max(even, odd) > len(data[:400]) // 5:
        wide = "utf-16-be" if even > odd else "utf-16-le"
    western = "encoded in Windows-1252; where a word looks wrong, save the table with UTF-8 encoding"
    for encoding, name in ((wide, "encoded in UTF-16"), ("utf-8-sig", ""), ("cp1252", western)):
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


def _parquet(data: bytes, path: Path) -> Sheet:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ConfigurationError(
            f"{path}: Parquet needs pyarrow; install it: pip install 'grandrounds[parquet]', or save the table as CSV"
        ) from error
    try:
        file = parquet.ParquetFile(io.BytesIO(data), pre_buffer=False)
        described, names = file.metadata, list(file.schema_arrow.names)
        _require_few(described.num_columns, str(path))
        groups = map(described.row_group, range(described.num_row_groups))
        parts = [group.column(number) for group in groups for number in range(described.num_columns)]
        _require_bounded(
            path, sum(part.num_values for part in parts), sum(part.total_uncompressed_size for part in parts)
        )
        # A text that is repeated is in memory once.
        texts = [field.name for field in file.schema_arrow if str(field.type).startswith(TEXTS)]
        repeated = parquet.ParquetFile(io.BytesIO(data), read_dictionary=texts)
        lines = list(_parquet_lines(repeated, names, path))
    except DataError:
        raise
    except Exception as error:  # a damaged file fails in many ways
        raise DataError(f"{path} is no readable Parquet file: {' '.join(str(error).split())[:200]}") from error
    return Sheet(str(path), _numbered([names, *lines], 0), (), False)


def _parquet_lines(file: Any, names: Sequence[str], path: Path) -> Iterator[list[str]]:
    """The rows of a file as text, while they are not too long together."""
    number = length = 0
    for batch in file.iter_batches():
        for values in zip(*batch.columns, strict=True):
            number += 1
            line = _typed(names, (value.as_py() for value in values), f"{path} row {number}")
            length += sum(map(len, line))
            _require_bounded(path, 0, length)
            yield line


def _require_few(columns: int, source: str) -> None:
    if columns > MAX_HEADINGS:
        raise DataError(f"{source} has {columns} columns, at most {MAX_HEADINGS} are read; save those that are needed")


def _require_bounded(path: Path, cells: int, length: int) -> None:
    if cells > MAX_CELLS or length > MAX_TEXT:
        raise DataError(
            f"{path} expands to more than {MAX_CELLS} values or {MAX_TEXT >> 20} MiB; save what is needed as CSV UTF-8"
        )


def _workbook(data: bytes, path: Path, columns: Columns) -> Sheet:
    _require_small(data, path)
    shown, written = _load_workbooks(data, path)
    name = _sheet({sheet.title: _first_cells(sheet, columns) for sheet in shown.worksheets}, path, columns)
    sheet = shown[name]
    lines, without_result = _sheet_lines(sheet, written[name])
    number, headings = lines[columns.line_of_headings([cells for _, cells in lines])] if lines else (1, [])
    known = columns.known_headings()
    used = {column for column, heading in enumerate(headings, 1) if canonical(heading).casefold() in known}
    needed = [cell for cell in without_result if cell.row == number or (cell.row > number and cell.column in used)]
    if needed := needed if lines else without_result:
        raise DataError(
            f"{path}, cell {needed[0].coordinate}: a formula whose result is not in the file; open and save it in Excel, or "
            "put values in place of the formulas"
        )
    _require_unmerged(sheet, number, path)
    hidden = sum(bool(sheet.row_dimensions[line].hidden) for line, _ in lines)
    taken = [f"sheet {name!r}"] if len(shown.worksheets) > 1 else []
    if hidden:
        taken.append(f"{hidden} hidden rows are read too")
    return Sheet(str(path), lines, tuple(taken), True)


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


def _require_small(data: bytes, path: Path) -> None:
    with reraised_as(DataError, zipfile.BadZipFile, where=f"{path} is a damaged .xlsx file"):
        parts = zipfile.ZipFile(io.BytesIO(data)).infolist()
    if not any(part.filename.startswith("xl/") for part in parts):
        raise DataError(f"{path} is an archive, not a table; expected CSV, .xlsx, Parquet or JSON")
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
    wanted = {part for name in columns.required for part in label_parts(mapped.get(name, name))}
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


def _table(sheet: Sheet, columns: Columns) -> Table:
    """The rows below the headings."""
    source = sheet.source
    if not sheet.lines or not any(cell.strip() for cell in sheet.lines[0][1]):
        raise DataError(f"{source} is empty; expected a header with the columns {', '.join(columns.required)}")
    sheet = _from_headings(sheet, columns)
    _require_few(len(sheet.lines[0][1]), source)
    if columns.partial:
        there = {canonical(cell).casefold() for cell in sheet.lines[0][1]}
        own = [entry for entry in columns.mapped if {*label_parts(entry.partition("=")[2])} <= there]
        columns = replace(columns, mapped=tuple(own))
    for convention in columns.conventions:
        sheet = convention.read(sheet, columns)
    (number, first), *lines = sheet.lines
    names = _names([canonical(cell) for cell in first], columns, f"{source} line {number}" if number else source)
    rows = [(line, _row(names, values, f"{source} line {line}")) for line, values in lines]
    if not rows:
        raise DataError(f"{source} has a header but no rows; add one row per image")
    changed = _with_points(rows, (*columns.required, *columns.optional), sheet.decimal_commas)
    commas = [f"decimal commas in {', '.join(changed)}"] if changed else []
    mapped = [f"{column} is {heading!r}" for column, heading in columns.headings().items() if heading]
    return Table(source, tuple(rows), (*sheet.taken, *commas, *mapped), sheet.left_out)


def _from_headings(sheet: Sheet, columns: Columns) -> Sheet:
    """Without the lines above the headings."""
    above = columns.line_of_headings([cells for _, cells in sheet.lines])
    number, first = sheet.lines[above]
    for line, cells in sheet.lines[:above]:
        if sum(map(bool, map(canonical, cells))) >= sum(map(bool, map(canonical, first))):
            raise DataError(
                f"{sheet.source} line {line} is above the headings on line {number} and has as many values; delete the "
                f"lines above line {number}, or line {number} if the headings are above it"
            )
    over = (f"{above} lines above the headings are no rows",) if above else ()
    return sheet._replace(lines=sheet.lines[above:], taken=(*sheet.taken, *over))


def label_parts(heading: str) -> list[str]:
    """The headings of ``A|B``, casefolded."""
    return [canonical(part).casefold() for part in heading.split("|")]


def _names(headings: Sequence[str], columns: Columns, where: str) -> list[tuple[str, ...]]:
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
        raise DataError(
            f"{where}: column {', '.join(map(repr, missing))} is missing; expected {', '.join(columns.required)}, found "
            f"{', '.join(headings)}; correct the heading, or make a manifest of the table by grandrounds import"
        )
    return names


def _require_mapped(mapped: Mapping[str, str], headings: Sequence[str], where: str) -> None:
    """Raise ``DataError`` for a column that is mapped to a heading which the table does not have."""
    folded = [heading.casefold() for heading in headings]
    for column, heading in mapped.items():
        if heading and heading.casefold() not in folded:
            hint = did_you_mean(heading, headings, f"{column}={{}}")
            raise DataError(f"{where}: there is no column {heading!r} for {column}{hint} (found {', '.join(headings)})")


def _row(names: Sequence[tuple[str, ...]], values: Sequence[str], where: str) -> dict[str, str]:
    filled = len(values) - next((n for n, value in enumerate(reversed(values)) if value.strip()), len(values))
    if len(values) < len(names) or filled > len(names):
        raise DataError(f"{where} has {len(values)} values, expected {len(names)} as in the header")
    pairs = zip(names, values[: len(names)], strict=True)
    return {name: _AS_TEXT.sub(r"\1", value.strip()) for own, value in pairs for name in own}


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
