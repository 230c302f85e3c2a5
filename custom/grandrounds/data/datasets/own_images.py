"""Images of one's own: a folder whose sub-folders are classes (and sites, patients or splits), or a table of images.

A table has the columns ``image`` and ``label`` and, optionally, ``split``, ``patient``, ``site``, ``lesion``, ``source``,
``labelled`` and any further ones. The images stay where they are.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from grandrounds.checks import did_you_mean, reraised_as
from grandrounds.data.belonging import empty_folders, remarks, second_copies
from grandrounds.data.conventions import CONVENTIONS, MissingColumns
from grandrounds.data.datasets.layouts import read_layout
from grandrounds.data.datasets.own_options import FolderOptions
from grandrounds.data.image_files import DAMAGED, FRAMES, LINKS, OTHER, ImageFiles, Seen, look_at, place_at
from grandrounds.data.images.dicom import read_header
from grandrounds.data.importing import UNWANTED, Import
from grandrounds.data.joining import open_joined
from grandrounds.data.keys import canonical
from grandrounds.data.manifest import MANIFEST_COLUMNS, Record
from grandrounds.data.tables import Columns, is_table
from grandrounds.data.words import name_parts, split_of
from grandrounds.errors import ConfigurationError, DataError, GrandRoundsError
from grandrounds.files import printable
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import FINDINGS, SINGLE
from grandrounds.remedies import example_pattern

_MOST_TABLES = 8
UNKNOWN_PATIENTS = (
    "the patients are unknown, so each image counts as a patient of its own: images of one patient may be in training and "
    "test, and scores would be too high; find the patient in an image's name by --patient-pattern (patient_pattern), or "
    "name the column of a table by --columns patient=HEADING"
)


STUDY = Columns(("image", "label"), (*MANIFEST_COLUMNS[2:], "site"), conventions=CONVENTIONS)
"""The columns of a study's table, as it is read."""


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

    ``CLASS/image`` and ``SITE/CLASS/image`` are read as such; others are asked about, see
    :func:`~grandrounds.data.datasets.layouts.read_layout`. Folders that all images are below, as archives have them, mean
    nothing, so that a single site needs ``layout``. The images of a folder ``unlabelled`` have no label. Of DICOM files
    the patient is read from the header, if no pattern is given. Patients of different sites are different patients.

    Raises:
        DataError: if an image is in another place or its patient is not found; it is named.
        ConfigurationError: if the folders do not show the layout.
    """
    place = place_at(root)
    if place is None:
        raise DataError(
            f"{root} is neither a folder nor a .zip nor a table of images; name the folder of all classes, or write a table "
            "with the columns image and label (CSV, .xlsx, Parquet, JSON), for an .npz with image as ARRAY/NUMBER "
            "(test_images/0) and --root"
        )
    images, left_out = look_at(place)
    if not images:
        raise DataError(_no_images(root, left_out))
    copies = second_copies(place, images)
    images, left_out = {name: seen for name, seen in images.items() if name not in copies}, {**left_out, **copies}
    names = list(images)
    stems = {PurePosixPath(name).stem for name in names}
    others = [PurePosixPath(name) for name, reason in left_out.items() if reason == OTHER and is_table(Path(name))]
    lists = [path for path in others if path.suffix.casefold() != ".txt" or split_of(path.stem)[0]]
    tables = [str(path) for path in lists if path.stem not in stems]
    try:
        folders = read_layout(root, names, options.layout, options.label_map)
    except (DataError, ConfigurationError) as error:
        raise type(error)(f"{error}{_labels_in(tables, root, options.kind)}") from None
    labels = label_map_of(options.label_map, [own["class"] for own in folders.owners])
    if len({own["class"] for own in folders.owners}) < 2 and tables:
        raise DataError(
            f"{root}: its folders name no classes (only {folders.owners[0]['class']!r})"
            f"{_labels_in(tables, root, options.kind)}"
        )
    records, sites = [], []
    patients = _patients(place, images, options)
    for name, own, split, patient in zip(names, folders.owners, folders.splits, patients, strict=True):
        label = own["class"]
        if label in labels and not labels[label]:
            continue
        site, known = own.get("site", ""), patient or own.get("patient", "")
        local = f"{site}/{known}" if site and known else known
        records.append(Record(name, labels.get(label, label), split or "train", local))
        sites.append(site)
    notes = [*folders.notes, *remarks(images)]
    if tables:
        notes.append(
            f"the folders are the labels; {tables[0]} is not read: import it with --root {root} if it has the labels"
        )
    damaged = [name for name, reason in left_out.items() if reason in (DAMAGED, FRAMES)]
    if empty := empty_folders(place, images, damaged):
        notes.append(
            f"no image that can be used is in {', '.join(map(printable, empty[:3]))}{' ...' if empty[3:] else ''}"
        )
    account = Import("files", images, left_out, tuple(notes))
    account = account.without(set(names) - {record.image for record in records}, UNWANTED)
    has_splits = any(folders.splits)
    return OwnImages(tuple(records), tuple(sites) if any(sites) else (), has_splits, root, account)


def _labels_in(tables: Sequence[str], root: Path, task: Task) -> str:
    """What to type where the labels may be in a table beside the images."""
    if not tables:
        return ""
    ranked = sorted(tables, key=lambda name: ("train" not in name_parts(name), "submission" in name_parts(name), name))
    options = ((name, _options_of(root / name, task)) for name in ranked[:_MOST_TABLES])
    likely, more = next((pair for pair in options if pair[1] is not None), (ranked[0], ""))
    table, images = (shlex.quote(str(path)) for path in (root / likely, root))
    return f"; the labels may be in {likely}: grandrounds import {table} --root {images}{more} --out DIR"


def _options_of(table: Path, task: Task) -> str | None:
    """The options with which a table is read; None if it lists no labels of images."""
    for kind, option in ((task, ""), (FINDINGS, f" --task {FINDINGS.name}")):
        try:
            open_joined(table, replace(STUDY, task=kind), ())
            return option
        except MissingColumns as error:
            return f"{error.option}{option}" if error.option else None
        except GrandRoundsError:
            continue
    return None


def _no_images(root: Path, left_out: Mapping[str, str]) -> str:
    reasons = ", ".join(f"{count} {reason}" for reason, count in Import("files", {}, left_out).reasons.items())
    expected = f"{root.name}/CLASS/image or {root.name}/SITE/CLASS/image"
    message = f"{root} has no image that can be used ({reasons or 'no files'}); expected {expected}"
    if LINKS in left_out.values() and root.is_dir():
        return f"{message}; for files in place of links: cp -rL {shlex.quote(str(root))} NEW"
    packed = next((name for name in left_out if name.casefold().endswith((".zip", ".tar", ".gz", ".7z", ".rar"))), "")
    return f"{message}; unpack {printable(packed)}, which may hold them, first" if packed else message


def _patients(place: ImageFiles, images: Mapping[str, Seen], options: FolderOptions) -> list[str]:
    pattern = name_pattern(options.patient_pattern)
    if pattern is not None:
        return [patient_in(pattern, name) for name in images]
    if not options.patient_tag:
        return [
            read_header(place.open, name, ("PatientID",))["PatientID"] if image.format == "DICOM" else ""
            for name, image in images.items()
        ]
    patients = {name: read_header(place.open, name, (options.patient_tag,))[options.patient_tag] for name in images}
    missing = next((name for name, patient in patients.items() if not patient), None)
    if missing:
        raise DataError(
            f"{place.root / missing}: its DICOM header has no {options.patient_tag}; give another --patient-tag, or "
            "--patient-pattern"
        )
    return list(patients.values())


def name_pattern(text: str) -> re.Pattern[str] | None:
    """The compiled pattern of patients; None if there is none."""
    with reraised_as(
        ConfigurationError, re.error, where=f"patient_pattern {text!r} is no regular expression, such as '([^/_]+)_'"
    ):
        return re.compile(text) if text else None


def found_in(pattern: re.Pattern[str], name: str) -> str:
    """The first group of the pattern in a name, or all that it matches; empty if nothing."""
    match = pattern.search(name)
    return (match.group(1) if pattern.groups else match.group()) if match else ""


def patient_in(pattern: re.Pattern[str], name: str) -> str:
    """The first group of the pattern in an image's name, or all that it matches."""
    patient = found_in(pattern, name)
    if not patient:
        raise DataError(
            f"image {name!r}: patient_pattern {pattern.pattern!r} finds no patient in its name{example_pattern(name)}"
        )
    return patient


def label_map_of(entries: Sequence[str], occurring: Iterable[str]) -> dict[str, str]:
    """New labels by the spellings that occur, from ``OLD=NEW``; an empty new one leaves the images out."""
    spellings: dict[str, list[str]] = defaultdict(list)
    for label in dict.fromkeys(filter(None, occurring)):
        spellings[canonical(label)].append(label)
    label_map: dict[str, str] = {}
    for entry in entries:
        old, equals, new = (canonical(part) for part in entry.partition("="))
        if not equals or not old:
            hint = f"; did you mean {entry.replace(':', '=')}?" if ":" in entry else ""
            raise ConfigurationError(f"label_map: expected OLD=NEW, got {entry!r}{hint}")
        if old not in spellings:
            hint = did_you_mean(old, spellings, f"{{}}={new}")
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
        raise DataError(f"the images are of too few classes: {names}; name the folder or list of all classes")
    return classes


def with_drawn_splits(images: OwnImages) -> OwnImages:
    """The same images as if none had a split."""
    return replace(images, records=tuple(replace(record, split="train") for record in images.records), splits=False)
