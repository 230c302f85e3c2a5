"""One table of images from several sources: further tables, the headers of DICOM files, and lists of patients.

What joins them are keys: an image's name by as many parts of its path as both have, or the name of a patient or lesion. A
join fills what a table lacks and never replaces what it says, except that a further table can allow the use of a label; two
sources that contradict each other are refused by name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from grandrounds.csv_files import Row
from grandrounds.data.conventions import MissingColumns
from grandrounds.data.image_files import ImageFiles, Seen
from grandrounds.data.images.dicom import read_header
from grandrounds.data.keys import canonical, comparison_key, is_missing
from grandrounds.data.manifest import LABELLED_FLAGS
from grandrounds.data.tables import Columns, Table, open_table, sheets_of, tables_in
from grandrounds.data.words import split_of, without_split
from grandrounds.errors import DataError, GrandRoundsError

KEYS = ("image", "lesion", "patient")
"""Columns by which tables are joined, the most specific first."""
_GROUPS = ("patient", "lesion")
"""What a table that nobody named may add: images of one person or lesion stay together."""
_HEADERS = ("PatientID", "StudyInstanceUID", "SeriesInstanceUID", "AccessionNumber")
_MOST_BESIDE, _MOST_BYTES = 20, 2**26
"""Tables beside the first that are looked at, and their size."""


def open_joined(path: Path, columns: Columns, named: Sequence[str]) -> Table:
    """A table with the columns of further ones.

    Args:
        path: the table.
        columns: that are needed.
        named: further tables; those beside the table, for patients and lesions alone, if none is named; ``none`` for none.

    Raises:
        DataError: if a table is damaged, a named one has no key in common with the table, or two contradict each other.
    """
    own = (*columns.required, *columns.optional)
    anything = replace(
        columns, required=(), optional=own, mapped=columns.mapped if named else (), sheet="", partial=True
    )
    if named and tuple(named) != ("none",):
        further = [_further(path, name, anything) for name in named]
        there = {column for table in further for column in table.columns}
        needed = tuple(name for name in columns.required if name not in there)
        first = open_table(path, replace(columns, required=needed, optional=own, partial=True))
        tables = sorted([first, *further], key=lambda table: "image" not in table.columns)
        return _all_joined(tables, columns)
    try:
        table = open_table(path, columns)
    except MissingColumns as error:
        raise error if named else _completed(path, columns, error) from None
    if named:
        return table
    table = _with_splits(path, table, columns)
    for _, other in _beside(path, replace(anything, optional=(*KEYS,))) if _lacking(table) else ():
        table = _joined(table, other, _GROUPS, asked=False) if _lacking(table) else table
    return table


def _further(path: Path, name: str, columns: Columns) -> Table:
    """A further table: a file that is named from here or from the table's folder, or a sheet of the same workbook."""
    places = [place for place in (Path(name), path.parent / name) if place.is_file()]
    if not places and name in sheets_of(path):
        return open_table(path, replace(columns, sheet=name))
    return open_table(places[0] if places else path.parent / name, columns)


def _completed(path: Path, columns: Columns, error: MissingColumns) -> MissingColumns:
    """The refusal of a table that lacks a column, with the option for the sheet or table beside it that has it."""
    tables = [other.name for other in tables_in(path.parent, _MOST_BYTES) if other != path]
    for name in (*sheets_of(path), *tables[:_MOST_BESIDE]) if error.lacking else ():
        mapped, more = error.proposed, error.more
        wanted = replace(columns, required=error.lacking, optional=(*columns.required, *columns.optional), mapped=())
        try:
            try:
                _further(path, name, wanted)
            except MissingColumns as other:
                if other.lacking:
                    raise
                mapped, more = (*dict.fromkeys((*mapped, *other.proposed)),), f"{more}{other.more}"
            open_joined(path, replace(columns, mapped=mapped), (name,))
        except (GrandRoundsError, OSError):  # it is another's
            continue
        return error.with_table(name, mapped, more)
    return error


def _lacking(table: Table) -> list[str]:
    """The keys of groups that no row has."""
    return [name for name in _GROUPS if not any(row.get(name) for _, row in table.rows)]


def _all_joined(tables: Sequence[Table], columns: Columns) -> Table:
    table = tables[0]
    for other in tables[1:]:
        table = _joined(table, other, other.columns)
    missing = [name for name in columns.required if name not in table.columns]
    if missing:
        raise DataError(f"{table.source}: no table has the column {missing[0]}; add --columns {missing[0]}=HEADING")
    unmatched = [entry for entry in columns.mapped if entry.partition("=")[0].strip() not in table.columns]
    if unmatched:
        raise DataError(f"no table has the heading of --columns {unmatched[0]!r}; correct it")
    return table


def _beside(path: Path, columns: Columns, folders: Iterable[Path] = ()) -> Iterator[tuple[Path, Table]]:
    """The other tables in the table's folder and in further ones that can be read."""
    places = [place for folder in (path.parent, *folders) for place in tables_in(folder, _MOST_BYTES)]
    for other in [place for place in places if place != path][:_MOST_BESIDE]:
        try:
            yield other, open_table(other, columns)
        except (GrandRoundsError, OSError):  # nobody has asked for it
            continue


def _with_splits(path: Path, table: Table, columns: Columns) -> Table:
    """A table without a split, with what the names of files beside it say.

    They are tables that are called as it and have its headings, but for the split (``train.csv`` and ``valid.csv``), whose
    rows follow; or lists of its images, or of its rows counted from 0, for each split (``test_list.txt``).
    """
    if any(row.get("split") for _, row in table.rows):
        return table
    if _split_of(path):
        above = path.parent.parent
        folders = [*filter(Path.is_dir, above.iterdir())] if split_of(path.parent.name)[0] and above.is_dir() else []
        tables = {path: table}
        tables |= {
            other: further
            for other, further in _beside(path, columns, [folder for folder in folders if folder != path.parent])
            if {*further.columns} == {*table.columns} and _but_split(other) == _but_split(path)
        }
        splits = [_split_of(other) for other in tables]
        if len({*splits}) == len(splits) > 1:
            return _stacked(tables)
    lists = [
        (split, [further.columns[0], *(row[further.columns[0]] for _, row in further.rows)], other.name)
        for other, further in _beside(path, Columns(()))
        if (split := split_of(other.stem)[0]) and len(further.columns) == 1
    ]
    return table if split_of(path.stem)[0] or not lists else _listed(table, lists)


def _split_of(path: Path) -> str:
    """The split that a table is called after, or else its folder."""
    return split_of(path.stem)[0] or split_of(path.parent.name)[0]


def _but_split(path: Path) -> tuple[str, ...]:
    return without_split(f"{path.parent.name} {path.stem}")


def _stacked(tables: Mapping[Path, Table]) -> Table:
    (first, table), *others = tables.items()
    rows: list[Row] = []
    apart, above = len({path.parent for path in tables}) > 1, None
    for path, own in tables.items():
        last = rows[-1][0] if rows else 0
        for line, row in own.rows:
            image = row.get("image", "")
            if apart and image and (path.parent / image).is_file():  # images are beside their table
                row, above = {**row, "image": f"{path.parent.name}/{image}"}, first.parent.parent
            rows.append((last + line, {**row, "split": _split_of(path)}))
    names = ", ".join(f"{path.parent.name}/{path.name}" if apart else path.name for path, _ in others)
    note = f"the rows of {names} are read too, files' names are splits (--metadata none for {first.name} alone)"
    return replace(
        table, source=f"{first} followed by {names},", rows=tuple(rows), taken=(*table.taken, note), root=above
    )


def _listed(table: Table, lists: Sequence[tuple[str, Sequence[str], str]]) -> Table:
    """The table with the splits of lists, each row in one at most; what no list has is for training if none is of it."""
    match = _matcher("image", table)
    by_number = {str(number): row for number, row in enumerate(table.rows)}
    for find in (match, by_number.get):
        found = [(row[0], split) for split, cells, _ in lists for cell in cells if (row := find(cell))]
        splits = dict(found)
        rest = "" if "train" in splits.values() else "train"
        whole = len(found) >= sum(len(cells) - 1 for _, cells, _ in lists) and len(found) == len(splits)
        if found and whole and (rest or len(splits) == len(table.rows)):
            rows = tuple((line, {**row, "split": splits.get(line, rest)}) for line, row in table.rows)
            note = f"the splits are those of {', '.join(name for *_, name in lists)} (--metadata none without)"
            return replace(table, rows=rows, taken=(*table.taken, note))
    return table


def _joined(table: Table, other: Table, wanted: Iterable[str], asked: bool = True) -> Table:
    """The table with the wanted columns of another, by the most specific key that both have.

    A table that was not asked for is joined only if it has most of the rows, each once.
    """
    key = next((name for name in KEYS if name in table.columns and name in other.columns), "")
    if not key:
        if asked:
            raise DataError(
                f"{other.source} has no column in common with {table.source}; name the image, patient or lesion of both by "
                "--columns image=HEADING"
            )
        return table
    match = _matcher(key, other)
    pairs = [(line, row, match(row[key])) for line, row in table.rows]
    count = sum(partner is not None for *_, partner in pairs)
    if not count and asked:
        raise DataError(
            f"{other.source} has no {key} of {table.source}, such as {table.rows[0][1][key]!r}; correct the column {key}"
        )
    columns = [name for name in wanted if name != key and name in other.columns]
    if not asked:
        lacking, there = _lacking(table), [row for _, row in other.rows]
        columns = [name for name in columns if name in lacking and not all(is_missing(row[name]) for row in there)]
        if 2 * count < len(pairs) or not columns:
            return table
    rows = [(line, _filled(table, line, row, other, partner, columns)) for line, row, partner in pairs]
    note = f"{', '.join(columns)} of {Path(other.source).name}, joined by {key} ({count} of {len(pairs)} rows)"
    return replace(
        table, rows=tuple(rows), taken=(*table.taken, note if asked else f"{note}; --metadata none if it is another's")
    )


def _filled(
    table: Table, line: int, row: Mapping[str, str], other: Table, partner: Row | None, columns: Sequence[str]
) -> dict[str, str]:
    filled = {**dict.fromkeys(columns, ""), **row}
    for name in columns if partner else ():
        theirs = partner[1][name] if partner else ""
        mine = filled[name]
        if mine and theirs and partner and canonical(mine) != canonical(theirs) and name in (*KEYS, "label", "split"):
            raise DataError(
                f"{table.source} line {line}, column {name}: {mine!r}, but {other.source} line {partner[0]} says "
                f"{theirs!r}; correct one"
            )
        hides = name == "labelled" and not LABELLED_FLAGS.get(mine.lower(), True)
        filled[name] = theirs or mine if hides else mine or theirs
    return filled


def _matcher(key: str, table: Table) -> Callable[[str], Row | None]:
    """Finds the row of a key; of several rows it has what all of them say."""
    rows: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    by_last: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for row in table.rows:
        parts = _key_parts(key, row[1][key])
        rows[parts].append(row)
        by_last[parts[-1]].add(parts)

    def match(text: str) -> Row | None:
        parts = _key_parts(key, text)
        others = by_last[parts[-1]]
        alike = [own for own in others if all(a == b for a, b in zip(parts[::-1], own[::-1], strict=False))]
        if not parts[-1] or len(alike) != 1:
            return None
        first, *more = rows[alike[0]]
        return _agreed(first, more) if more else first

    return match


def _agreed(first: Row, others: Sequence[Row]) -> Row:
    """What all rows of a key say alike."""
    line, own = first
    return line, {name: value if all(row[name] == value for _, row in others) else "" for name, value in own.items()}


def _key_parts(key: str, text: str) -> tuple[str, ...]:
    if key != "image":
        return (comparison_key(text),)
    path = PurePosixPath(canonical(text).replace("\\", "/").casefold())
    return (*path.parts[:-1], path.name.removesuffix(path.suffix) if len(path.suffix) > 2 else path.name)


def images_by_key(
    table: Table, place: ImageFiles, images: Mapping[str, Seen], of_name: Callable[[str], str] | None
) -> tuple[Table, dict[str, str]]:
    """A row for each image whose patient (or lesion) a list names, and the other images with the reason.

    Args:
        table: a list with the column ``patient`` or ``lesion``; its column ``image`` is empty.
        place: of the images.
        images: that can be used.
        of_name: the patient in an image's name, where a pattern says it; else headers and paths are asked.

    Raises:
        DataError: if two rows of one name have different labels, or no image is of a name of the list.
    """
    key = next(name for name in ("patient", "lesion") if name in table.columns)
    rows: dict[str, Row] = {}
    for line, row in table.rows:
        earlier = rows.setdefault(row[key], (line, row))
        if earlier[1]["label"] != row["label"]:
            raise DataError(
                f"{table.source}: {key} {row[key]!r} has two labels, {earlier[1]['label']!r} (line {earlier[0]}) and "
                f"{row['label']!r} (line {line}); keep one, or list the images"
            )
    names = _NamesOfList(rows)
    ways = _ways(place, images, of_name)
    found = {way: {image: own for image in images if (own := names.among(say(image)))} for way, say in ways.items()}
    way, owners = max(found.items(), key=lambda pair: len(pair[1]))
    if not owners:
        said = {text for say in ways.values() for image in list(images)[:3] for text in say(image) if text}
        raise DataError(
            f"{table.source} has labels of {key}s and no image of {place.root} is of one: the list has "
            f"{', '.join(map(repr, list(rows)[:3]))}, the files say {', '.join(map(repr, sorted(said)[:6]))}; add "
            "--patient-pattern (patient_pattern) for the patient in an image's name, or a column image to the list"
        )
    without = [name for name in rows if name not in {*owners.values()}]
    notes = [f"labels of {len(rows) - len(without)} {key}s are given to their {len(owners)} images by {way}"]
    if without:
        notes.append(f"{len(without)} {key}s of the list have no image, first {without[0]}")
    listed = tuple((rows[own][0], {**rows[own][1], "image": image}) for image, own in owners.items())
    left_out = dict.fromkeys((image for image in images if image not in owners), f"of no {key} in the list")
    return replace(table, rows=listed, taken=(*table.taken, *notes)), left_out


class _NamesOfList:
    """Finds the name of a list that one of several texts is: as it is written, or the one that is near."""

    def __init__(self, names: Iterable[str]) -> None:
        self._exact = {canonical(name): name for name in names if not is_missing(name)}
        near = Counter(map(comparison_key, self._exact))
        self._near = {comparison_key(own): name for own, name in self._exact.items() if near[comparison_key(own)] == 1}

    def among(self, texts: Iterable[str]) -> str:
        """The one name; empty if there is none, or several."""
        named = {self._exact.get(canonical(text)) or self._near.get(comparison_key(text), "") for text in texts} - {""}
        return next(iter(named)) if len(named) == 1 else ""


def _ways(
    place: ImageFiles, images: Mapping[str, Seen], of_name: Callable[[str], str] | None
) -> dict[str, Callable[[str], Sequence[str]]]:
    """What says whose an image is: the pattern alone, else each attribute of its header, its folders, its name."""
    if of_name is not None:
        return {"the pattern": lambda image: (of_name(image),)}
    dicom = [name for name, picture in images.items() if picture.format == "DICOM"]
    headers = {name: read_header(place.open, name, _HEADERS) for name in dicom}
    ways: dict[str, Callable[[str], Sequence[str]]] = {
        keyword: lambda image, own=keyword: (headers.get(image, {}).get(own, ""),)  # type: ignore[misc]
        for keyword in (_HEADERS if headers else ())
    }
    ways["their folders"] = lambda image: PurePosixPath(image).parts[:-1]
    ways["their names"] = lambda image: _opening_parts(PurePosixPath(image).stem)
    return ways


def _opening_parts(stem: str) -> list[str]:
    """A name, and what precedes each separator in it: ``P1``, ``P1_2`` and ``P1_2-a``."""
    ends = [place for place, character in enumerate(stem) if character in "_-. "]
    return [stem[:end] for end in (*ends, len(stem))]
