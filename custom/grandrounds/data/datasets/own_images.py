"""Images of one's own: a folder whose sub-folders are classes (and sites, patients or splits), or a table of images.

A table has the columns ``image`` and ``label`` and, optionally, ``split``, ``patient``, ``site``, ``lesion``, ``source``,
``labelled`` and any further ones. The images stay where they are.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from grandrounds.checks import reraised_as
from grandrounds.data.datasets.own_options import FolderOptions, ManifestOptions, OwnImageOptions
from grandrounds.data.image_files import LINKS, ImageFiles, Seen, look_at, place_at
from grandrounds.data.importing import UNWANTED, Import, look_up, shared_root
from grandrounds.data.keys import canonical
from grandrounds.data.manifest import (
    LABELLED_FLAGS,
    MANIFEST_COLUMNS,
    SPLITS,
    Record,
    further_columns,
    require_grouped,
)
from grandrounds.data.tables import Columns, Table, open_table
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE

SPLIT_FOLDERS: Mapping[str, str] = MappingProxyType(
    {
        **{"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val"},
        **{"test": "test", "testing": "test"},
    }
)
UNLABELLED = frozenset({"unlabelled", "unlabeled"})
"""Folders of images whose class is not known."""
UNKNOWN_PATIENTS = (
    "the patients are unknown, so each image counts as a patient of its own: images of one patient may be in training and "
    "test, and scores would be too high; find the patient in an image's name by --patient-pattern (patient_pattern), or "
    "name the column of a table by --columns patient=HEADING"
)


@dataclass(frozen=True)
class OwnImages:
    """Images of one's own as they were read.

    Attributes:
        records: of all images; ``split`` is ``train`` where none is given.
        sites: the site of each image; empty where there are none.
        splits: whether the images have splits.
        root: folder or archive of the images.
        account: of the files or rows that were found.
        lines: of the table, one for each image; empty where there is none.
    """

    records: tuple[Record, ...]
    sites: tuple[str, ...]
    splits: bool
    root: Path
    account: Import
    lines: tuple[int, ...] = ()


def read_folder(root: Path, options: FolderOptions) -> OwnImages:
    """Read a folder or archive of images whose sub-folders are classes.

    Known layouts are ``CLASS/image``, ``SITE/CLASS/image`` and ``CLASS/PATIENT/image``; ``layout`` says others. A folder
    ``train``, ``val`` or ``test`` may be anywhere above the image; folders that all images are below, as archives have them,
    mean nothing, so that a single site needs ``layout``. The images of a folder ``unlabelled`` have no label. Of DICOM files
    the patient is read from the header, if no pattern is given. Patients of different sites are different patients.

    Raises:
        DataError: if an image is in another place or its patient is not found; it is named.
        ConfigurationError: if the folders do not show the layout.
    """
    place = place_at(root)
    if place is None:
        raise DataError(
            f"{root} is neither a folder nor a .zip of images; save its images as files, or for an .npz write a table whose "
            "column image is ARRAY/NUMBER (test_images/0), and name the .npz by --root"
        )
    images, left_out = look_at(place)
    if not images:
        raise DataError(_no_images(root, left_out))
    names = list(images)
    places = [_without_split(PurePosixPath(name).parts[:-1]) for name in names]
    above, inside = _unwrapped([folders for folders, _ in places], options.layout)
    layout = _layout(root, names, inside, options.layout)
    patients = _patients(place, images, options)
    owners = [dict(zip(layout.split("/"), folders, strict=True)) for folders in inside]
    labels = _label_map(options.label_map, [own["class"] for own in owners])
    records, sites = [], []
    for name, own, (_, split), patient in zip(names, owners, places, patients, strict=True):
        label = "" if own["class"].casefold() in UNLABELLED else own["class"]
        if label in labels and not labels[label]:
            continue
        site, known = own.get("site", ""), patient or own.get("patient", "")
        local = f"{site}/{known}" if site and known else known
        records.append(Record(name, labels.get(label, label), split or "train", local))
        sites.append(site)
    notes = _assumptions(root, above, layout if options.layout == "auto" else "", left_out)
    account = Import("files", images, left_out, notes)
    account = account.without(set(names) - {record.image for record in records}, UNWANTED)
    splits = any(split for _, split in places)
    return OwnImages(tuple(records), tuple(sites) if any(sites) else (), splits, root, account)


def _no_images(root: Path, left_out: Mapping[str, str]) -> str:
    reasons = ", ".join(f"{count} {reason}" for reason, count in Import("files", {}, left_out).reasons.items())
    expected = f"{root.name}/CLASS/image or {root.name}/SITE/CLASS/image"
    message = f"{root} has no image that can be used ({reasons or 'no files'}); expected {expected}"
    if LINKS in left_out.values() and root.is_dir():
        return f"{message}; for files in place of links: cp -rL {shlex.quote(str(root))} NEW"
    return message


def _assumptions(root: Path, above: str, assumed_layout: str, left_out: Iterable[str]) -> tuple[str, ...]:
    """What was assumed in reading a folder, one sentence each."""
    notes = []
    if above:
        notes.append(f"all images are below {above!r}, which is taken for no site (--layout site/class if it is one)")
    if assumed_layout == "site/class":
        notes.append(
            "the first folders are taken for sites, the second for classes (--layout 'class/*' if the first are classes)"
        )
    tables = [name for name in left_out if name.casefold().endswith((".csv", ".tsv", ".xlsx", ".xls", ".parquet"))]
    if tables:
        notes.append(
            f"the folders are the labels; {tables[0]} is not read: import it with --root {root} if it has the labels"
        )
    return tuple(notes)


def read_image_table(root: Path, options: ManifestOptions) -> OwnImages:
    """Read a table of images, which are below ``root``.

    Raises:
        DataError: if it is no table, has no column ``image`` or ``label``, or a row or an image is damaged; file, line and
            column are named.
    """
    columns = Columns(
        ("image", "label"),
        ("site", *MANIFEST_COLUMNS[2:]),
        options.columns,
        options.sheet,
        task=options.kind,
    )
    table = open_table(options.manifest, columns)
    if root == options.manifest.parent:
        root = shared_root([row["image"] for _, row in table.rows], root)
    return images_of_rows(table, root, options)


def images_of_rows(table: Table, root: Path, options: OwnImageOptions) -> OwnImages:
    """Images from the rows of a table.

    Args:
        table: with the columns ``image`` and ``label``.
        root: folder or archive of the images.
        options: of the data set.

    Raises:
        DataError: if a row is damaged or its image cannot be used; source, line and column are named.
    """
    labels = _label_map(options.label_map, [row["label"] for _, row in table.rows])
    pattern = _pattern(options.patient_pattern)
    wanted = [(line, row) for line, row in table.rows if labels.get(row["label"], "kept")]
    for line, row in wanted:
        if not row["image"]:
            raise DataError(f"{table.source} line {line}, column image: the image's name is missing")
    listed = look_up(
        table.source, root, [(line, row["image"]) for line, row in wanted], options.skip_unusable, table.taken
    )
    kept = [(line, {**row, "image": listed.files[line]}) for line, row in wanted if line in listed.files]
    records = [_record(row, f"{table.source} line {line}", labels, pattern, options) for line, row in kept]
    _require_once([(line, row["image"]) for line, row in kept], table.source)
    sites, splits = (
        _all_or_none(table.source, column, [row.get(column, "") for _, row in kept]) for column in ("site", "split")
    )
    if splits and options.splits == "keep":
        require_grouped(records, table.source, [line for line, _ in kept])
    used = {line for line, _ in wanted}
    unwanted = {f"line {line}": UNWANTED for line, _ in table.rows if line not in used}
    account = replace(listed.account, left_out={**listed.account.left_out, **unwanted})
    return OwnImages(tuple(records), sites, bool(splits), root, account, tuple(line for line, _ in kept))


def _require_once(images: Iterable[tuple[int, str]], source: str) -> None:
    seen: dict[str, int] = {}
    for line, name in images:
        if seen.setdefault(name, line) != line:
            raise DataError(f"{source} line {line}, column image: {name!r} is already on line {seen[name]}; keep one")


def _record(
    row: Mapping[str, str],
    where: str,
    labels: Mapping[str, str],
    pattern: re.Pattern[str] | None,
    options: OwnImageOptions,
) -> Record:
    split = SPLIT_FOLDERS.get(row.get("split", "").casefold(), "")
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
        patient=_match(pattern, row["image"]) if pattern else row.get("patient", ""),
        lesion=row.get("lesion", ""),
        source=row.get("source", ""),
        labelled=LABELLED_FLAGS[flag],
        more=further_columns(row, (*MANIFEST_COLUMNS, "site")),
    )


def _all_or_none(source: str, column: str, values: Sequence[str]) -> tuple[str, ...]:
    """The values of a column; none if all are empty."""
    if any(values) and not all(values):
        raise DataError(f"{source}: column {column} is empty in some rows; fill it in everywhere, or leave it out")
    return tuple(values) if any(values) else ()


def _without_split(folders: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """The folders without the one that is named after a split, and that split."""
    named = [folder for folder in folders if folder.casefold() in SPLIT_FOLDERS]
    if len(named) != 1:
        return tuple(folders), ""
    return tuple(folder for folder in folders if folder != named[0]), SPLIT_FOLDERS[named[0].casefold()]


def _unwrapped(folders: Sequence[Sequence[str]], wanted: str) -> tuple[str, list[Sequence[str]]]:
    """The folder that all images are below, and the folders of each image without it."""
    spare = min(map(len, folders)) - len(wanted.split("/"))
    above = PurePosixPath(os.path.commonpath(["/".join(own) for own in folders])).parts[: max(spare, 0)]
    return "/".join(above), [own[len(above) :] for own in folders]


def _layout_remedy(depth: int) -> str:
    """What to do where the folders do not show the layout; ``depth`` is 0 if there are none or it differs."""
    if not depth:
        return "list the images in a table with the columns image, label and patient"
    others = ["*"] * (depth - 1)
    layouts = dict.fromkeys("/".join(own) for own in (["class", *others], [*others, "class"]))
    return f"say which folder is the class by --layout {' or '.join(map(repr, layouts))}; others are site, patient or *"


def _layout(root: Path, names: Sequence[str], folders: Sequence[Sequence[str]], wanted: str) -> str:
    """What the folders between root and image are."""
    depth = Counter(len(own) for own in folders)
    there = depth.most_common(1)[0][0]
    levels = there if wanted == "auto" else len(wanted.split("/"))
    usual = levels in (1, 2) or wanted != "auto"
    odd = next((name for name, own in zip(names, folders, strict=True) if len(own) != levels or not usual), None)
    if odd is not None:
        known = f"{wanted}/image" if wanted != "auto" else "CLASS/image, SITE/CLASS/image or CLASS/PATIENT/image"
        remedy = _layout_remedy(there if len(depth) == 1 else 0)
        raise DataError(f"{root}: {odd} is not where an image is expected: {known}; {remedy}")
    if wanted != "auto":
        return wanted
    if levels == 1:
        return "class"
    above: dict[str, set[str]] = defaultdict(set)
    for first, second in folders:
        above[second].add(first)
    alone = all(len(sites) == 1 for sites in above.values())
    if len({first for first, _ in folders}) > 1 and (alone or len(above) == 1):
        seen = (
            "no folder of the second level occurs twice" if alone else f"the second level is always {folders[0][1]!r}"
        )
        raise ConfigurationError(
            f"{root}: {seen}, so it is not clear what the levels are; add --layout site/class or --layout class/patient, or "
            "'class/*' or '*/class' if the other level is neither"
        )
    return "site/class"


def _patients(place: ImageFiles, images: Mapping[str, Seen], options: FolderOptions) -> list[str]:
    pattern = _pattern(options.patient_pattern)
    if pattern is not None:
        return [_match(pattern, name) for name in images]
    if not options.patient_tag:
        return [_header(place, name, "PatientID") if image.format == "DICOM" else "" for name, image in images.items()]
    patients = {name: _header(place, name, options.patient_tag) for name in images}
    missing = next((name for name, patient in patients.items() if not patient), None)
    if missing:
        raise DataError(
            f"{place.root / missing}: its DICOM header has no {options.patient_tag}; give another --patient-tag, or "
            "--patient-pattern"
        )
    return list(patients.values())


def _header(place: ImageFiles, name: str, keyword: str) -> str:
    from pydicom import dcmread

    try:
        with place.open(name) as stream:
            header = dcmread(stream, stop_before_pixels=True, specific_tags=[keyword], force=True)
        return str(header.get(keyword) or "").strip()
    except Exception as error:  # a damaged header fails in many ways
        raise DataError(f"{place.root / name}: its DICOM header cannot be read ({error})") from error


def _pattern(text: str) -> re.Pattern[str] | None:
    with reraised_as(ConfigurationError, re.error, where=f"patient_pattern {text!r} is no regular expression"):
        return re.compile(text) if text else None


def _match(pattern: re.Pattern[str], name: str) -> str:
    """The first group of the pattern in an image's name, or all that it matches."""
    match = pattern.search(name)
    patient = (match.group(1) if pattern.groups else match.group()) if match else ""
    if not patient:
        raise DataError(f"image {name!r}: patient_pattern {pattern.pattern!r} finds no patient in its name")
    return patient


def _label_map(entries: Sequence[str], occurring: Iterable[str]) -> dict[str, str]:
    """New labels by the spellings that occur, from ``OLD=NEW``; an empty new one leaves the images out."""
    spellings: dict[str, list[str]] = defaultdict(list)
    for label in dict.fromkeys(filter(None, occurring)):
        spellings[canonical(label)].append(label)
    label_map: dict[str, str] = {}
    for entry in entries:
        old, equals, new = (canonical(part) for part in entry.partition("="))
        if not equals or not old:
            raise ConfigurationError(f"label_map: expected OLD=NEW, got {entry!r}")
        if old not in spellings:
            near = difflib.get_close_matches(old.casefold(), [name.casefold() for name in spellings], n=1)
            hint = next((f"; did you mean {name!r}?" for name in spellings if name.casefold() in near), "")
            raise ConfigurationError(f"label_map {entry!r}: there is no label {old!r}{hint}")
        label_map |= dict.fromkeys(spellings[old], new)
    return label_map


def vocabulary_of(records: Sequence[Record], given: Sequence[str], task: Task = SINGLE) -> tuple[str, ...]:
    """The given classes, else those that labels mention, in natural order.

    Raises:
        DataError: if there are fewer than two.
    """
    occurring = {name for record in records for name in task.mentioned_in(record.label)}
    classes = tuple(given) or tuple(natural_sorted(occurring))
    if len(classes) < 2:
        names = ", ".join(classes) or "none"
        raise DataError(f"the images are of too few classes: {names}; expected at least two")
    return classes


def with_drawn_splits(images: OwnImages) -> OwnImages:
    """The same images as if none had a split."""
    return replace(images, records=tuple(replace(record, split="train") for record in images.records), splits=False)
