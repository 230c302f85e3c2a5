"""Data sets whose labels are the names of the folders that the images are in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from grandrounds.data.manifest import Record
from grandrounds.data.readers import open_images
from grandrounds.errors import DataError


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
