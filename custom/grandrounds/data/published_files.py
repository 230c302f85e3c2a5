"""Finding the images that a published table names, wherever below a data set's folder its archives were unpacked."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

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
    paths = [
        Path(folder, file).relative_to(root)
        for folder, _, files in os.walk(root, followlinks=True)
        for file in files
        if file.lower().endswith(suffix)
    ]
    found: dict[str, str] = {}
    for path in sorted(paths, key=lambda path: (len(path.parts), path.as_posix())):
        found.setdefault(path.stem, path.as_posix())
    return found


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
