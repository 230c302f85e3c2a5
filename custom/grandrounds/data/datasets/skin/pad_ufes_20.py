"""PAD-UFES-20: 2,298 smartphone images of 1,641 skin lesions of 1,373 patients, from Brazil.

Source: A. G. C. Pacheco et al., "PAD-UFES-20: A skin lesion dataset composed of patient data and clinical images
collected from smartphones", Data in Brief 32:106221, 2020, doi:10.17632/zr7vgbcyr2.1 (CC BY 4.0).
"""

from __future__ import annotations

from pathlib import Path

from grandrounds.data.datasets.published import find_table, image_called, images_by_name, require_distinct
from grandrounds.data.datasets.skin.classes import PAD_UFES_20_LABELS, lesion_label
from grandrounds.data.manifest import Record, read_table

METADATA = "metadata.csv"
COLUMNS = ("patient_id", "lesion_id", "diagnostic", "img_id")
SOURCE = "PAD-UFES-20"


def read_pad_ufes_20(root: Path | str) -> tuple[Record, ...]:
    """Read the records of PAD-UFES-20 in its published layout.

    That is ``metadata.csv`` with the PNG files in ``images/imgs_part_1`` to ``imgs_part_3`` or any other folder below.

    Args:
        root: the folder.

    Returns:
        The records with the classes of ``LESION_CLASSES``, all in split ``train``; images are paths below ``root``.
        Patients and lesions carry the data set's name, because lesions are mere numbers in it.

    Raises:
        DataError: if the table, a column or an image is missing, an image is listed twice, or a diagnosis is unknown;
            file, line and column are named.
    """
    root = Path(root)
    table = find_table(root, (METADATA,), SOURCE)
    images = images_by_name(root, ".png")
    places = f"{root} and the folders in it"
    records = tuple(
        Record(
            image=image_called(row["img_id"].removesuffix(".png"), images, f"{table} line {line}", places),
            label=lesion_label(row["diagnostic"], PAD_UFES_20_LABELS, f"{table} line {line}, column diagnostic"),
            patient=_named(row["patient_id"]),
            lesion=_named(row["lesion_id"]),
            source=SOURCE,
        )
        for line, row in read_table(table, COLUMNS)
    )
    return require_distinct(records, table)


def _named(key: str) -> str:
    return f"{SOURCE}/{key}" if key else ""
