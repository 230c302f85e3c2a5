"""Ways in which people write tables of images, each read into the form of our own: a class for each, in a fixed order.

A convention gets a sheet, whose first line has the headings, and gives it back as if it had been written in our way; what it
assumed or left out is part of the sheet. Tables of a study pass through all of them, a hospital's manifest through none.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress

from grandrounds.data.keys import canonical, is_error_value
from grandrounds.data.tables import Columns, Convention, Sheet, label_parts
from grandrounds.data.words import headings as usual_headings
from grandrounds.data.words import is_image_name, split_named, word_key, words
from grandrounds.errors import DataError
from grandrounds.protocol.task_multi import NO_FINDING

FOOTERS, ERRORS = "footers of the sheet", "error values of the spreadsheet"
KEYS = ("patient", "lesion")
"""Columns by which labels may be given where a table names no images."""
_FILE = re.compile(r"^(?!.*://).*\.[a-z][a-z0-9]{1,4}$")
_ZEROS = re.compile(r"(?<=\d)[.,]0*$")
"""What spreadsheets write after a whole number."""
_MARKS: Mapping[str, str | None] = {
    "1": "", "true": "", "0": None, ".0": None, ",0": None, "false": None, "-1": "?", "": "?",
}  # fmt: skip
"""Values of a column that is a class or finding of its own, and what precedes its name in the label."""
_LIST = re.compile(r"\[.*\]|[({].*['\"].*[)}]", re.DOTALL)
_ENTRY = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_SHOWN = 1000
"""Lines whose values show what a column without a known heading may be."""


class BareList:
    """Lines ``PATH LABEL`` without headings, separated as cells or by a blank."""

    def read(self, sheet: Sheet, columns: Columns) -> Sheet:
        """See :meth:`Convention.read`; there are two values in each line, the first with a suffix of images."""
        lines = [(line, cells[0].rsplit(maxsplit=1) if len(cells) == 1 else cells) for line, cells in sheet.lines]
        if not all(len(cells) == 2 and [*map(is_image_name, cells)] == [True, False] for _, cells in lines):
            return sheet
        taken = (*sheet.taken, f"no headings: {lines[0][1][0]} is an image and {lines[0][1][1]} its label")
        return sheet._replace(lines=[(0, ["image", "label"]), *lines], taken=taken)


class LongMarks:
    """A line for each image and finding, ``IMAGE_FINDING`` with 1 or 0: they are a column for each finding."""

    def read(self, sheet: Sheet, columns: Columns) -> Sheet:
        """See :meth:`Convention.read`; there are three findings or more, and all images have the same."""
        (number, first), *lines = sheet.lines
        if len(first) != 2 or "label" not in columns.required or _place("image", first, columns) is not None:
            return sheet
        marks: dict[str, dict[str, str]] = defaultdict(dict)
        line_of: dict[str, int] = {}
        for line, cells in lines:
            image, _, finding = cells[0].strip().rpartition("_")
            marks[image][finding] = _at(1, cells)
            line_of.setdefault(image, line)
        findings = [*next(iter(marks.values()), ())]
        alike = all({*own} == {*findings} and _are_marks([*own.values()]) for own in marks.values())
        if len(findings) < 3 or not alike or not all(map(str.isalpha, findings)):
            return sheet
        wide = [(line_of[image], [image, *(own[finding] for finding in findings)]) for image, own in marks.items()]
        return sheet._replace(lines=[(number, ["image", *findings]), *wide])


class SeveralImages:
    """``image=A|B``: a row has several images, which become rows of their own, those of ``B`` after all of ``A``."""

    def read(self, sheet: Sheet, columns: Columns) -> Sheet:
        """See :meth:`Convention.read`; their lines are counted on."""
        (number, first), *lines = sheet.lines
        image = columns.headings().get("image", "")
        places = _places_of(
            image, [canonical(cell) for cell in first], f"{sheet.source} line {number}, columns {image}"
        )
        rows: list[tuple[int, list[str]]] = []
        for place in places:
            last = rows[-1][0] if rows else 0
            rows += [(last + line, [_at(place, cells), *cells]) for line, cells in lines if _at(place, cells)]
        return sheet._replace(lines=[(number, [image, *first]), *rows]) if places else sheet


class OneHot:
    """A column of 1 and 0 for each class or finding: ``label=A|B`` is one column with the names of those that are 1."""

    def read(self, sheet: Sheet, columns: Columns) -> Sheet:
        """See :meth:`Convention.read`; without a 1 the label is ``none``."""
        (first, cells), *rows = sheet.lines
        headings = [canonical(cell) for cell in cells]
        label = columns.headings().get("label", "")
        indices = _places_of(label, headings, f"{sheet.source} line {first}, columns {label}")
        if not indices:
            return sheet
        kept = [index for index in range(len(cells)) if index not in indices]
        merged = [(first, [label, *(headings[index] for index in kept)])]
        seen: set[str] = set()
        for line, values in rows:
            marks = [(headings[index], values[index].strip() if index < len(values) else "") for index in indices]
            own = self._label(marks, columns, headings, f"{sheet.source} line {line}")
            seen.update(own.replace("?", "").split("|"))
            merged.append((line, [own, *(values[i] for i in kept if i < len(values)), *values[len(cells) :]]))
        never = [headings[index] for index in indices if headings[index] not in seen]
        taken = (f"without a 1: {', '.join(never)}",) if never else ()
        return sheet._replace(lines=merged, taken=(*sheet.taken, *taken))

    def _label(self, values: Sequence[tuple[str, str]], columns: Columns, headings: Sequence[str], where: str) -> str:
        """The names of the columns that are 1, or unknown with a ``?``, joined by ``|``; ``none`` if all are 0."""
        marks = [(self._mark(value, f"{where}, column {name}"), name, value) for name, value in values]
        present = [(f"{mark}{name}", f"{name} {value or 'empty'}") for mark, name, value in marks if mark is not None]
        joined = "|".join(name for name, _ in present) or "none"
        if present and not set(columns.task.mentioned_in(joined)) <= set(headings):
            cells = ", ".join(cell for _, cell in present)
            raise DataError(
                f"{where}, columns {columns.headings()['label']}: expected 1 in one and 0 in the others, got {cells}; "
                "for findings, which may be several or not known, add --task multi (simulate: --set problem.task=multi)"
            )
        return joined

    def _mark(self, value: str, where: str) -> str | None:
        """What precedes the column's name in the label; None if the class or finding is absent."""
        text = _ZEROS.sub("", value.casefold())
        if text not in _MARKS:
            raise DataError(
                f"{where}: expected 1 or 0, or -1 or nothing for a finding that is not known, got {value!r}"
            )
        return _MARKS[text]


class UsualHeadings:
    """Headings of other words and languages for patients, lesions, hospitals and splits; those given by option come first.

    A patient may also be called a study or series, where such a name occurs in several rows. A column of hospitals has at
    most a quarter as many values as rows, none of them empty. A split is known by its values, whatever its heading.
    """

    def read(self, sheet: Sheet, columns: Columns) -> Sheet:
        """See :meth:`Convention.read`."""
        (number, first), *lines = sheet.lines
        headings = [canonical(cell) for cell in first]
        usual = _usual(headings, lines, columns)
        sites = _texts(usual["site"], headings, lines) if "site" in usual else []
        if sites and not (all(sites) and 1 < len({*sites}) <= len(sites) / 4):
            del usual["site"]
        column_of = {heading: column for column, heading in usual.items()}
        taken = [
            f"{column} is {heading!r}, as its heading or its values say (--columns {column}= if not)"
            for column, heading in usual.items()
        ]
        renamed = [column_of.get(heading, heading) for heading in headings]
        return sheet._replace(lines=[(number, renamed), *lines], taken=(*sheet.taken, *taken))


class Footers:
    """Lines below the table, with a sum, a source or a legend: they are no rows."""

    def read(self, sheet: Sheet, columns: Columns) -> Sheet:
        """See :meth:`Convention.read`."""
        headings, *lines = sheet.lines
        image, label = (_place(name, headings[1], columns) for name in ("image", "label"))
        images = [_at(image or 0, cells) for _, cells in lines]
        labels = Counter(_at(label, cells) for _, cells in lines)
        with_suffix = 2 * sum(bool(_FILE.search(text.casefold())) for text in images) > len(images)
        left = dict(sheet.left_out)
        while len(lines) > 1:
            cells = lines[-1][1]
            usual_label = _at(label, cells) and labels[_at(label, cells)] > 1
            if usual_label or not self._is_footer(cells, images.pop(), with_suffix, len(headings[1])):
                break
            left[lines.pop()[0]] = FOOTERS
        return sheet._replace(lines=[headings, *lines], left_out=left)

    def _is_footer(self, cells: Sequence[str], image: str, with_suffix: bool, width: int) -> bool:
        filled = [cell.strip() for cell in cells if cell.strip()]
        if not image or (
            filled[0] == image and word_key(re.split(r"[\s:=(]", image, maxsplit=1)[0]) in words("totals")
        ):
            numbers = all(re.fullmatch(r"[\d.,\s%-]+", cell) for cell in filled)
            totals = any(word_key(re.split(r"[\s:=(]", cell, maxsplit=1)[0]) in words("totals") for cell in filled)
            return numbers or totals or len(filled) == 1
        alone = len(filled) == 1 and not _FILE.search(image.casefold())
        return alone and (with_suffix or (len(cells) < width and " " in image))


class ErrorValues:
    """``#REF!`` and its like: a row without a certain image or label is no row; elsewhere the value is missing."""

    def read(self, sheet: Sheet, columns: Columns) -> Sheet:
        """See :meth:`Convention.read`."""
        headings, *lines = sheet.lines
        needed = {_place(name, headings[1], columns) for name in ("image", "label")}
        kept, left = [headings], dict(sheet.left_out)
        for line, cells in lines:
            wrong = {index for index, cell in enumerate(cells) if is_error_value(cell)}
            if wrong & needed:
                left[line] = ERRORS
            else:
                kept.append((line, ["" if index in wrong else cell for index, cell in enumerate(cells)]))
        return sheet._replace(lines=kept, left_out=left)


class WrittenLists:
    """Findings as a program prints a list, ``['mass', 'effusion']``, are ``mass|effusion``; an empty one is ``none``."""

    def read(self, sheet: Sheet, columns: Columns) -> Sheet:
        """See :meth:`Convention.read`; of exclusive classes a list has one."""
        headings, *lines = sheet.lines
        place, taken, read = _place("label", headings[1], columns), "", [headings]
        for line, cells in lines:
            text = _at(place, cells)
            if place is not None and _LIST.fullmatch(text):
                cell = self._joined(text, columns, f"{sheet.source} line {line}, column {headings[1][place]}")
                taken = taken or f"labels are written as lists; {text} is {cell}"
                cells = [*cells[:place], cell, *cells[place + 1 :]]
            read.append((line, cells))
        return sheet._replace(lines=read, taken=(*sheet.taken, taken) if taken else sheet.taken)

    def _joined(self, text: str, columns: Columns, where: str) -> str:
        entries = _entries(text)
        if not columns.task.holds(entries):
            raise DataError(f"{where}: {text} are several labels; for findings, which may be several, add --task multi")
        if _LIST.fullmatch(text) and any("|" in entry for entry in entries):
            raise DataError(f"{where}: {text} has a name with |, which stands between findings; rename it")
        return "|".join(dict.fromkeys(entries)) or next(iter(columns.task.reserved), "")


def _entries(text: str) -> list[str]:
    """The names in a cell: of a list as a program prints it, or with ``|`` between them."""
    if _LIST.fullmatch(text):
        with suppress(ValueError, TypeError):
            return [*filter(None, map(canonical, map(str, json.loads(text))))]
    quoted = ["".join(found) for found in _ENTRY.findall(text)]
    parts = (quoted or re.split("[,;]", text[1:-1])) if _LIST.fullmatch(text) else text.split("|")
    return [*filter(None, map(canonical, parts))]


class LabelsByKey:
    """A list of patients or lesions with their labels and no images; whose image each is, the files say."""

    def read(self, sheet: Sheet, columns: Columns) -> Sheet:
        """See :meth:`Convention.read`; the column ``image`` is empty."""
        (number, first), *lines = sheet.lines
        if "image" not in columns.required or _place("image", first, columns) is not None:
            return sheet
        headings = [canonical(cell) for cell in first]
        free = _free(headings, columns)
        keyed = any(_place(key, first, columns) is not None or _named_as(key, free) for key in KEYS)
        values = {name: _texts(name, headings, lines) for name in free}
        if not keyed or _place("label", first, columns) is None or _likeliest("image", free, values):
            return sheet
        return sheet._replace(lines=[(number, [*first, "image"]), *((line, [*cells, ""]) for line, cells in lines)])


class MissingColumns(DataError):
    """A table lacks columns that are needed.

    Attributes:
        start: of the message.
        lacking: the columns for which no heading is likely.
        proposed: entries of ``--columns`` for the others.
        more: further options for the labels.
        option: all that is to be added; empty if a column is still lacking.
    """

    def __init__(
        self,
        start: str,
        missing: Sequence[str],
        proposed: Sequence[str],
        more: str = "",
        hint: str = "",
        beside: str = "",
    ) -> None:
        written = ",".join(proposed).replace("'", "'\"'\"'")  # as a shell reads an apostrophe
        columns = f" --columns '{written}'" if proposed else ""
        options = f"{beside}{columns}{more}"
        super().__init__(f"{start}; if these are other names for them, add{options}{hint}")
        self.start, self.more = start, more
        self.proposed = tuple(entry for entry in proposed if not entry.endswith("=HEADING"))
        likely = {entry.partition("=")[0] for entry in self.proposed}
        self.lacking = tuple(name for name in missing if name not in likely)
        self.option = "" if self.lacking else options

    def with_table(self, name: str, proposed: Sequence[str], more: str) -> MissingColumns:
        """The same refusal where another table, or sheet of the workbook, has what is lacking."""
        start = f"{self.start}; {name} has {' and '.join(self.lacking)} and a key in common"
        return MissingColumns(start, (), proposed, more, beside=f" --metadata {shlex.quote(name)}")


class Required:
    """All columns that are needed are there, under their names or those that an option gives."""

    def read(self, sheet: Sheet, columns: Columns) -> Sheet:
        """See :meth:`Convention.read`; the refusal names the option to type."""
        (number, first), *lines = sheet.lines
        missing = [name for name in columns.required if _place(name, first, columns) is None]
        if missing and not any(
            columns.headings().get(name) for name in missing
        ):  # a heading that is not there is named
            where = f"{sheet.source} line {number}" if number else sheet.source
            raise _missing(missing, [canonical(cell) for cell in first], lines, columns, where)
        return sheet


CONVENTIONS: tuple[Convention, ...] = (
    BareList(),
    LongMarks(),
    SeveralImages(),
    OneHot(),
    Footers(),
    ErrorValues(),
    WrittenLists(),
    LabelsByKey(),
    Required(),
    UsualHeadings(),
)
"""In the order in which they read a sheet."""


def unused(columns: Sequence[str], known: Sequence[str]) -> list[str]:
    """The columns that are neither known nor called as age, sex or device usually are."""
    usual = {key for kind in ("age", "sex", "device") for key in usual_headings(kind)}
    return [name for name in columns if name not in known and word_key(name) not in usual]


def _place(name: str, headings: Sequence[str], columns: Columns) -> int | None:
    """Where a column is, by its name or the heading that an option gives."""
    wanted = columns.headings().get(name, name).casefold()
    return next((index for index, cell in enumerate(headings) if canonical(cell).casefold() == wanted), None)


def _places_of(joined: str, headings: Sequence[str], where: str) -> list[int]:
    """Where the columns of ``A|B`` are; none if there is one column of that name, or not all of these."""
    folded = [heading.casefold() for heading in headings]
    parts = label_parts(joined)
    if len(parts) == 1 or joined.casefold() in folded or not set(parts) <= set(folded):
        return []
    for part in parts:
        if folded.count(part) > 1:
            raise DataError(f"{where}: {headings[folded.index(part)]!r} occurs twice; rename or delete one")
    return [folded.index(part) for part in parts]


def _at(place: int | None, cells: Sequence[str]) -> str:
    return cells[place].strip() if place is not None and place < len(cells) else ""


def _free(headings: Sequence[str], columns: Columns) -> list[str]:
    """The headings that no option and no name of a column takes."""
    taken = {name.casefold() for name in (*columns.headings().values(), *columns.required, *columns.optional)}
    return [heading for heading in headings if heading and heading.casefold() not in taken]


def _named_as(column: str, free: Sequence[str]) -> list[str]:
    """The headings that usually mean a column, the likeliest first."""
    ranks = usual_headings(column)
    return sorted((name for name in free if word_key(name) in ranks), key=lambda name: ranks[word_key(name)])


def _usual(headings: Sequence[str], lines: Sequence[tuple[int, list[str]]], columns: Columns) -> dict[str, str]:
    """The likeliest heading of each optional column that the table lacks."""
    found: dict[str, str] = {}
    free = _free(headings, columns)
    values = {heading: _texts(heading, headings, lines) for heading in free}
    for column in columns.optional:
        if column in columns.headings() or _place(column, headings, columns) is not None:
            continue
        own = [
            name for name in free if name not in found.values() and (column == "image" or not _are_files(values[name]))
        ]
        names = _named_as(column, own)
        if column == "image":
            names = [*filter(None, [_likeliest(column, own, values)])]
        elif column == "split":
            names = [name for name in own if _are_splits(values[name])]
        elif column == "patient" and not names:
            others = [found for kind in ("study", "series", "number") for found in _named_as(kind, own)]
            names = [name for name in others if len({*values[name]} - {""}) < len([*filter(None, values[name])])]
        if names:
            found[column] = names[0]
    return found


def _are_splits(values: Sequence[str]) -> bool:
    named = {split_named(value) for value in {*values}}
    return "" not in named and len(named) > 1


def _missing(
    missing: Sequence[str],
    headings: Sequence[str],
    lines: Sequence[tuple[int, list[str]]],
    columns: Columns,
    where: str,
) -> DataError:
    """What to type where required columns are missing."""
    values = {heading: _texts(heading, headings, lines) for heading in _free(headings, columns)}
    if any(_is_image_name(heading, own) for heading, own in values.items()):
        return DataError(
            f"{where} has an image's name in place of headings; add a line with the headings above it: image,label,..."
        )
    usual = _usual(headings, lines, columns)
    keyed = any(key in usual or _place(key, headings, columns) is not None for key in KEYS)
    named = ", ".join(repr(name) for name in missing)
    start = f"{where}: column {named} is missing; expected {', '.join(columns.required)}, found {', '.join(headings)}"
    return MissingColumns(start, missing, *_proposed_option(missing, values, columns, usual, keyed))


def _is_image_name(heading: str, values: Sequence[str]) -> bool:
    """Whether a heading is a file's name that ends as one of the values below it."""
    name = heading.casefold()
    return bool(_FILE.search(name)) and name.rpartition(".")[2] in {own.casefold().rpartition(".")[2] for own in values}


def _proposed_option(
    missing: Sequence[str], values: Mapping[str, Sequence[str]], columns: Columns, usual: Mapping[str, str], keyed: bool
) -> tuple[list[str], str, str]:
    """The option ``--columns`` with the likeliest heading for each column, what the labels need beside it, and a hint.

    Args:
        missing: the columns that are needed.
        values: of the free headings, as they are written.
        columns: of the table.
        usual: the likeliest headings of optional columns.
        keyed: whether there is a column of patients or lesions, so that images may be found by it.
    """
    free = [heading for heading in values if heading not in usual.values()]
    proposed, also, more, hint = [*columns.mapped], list[str](), "", ""
    for name in missing:
        best = _likeliest(name, free, values) or _numbering(name, free, values, keyed)
        marks = [heading for heading in free if name == "label" and not best and _are_marks(values[heading])]
        single = all(row.count("1") == 1 for row in zip(*(_plain(values[heading]) for heading in marks), strict=True))
        if len(marks) > 1 and (
            single or len(marks) == len(free) or columns.task.holds(marks) or any(map(_is_no_finding, marks))
        ):
            best = "|".join(marks)
            more = "" if single else _options_of([best], columns)
        elif len(marks) > 1:
            hint = f"; it is label={'|'.join(marks)} if these columns of 1 and 0 are the classes or findings"
        elif name == "label":
            more = _options_of(values.get(best, ()), columns)
        if name == "image" and not best and keyed:
            hint = "; the labels are then those of patients or lesions, whose images the files' headers or names say"
            continue
        proposed.append(f"{name}={best or 'HEADING'}")
        free = [heading for heading in free if heading not in best.split("|")]
        others = _named_as(name, free) if name == "label" else [own for own in values if _are_files(values[own])]
        also += [f"{name}={own}" for own in others if best and own != best]
    proposed += [f"{name}={heading}" for name, heading in usual.items()]
    explanation = ", with the heading that it is for HEADING" if any("=HEADING" in own for own in proposed) else ""
    explanation += f", or with {', '.join(also)} if that is meant" if also else ""
    if "site" in columns.optional and not {"site"} & {*usual, *columns.headings()}:
        rest = unused(free, ())
        hint += f"; no column names the hospitals; unused: {', '.join(rest)}" if rest and not hint else ""
    return proposed, more, f"{explanation}{hint}"


def _options_of(labels: Sequence[str], columns: Columns) -> str:
    """The options for labels that are lists of findings, and for one of them that says that there is none."""
    lists = [*map(_entries, labels)]
    several = not all(map(columns.task.holds, lists))
    asked = several or columns.task.reserved
    none = next((part for parts in lists for part in parts if _is_no_finding(part)), "") if asked else ""
    merge = f" --merge {shlex.quote(f'label:{none}={NO_FINDING}')}" if none else ""
    return f"{' --task multi' if several else ''}{merge}"


def _is_no_finding(name: str) -> bool:
    return word_key(name) in words("no_finding") and name != NO_FINDING


def _likeliest(column: str, free: Sequence[str], values: Mapping[str, Sequence[str]]) -> str:
    """The likeliest usual heading, for images above names of files, or else any above these; empty if there is none."""
    files = [heading for heading in free if column == "image" and _are_files(values[heading])]
    named = _named_as(column, free)
    return next(iter([*(heading for heading in named if heading in files), *named, "|".join(files)]), "")


def _numbering(column: str, free: Sequence[str], values: Mapping[str, Sequence[str]], keyed: bool) -> str:
    """The heading of identifiers that may be images' names: all differ, and beside patients they are no plain numbers."""
    texts = {name: [*filter(None, values[name])] for name in _named_as("number", free) if column == "image"}
    differ = [name for name in texts if len({*texts[name]}) == len(texts[name])]
    return next((name for name in differ if not (keyed and all(map(str.isdecimal, texts[name])))), "")


def _are_files(values: Sequence[str]) -> bool:
    return all(_FILE.search(value.casefold()) for value in values or [""])


def _are_marks(values: Sequence[str]) -> bool:
    return bool({*values} - {""}) and {*_plain(values)} <= {*_MARKS}


def _texts(heading: str, headings: Sequence[str], lines: Sequence[tuple[int, list[str]]]) -> list[str]:
    """The first values of a column."""
    index = headings.index(heading)
    return [values[index].strip() for _, values in lines[:_SHOWN] if index < len(values)]


def _plain(values: Sequence[str]) -> list[str]:
    """Values casefolded, of whole numbers without a decimal point."""
    return [_ZEROS.sub("", value.casefold()) for value in values]
