"""Images of one's own that a table lists, with the columns of further tables and what the files' headers say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

from grandrounds.csv_files import Row
from grandrounds.data.conventions import unused
from grandrounds.data.datasets.layouts import splits_of_folders
from grandrounds.data.datasets.own_images import STUDY, OwnImages, found_in, label_map_of, name_pattern, patient_in
from grandrounds.data.datasets.own_options import ManifestOptions, OwnImageOptions
from grandrounds.data.image_files import look_at, place_at
from grandrounds.data.images.dicom import read_header
from grandrounds.data.importing import UNWANTED, Import, look_up, root_of
from grandrounds.data.joining import images_by_key, open_joined
from grandrounds.data.keys import is_missing
from grandrounds.data.manifest import LABELLED_FLAGS, MANIFEST_COLUMNS, SPLITS, Record, further_columns, require_grouped
from grandrounds.data.tables import Table, archive_of
from grandrounds.data.words import as_boolean, headings, split_named, word_key
from grandrounds.errors import DataError

_PERSON = re.compile(r"(?:^|(?<=[/_ -]))(?:patient|pat|subject|subj|sub|case|p)[-_ ]?[0-9]+(?=[/_. -])", re.IGNORECASE)
"""How names and folders of images call a person."""
_FOLD = re.compile(r"(1?[0-9]|20)\Z")


def read_image_table(root: Path, options: ManifestOptions) -> OwnImages:
    """Read a table of images, which are below ``root``.

    Raises:
        DataError: if it is no table, has no column ``image`` or ``label``, or a row or an image is damaged; file, line and
            column are named.
    """
    columns = replace(STUDY, mapped=options.columns, sheet=options.sheet, task=options.kind)
    table = open_joined(options.manifest, columns, options.metadata)
    note = ""
    if root in (options.manifest.parent, archive_of(options.manifest)):
        root, note = (table.root, "") if table.root else root_of([row["image"] for _, row in table.rows], root)
    table = replace(table, taken=(*table.taken, *filter(None, [note]), *_unused(table, options)))
    made = images_of_rows(table, root, options)
    _require_own_folder(made, options.manifest)
    return made


def _require_own_folder(made: OwnImages, manifest: Path) -> None:
    """Refuse images of several folders of an archive where some are beside the table: the others may be another's."""
    if (archive := archive_of(manifest)) is None or made.root != archive:
        return
    folder = manifest.parent.relative_to(archive)
    beside = {record.image: PurePosixPath(record.image).is_relative_to(folder.as_posix()) for record in made.records}
    if len({*beside.values()}) > 1:
        other = next(name for name, own in beside.items() if not own)
        raise DataError(
            f"{manifest}: other images are in its folder, {other} is not and may be that of another table; unpack the "
            f"archive, unzip {shlex.quote(str(archive))} -d FOLDER, and give this table with --root"
        )


def images_of_rows(table: Table, root: Path, options: OwnImageOptions) -> OwnImages:
    """Images from the rows of a table.

    Args:
        table: with the columns ``image`` and ``label``.
        root: folder or archive of the images.
        options: of the data set.

    Raises:
        DataError: if a row is damaged or its image cannot be used; source, line and column are named.
    """
    labels = label_map_of(options.label_map, [row["label"] for _, row in table.rows])
    pattern = name_pattern(options.patient_pattern)
    if not any(row["image"] for _, row in table.rows):
        return _images_of_list(table, root, options, pattern)
    wanted = [(line, row) for line, row in table.rows if labels.get(row["label"], "kept")]
    names = [(line, row["image"]) for line, row in wanted]
    if not options.skip_unusable:
        _require_names(table.source, names)
    listed = look_up(table.source, root, names, options.skip_unusable, table.taken, "image" in options.merge)
    kept = [(line, {**row, "image": listed.files[line]}) for line, row in wanted if line in listed.files]
    repeated = _repeated(kept, table.source)
    kept = [(line, row) for line, row in kept if line not in repeated]
    lines = tuple(line for line, _ in kept)
    records = [_record(row, f"{table.source} line {line}", labels, pattern, options) for line, row in kept]
    sites, splits = _all_or_none(table.source, "site", kept), _all_or_none(table.source, "split", kept)
    if not splits and (named := splits_of_folders([own.image for own in records])):
        divided = [replace(own, split=split) for own, split in zip(records, named, strict=True)]
        try:
            require_grouped(divided, table.source, lines)
            records, splits, note = divided, named, "the splits are those of the folders (--splits draw for others)"
        except DataError:
            note = "folders are called after splits and have images of the same patients, so the splits are drawn"
        listed = replace(listed, account=replace(listed.account, notes=(*listed.account.notes, note)))
    if splits and options.splits == "keep":
        require_grouped(records, table.source, lines)
    left_out = {**listed.account.left_out, **_left_out(table, dict(wanted), repeated)}
    account = replace(listed.account, left_out=left_out)
    records, account = _with_patients(records, root, account)
    return OwnImages(tuple(records), sites, bool(splits), root, account, lines)


def _require_names(source: str, names: Sequence[tuple[int, str]]) -> None:
    for line, name in names:
        if not name:
            raise DataError(
                f"{source} line {line}, column image: the image's name is missing; write it there, or add "
                "--skip-unusable to leave such rows out"
            )


def _left_out(table: Table, wanted: Mapping[int, object], repeated: Mapping[int, str]) -> dict[str, str]:
    """The lines that give no image, with the reason."""
    unwanted = {line: UNWANTED for line, _ in table.rows if line not in wanted}
    return {f"line {line}": reason for line, reason in {**unwanted, **table.left_out, **repeated}.items()}


def _images_of_list(table: Table, root: Path, options: OwnImageOptions, pattern: re.Pattern[str] | None) -> OwnImages:
    """The images of a list of patients or lesions, which names none."""
    place = place_at(root)
    if place is None:
        raise DataError(f"{table.source} names no images and {root} is no folder of them; name it by --root")
    images, left_out = look_at(place)
    listed, others = images_by_key(table, place, images, None if pattern is None else partial(found_in, pattern))
    rows = [(number, row) for number, (_, row) in enumerate(listed.rows)]
    own = replace(options, patient_pattern="") if "patient" in table.columns else options
    found = images_of_rows(replace(listed, rows=tuple(rows)), root, own)
    left = {**found.account.left_out, **left_out, **others}
    return replace(found, account=replace(found.account, things="files", left_out=left), lines=())


def _with_patients(records: Sequence[Record], root: Path, account: Import) -> tuple[list[Record], Import]:
    """Fill in the patients that rows lack: those of DICOM headers, or, where none is known, those in the images' names."""
    lacking = [record.image for record in records if is_missing(record.patient)]
    known = _patients_in_headers(root, lacking, account)
    note = f"the patients of {len(known)} DICOM files are those of their headers (PatientID)"
    if len({*known.values()}) < 2 and len(lacking) == len(records) and not any(record.lesion for record in records):
        known = {name: own for name in lacking if (own := found_in(_PERSON, name))}
        first = next(iter(known.values()), "")
        note = f"the patients are those in the images' names, such as {first} (--patient-pattern for others)"
        known = known if len({*known.values()}) < len(known) == len(lacking) else {}
    if len({*known.values()}) < 2:
        return [*records], account
    filled = [replace(own, patient=known.get(own.image, own.patient)) for own in records]
    return filled, replace(account, notes=(*account.notes, note))


def _patients_in_headers(root: Path, names: Sequence[str], account: Import) -> dict[str, str]:
    dicom = [name for name in names if name in account.used and account.used[name].format == "DICOM"]
    place = place_at(root) if dicom else None
    if place is None:
        return {}
    said = {name: read_header(place.open, name, ("PatientID",))["PatientID"] for name in dicom}
    return {name: own for name, own in said.items() if not is_missing(own)}


def _unused(table: Table, options: ManifestOptions) -> list[str]:
    """Which columns have no meaning here, where none names the hospitals or the patients."""
    known = ("image", "site", *MANIFEST_COLUMNS)
    notes = [
        f"column {name} may be a split and is not used; write train, val and test in a column split"
        for name in table.columns
        if "split" not in table.columns
        and word_key(name) in headings("split").keys() - {"phase", "set", "usage"}  # which often say something else
        and all(_FOLD.match(own) or as_boolean(own) or split_named(own) for own in {row[name] for _, row in table.rows})
    ]
    lacking = [name for name in ("site", "patient") if name not in table.columns]
    if "patient" in lacking and ("lesion" in table.columns or options.patient_pattern):
        lacking.remove("patient")
    rest = unused(table.columns, known)
    if not rest or not lacking:
        return notes
    what = " or the ".join({"site": "hospitals", "patient": "patients"}[name] for name in lacking)
    option = ",".join(f"{name}=HEADING" for name in lacking)
    return [*notes, f"no column names the {what} (--columns {option}); unused: {', '.join(rest)}"]


def _repeated(rows: Sequence[Row], source: str) -> dict[int, str]:
    """The lines of images that an earlier row lists with the same label, patient, site and split, with the reason.

    Raises:
        DataError: if the rows of an image differ in one of these.
    """
    first: dict[str, Row] = {}
    repeated = {}
    for line, row in rows:
        earlier, own = first.setdefault(row["image"], (line, row))
        differing = [n for n in ("label", "patient", "lesion", "site", "split") if own.get(n, "") != row.get(n, "")]
        if differing:
            joined = " or, for --task multi, one with both labels as a|b" if "label" in differing else ""
            raise DataError(
                f"{source} line {line}, column image: {row['image']!r} is already on line {earlier} with another "
                f"{' and '.join(differing)}; keep one{joined}"
            )
        if earlier != line:
            repeated[line] = "images of an earlier line"
    return repeated


def _record(
    row: Mapping[str, str],
    where: str,
    labels: Mapping[str, str],
    pattern: re.Pattern[str] | None,
    options: OwnImageOptions,
) -> Record:
    split = split_named(row.get("split", ""))
    if row.get("split") and not split:
        raise DataError(f"{where}, column split: expected one of {', '.join(SPLITS)} or nothing, got {row['split']!r}")
    flag = row.get("labelled", "").lower()
    if flag not in LABELLED_FLAGS:
        raise DataError(f"{where}, column labelled: expected 0, 1, true or false, got {row['labelled']!r}")
    label = labels.get(row["label"], row["label"])
    return Record(
        image=row["image"],
        label=label,
        split=split or "train",
        patient=patient_in(pattern, row["image"]) if pattern else row.get("patient", ""),
        lesion=row.get("lesion", ""),
        source=row.get("source", ""),
        labelled=LABELLED_FLAGS[flag],
        more=further_columns(row, (*MANIFEST_COLUMNS, "site")),
    )


def _all_or_none(source: str, column: str, rows: Sequence[Row]) -> tuple[str, ...]:
    """The values of a column; none if all are empty."""
    values = [row.get(column, "") for _, row in rows]
    if any(values) and not all(values):
        raise DataError(
            f"{source}: column {column} is empty in some rows; fill it in everywhere, or leave it out by --columns {column}="
        )
    return tuple(values) if any(values) else ()
