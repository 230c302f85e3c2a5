"""PBC Barcelona: 17,092 peripheral blood cells of healthy people in eight classes.

Source: A. Acevedo et al., "A dataset of microscopic peripheral blood cell images for development of automatic recognition
systems", Data in Brief 30:105474, 2020, doi:10.17632/snkd93bnjr.1 (CC BY 4.0). There is no patient key.
"""

from __future__ import annotations

from pathlib import Path

from grandrounds.checks import require_known_label
from grandrounds.data.datasets.published import image_called, images_in_archive, read_class_folders, read_records
from grandrounds.data.manifest import Record

PBC_CLASSES = (
    "basophil", "eosinophil", "erythroblast", "ig", "lymphocyte", "monocyte", "neutrophil", "platelet",
)  # fmt: skip
"""``ig`` are the immature granulocytes. The order is also BloodMNIST's."""

PBC_MANIFEST = "pbc_barcelona_manifest.csv"
PBC_ARCHIVE = "pbc_barcelona_96.zip"


def read_pbc(root: Path | str) -> tuple[tuple[Record, ...], Path]:
    """Read the records of PBC Barcelona from one of the layouts in which it is found.

    * the published one: ``PBC_dataset_normal_DIB`` with a folder of JPEG files for each class, or any folder above it;
    * a small one: ``pbc_barcelona_manifest.csv`` beside ``pbc_barcelona_96.zip``.

    Returns:
        The records (all in split ``train``) and the images' root: the folder, or the archive.

    Raises:
        DataError: if no layout is found, a class is missing or unknown, or images are missing or listed twice.
    """
    root = Path(root)
    if (root / PBC_MANIFEST).is_file():
        return _read_archive_layout(root)
    records, _ = read_class_folders(root, {name: name for name in PBC_CLASSES}, "PBC-Barcelona")
    return records, root


def _read_archive_layout(root: Path) -> tuple[tuple[Record, ...], Path]:
    table, archive = root / PBC_MANIFEST, root / PBC_ARCHIVE
    images = images_in_archive(archive, table)

    def record(row: dict[str, str], where: str) -> Record:
        """The record of a row."""
        require_known_label(row["label"], PBC_CLASSES, f"{where}, column label")
        return Record(image_called(row["image"], images, where, archive), row["label"], source=row["source"])

    return read_records(table, ("image", "label", "source"), record), archive
