"""Pieces of the readers of published data sets: tables, folders of images, folders as classes, and labelled arrays.

Images are found wherever below a data set's folder its archives were unpacked. CIFAR-10 and Fashion-MNIST are published in
formats of their own, in several files each; because a site's images have one root, they are written once into an npz file,
as ``train/0``, ``train/1``, ... and ``test/0``, ... with their labels beside them.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import Record, require_known_label
from grandrounds.errors import DataError
from grandrounds.files import replacing

BENIGN: Final = "benign"
MALIGNANT: Final = "malignant"
NORMAL: Final = "normal"
MALIGNANCY_CLASSES = (BENIGN, MALIGNANT)
NO_CLASS = ""
"""The label of images that belong to no class of the vocabulary and are not used."""

PARTS = ("train", "test")
DIGEST = "source_sha256"


def find_table(root: Path, names: Sequence[str], dataset: str) -> Path:
    """The first of these files, by paths below ``root``, that is there.

    Raises:
        DataError: if none is; the message lists these files.
    """
    for name in names:
        if (root / name).is_file():
            return root / name
    raise DataError(f"no {dataset} in {root}: looked for {', '.join(names)}; name the data set's own folder")


def images_by_name(root: Path, suffix: str) -> dict[str, str]:
    """Path below ``root`` of every file with this ending (in any case), by its name without it.

    Of files of one name the one nearest to ``root`` counts, and among those the first in alphabetical order: archives
    are often unpacked twice.
    """
    found: dict[str, str] = {}
    for path in sorted(_files(root, suffix), key=lambda path: (len(path.parts), path.as_posix())):
        found.setdefault(path.stem, path.as_posix())
    return found


def images_by_folder(root: Path, folders: Collection[str], suffix: str) -> dict[str, list[str]]:
    """Paths below ``root`` of the files with this ending (in any case) in each of these folders, wherever it is.

    Returns:
        Sorted paths by folder, and these in the order of their names.
    """
    found: dict[str, list[str]] = {folder: [] for folder in sorted(folders)}
    for path in _files(root, suffix):
        own = next((part for part in path.parts[:-1] if part in found), None)
        if own is not None:
            found[own].append(path.as_posix())
    return {folder: sorted(paths) for folder, paths in found.items()}


def images_in_archive(archive: Path, table: Path) -> dict[str, str]:
    """Path of every entry of a zip file, by itself.

    Raises:
        DataError: naming the archive, and the table beside it that names its entries, if it cannot be read.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            return {name: name for name in opened.namelist()}
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{archive}, which {table.name} belongs to, cannot be read: {error}") from error


def image_called(name: str, images: Mapping[str, str], where: str, places: str) -> str:
    """The path of an image that a table names.

    Raises:
        DataError: if it is missing; ``where`` is file and line, ``places`` the folders that were searched.
    """
    if name not in images:
        raise DataError(f"{where}: image {name!r} was looked for in {places} and not found; complete the data set")
    return images[name]


def require_distinct(records: tuple[Record, ...], table: Path) -> tuple[Record, ...]:
    """Return the records if no image occurs twice.

    Raises:
        DataError: naming the table and the first image that does.
    """
    seen: set[str] = set()
    for record in records:
        if record.image in seen:
            raise DataError(f"{table}: image {record.image!r} is listed twice; remove one row")
        seen.add(record.image)
    return records


def _files(root: Path, suffix: str) -> Iterator[Path]:
    for folder, _, files in os.walk(root, followlinks=True):
        yield from (Path(folder, file).relative_to(root) for file in files if file.lower().endswith(suffix))


def read_class_folders(
    root: Path, classes: Mapping[str, str | None], dataset: str
) -> tuple[tuple[Record, ...], dict[str, int]]:
    """Read the records of a folder with one folder of images for each class, at any depth; hidden files are skipped.

    Returns:
        The records by name (all in split ``train``), and the number of images left out of each folder whose class is None.

    Raises:
        DataError: if a folder is missing or empty, or there are images in another folder.
    """
    with open_images(root) as reader:
        names = reader.names()
    folders = Counter(PurePosixPath(name).parent.name for name in names)
    for folder in classes:
        if not folders[folder]:
            raise DataError(
                f"no whole {dataset} in {root}: folder {folder} is missing or empty; name the unpacked folder"
            )
    for name in names:
        if PurePosixPath(name).parent.name not in classes:
            raise DataError(
                f"{root}: image {name!r} is in a folder that is no class of {dataset}; expected {', '.join(classes)}"
            )
    labels = [(name, classes[PurePosixPath(name).parent.name]) for name in names]
    records = tuple(Record(name, label, source=dataset) for name, label in labels if label is not None)
    return records, {folder: folders[folder] for folder, label in classes.items() if label is None}


def mapped_label(name: str, labels: Mapping[str, str], where: str) -> str:
    """The class of a published label; empty if it has no class.

    Raises:
        DataError: if the label is unknown.

    Example:
        >>> mapped_label("ACK", {"ACK": "ak", "UNK": ""}, "metadata.csv line 2")
        'ak'
    """
    require_known_label(name, tuple(labels), where)
    return labels[name]


class LabelledImages(NamedTuple):
    """Images and their labels.

    Attributes:
        images: shape ``(n, height, width)`` or ``(n, height, width, 3)``, uint8.
        labels: shape ``(n,)``, integers, index into the vocabulary.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.integer]


def write_arrays(parts: Mapping[str, LabelledImages], path: Path, digest: str) -> None:
    """Write images and labels into an npz file, uncompressed, so that nobody ever sees half of it.

    Args:
        parts: the images of ``train`` and ``test``.
        path: the file.
        digest: of what the images were made from, see :func:`digest_of`.
    """
    arrays: dict[str, Any] = {DIGEST: np.array(digest)}
    for part, (images, labels) in parts.items():
        arrays |= {part: images, f"{part}_labels": labels.astype(np.uint8)}
    with replacing(path) as stream:
        np.savez(stream, **arrays)


def is_made_from(path: Path, digest: str) -> bool:
    """Whether the file at ``path`` was written by :func:`write_arrays` from the same source."""
    try:
        with np.load(path, allow_pickle=False) as content:
            return DIGEST in content and str(content[DIGEST]) == digest
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return False


def digest_of(files: Iterable[Path]) -> str:
    """SHA-256 of the contents of some files, one after the other, in hexadecimal.

    Raises:
        DataError: naming the file that cannot be read.
    """
    digest = hashlib.sha256()
    for path in files:
        try:
            with path.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


def read_labels(path: Path, classes: Sequence[str], source: str) -> tuple[Record, ...]:
    """The records of an npz file with images ``train`` and ``test`` and their labels ``train_labels`` and ``test_labels``.

    Returns:
        One record per image, those of ``train`` first; all in split ``train``. A label is an index into ``classes``.

    Raises:
        DataError: if an array is missing, a label is no class, or images and labels differ in number.
    """
    with open_images(path) as reader:
        names = set(reader.names())
    records: list[Record] = []
    try:
        with np.load(path, allow_pickle=False) as content:
            for part in PARTS:
                labels = require_labels(content[f"{part}_labels"], len(classes), f"{path}: {part}_labels")
                records += (Record(f"{part}/{row}", classes[label], source=source) for row, label in enumerate(labels))
    except KeyError as error:
        raise DataError(f"{path}: {error.args[0]}; expected labels of {' and '.join(PARTS)}") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if names != {record.image for record in records}:
        raise DataError(f"{path} has {len(names)} images and {len(records)} labels; every image needs one label")
    return tuple(records)


def require_labels(labels: NDArray[np.generic], classes: int, where: str) -> list[int]:
    """The labels as plain integers.

    Raises:
        DataError: if they are no one-dimensional array of integers from 0 to ``classes - 1``.
    """
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"{where} must be a row of integers, got {labels.dtype} of shape {labels.shape}")
    values: list[int] = labels.tolist()
    if values and not 0 <= min(values) <= max(values) < classes:
        raise DataError(f"{where}: labels must be from 0 to {classes - 1}, got {min(values)} to {max(values)}")
    return values
