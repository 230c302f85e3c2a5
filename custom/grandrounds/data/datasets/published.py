"""Finding the images that a published table names, wherever below a data set's folder its archives were unpacked.

Data sets whose labels are the names of the folders that the images are in.
"""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError


def find_table(root: Path, names: Sequence[str], dataset: str) -> Path:
    """The first of these files, by paths below ``root``, that is there.

    Raises:
        DataError: if none is; the message says what was looked for.
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
    """The path of an image.

    Args:
        name: what the table says.
        images: paths by name.
        where: file and line of the table, for the message.
        places: where the images were looked for.

    Raises:
        DataError: if it is not there.
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
    """Read the records of a folder with one folder of images for each class, at any depth.

    Args:
        root: the folder; hidden files are not looked at.
        classes: what the images of a folder of this name show; None leaves them out.
        dataset: how errors call the data set, and the source of the records.

    Returns:
        The records, in the order of their names (all in split ``train``), and how many images of each folder were left out.

    Raises:
        DataError: if a folder of this list is missing or has no image, or there are images in another folder: counts would
            not be those of the data set.
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
