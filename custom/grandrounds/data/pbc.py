"""PBC Barcelona: 17,092 peripheral blood cells of healthy people in eight classes; and BloodMNIST, which is made from it.

Sources: A. Acevedo et al., "A dataset of microscopic peripheral blood cell images for development of automatic recognition
systems", Data in Brief 30:105474, 2020, doi:10.17632/snkd93bnjr.1 (CC BY 4.0); J. Yang et al., "MedMNIST v2", Scientific
Data 10:41, 2023. There is no patient key.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from grandrounds.data.class_folders import read_class_folders
from grandrounds.data.csv_table import read_table
from grandrounds.data.labelled_arrays import require_labels
from grandrounds.data.manifest import Record, require_known_label
from grandrounds.data.published_files import image_called, images_in_archive, require_distinct
from grandrounds.data.readers import open_images
from grandrounds.errors import DataError

PBC_CLASSES = (
    "basophil",
    "eosinophil",
    "erythroblast",
    "ig",
    "lymphocyte",
    "monocyte",
    "neutrophil",
    "platelet",
)
"""``ig`` are the immature granulocytes. The order is BloodMNIST's as well."""

ARCHIVE_MANIFEST = "pbc_barcelona_manifest.csv"
ARCHIVE = "pbc_barcelona_96.zip"
BLOODMNIST = ("bloodmnist.npz", "bloodmnist_64.npz", "bloodmnist_128.npz", "bloodmnist_224.npz")
PARTS = ("train", "val", "test")


def read_pbc(root: Path | str) -> tuple[tuple[Record, ...], Path]:
    """Read the records of PBC Barcelona from one of the layouts in which it is found.

    * the published one: ``PBC_dataset_normal_DIB`` with a folder of JPEG files for each class, or any folder above it;
    * a small one: ``pbc_barcelona_manifest.csv`` beside ``pbc_barcelona_96.zip``.

    Args:
        root: the folder.

    Returns:
        The records (all in split ``train``) and the images' root: the folder, or the archive.

    Raises:
        DataError: if no layout is found, a class is missing or unknown, or images are missing or listed twice.
    """
    root = Path(root)
    if (root / ARCHIVE_MANIFEST).is_file():
        return _read_archive_layout(root)
    records, _ = read_class_folders(root, {name: name for name in PBC_CLASSES}, "PBC-Barcelona")
    return records, root


def read_bloodmnist(root: Path | str) -> tuple[tuple[Record, ...], Path]:
    """Read the records of BloodMNIST from its npz file.

    Args:
        root: the file, or the folder that has ``bloodmnist.npz`` (28 pixels) or one of the larger ones.

    Returns:
        The records, all in split ``train``, those of the published training part first; and the file.

    Raises:
        DataError: if there is no such file, or its arrays are not as they must be.
    """
    root = Path(root)
    path = next((path for path in (root, *(root / name for name in BLOODMNIST)) if path.is_file()), None)
    if path is None:
        raise DataError(f"no BloodMNIST in {root}: looked for {', '.join(BLOODMNIST)}; name its folder")
    with open_images(path) as reader:
        names = set(reader.names())
    records = tuple(record for part in PARTS for record in _bloodmnist_part(path, part))
    if names != {record.image for record in records}:
        raise DataError(f"{path} has {len(names)} images and {len(records)} labels; every image needs one label")
    return records, path


def _bloodmnist_part(path: Path, part: str) -> tuple[Record, ...]:
    try:
        with np.load(path, allow_pickle=False) as content:
            labels = content[f"{part}_labels"]
    except KeyError as error:
        raise DataError(f"{path}: array {part}_labels is missing; expected labels of {', '.join(PARTS)}") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    column = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    numbers = require_labels(column, len(PBC_CLASSES), f"{path}: {part}_labels")
    return tuple(
        Record(f"{part}_images/{row}", PBC_CLASSES[label], source="BloodMNIST") for row, label in enumerate(numbers)
    )


def _read_archive_layout(root: Path) -> tuple[tuple[Record, ...], Path]:
    table, archive = root / ARCHIVE_MANIFEST, root / ARCHIVE
    images = images_in_archive(archive, table)
    records: list[Record] = []
    for line, row in read_table(table, ("image", "label", "source")):
        require_known_label(row["label"], PBC_CLASSES, f"{table} line {line}, column label")
        image = image_called(row["image"], images, f"{table} line {line}", str(archive))
        records.append(Record(image, row["label"], source=row["source"]))
    return require_distinct(tuple(records), table), archive
