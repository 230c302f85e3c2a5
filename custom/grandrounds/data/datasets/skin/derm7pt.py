"""Derm7pt: 1,011 cases with a dermoscopic and a clinical image each, from an atlas of dermoscopy.

Source: J. Kawahara, S. Daneshvar, G. Argenziano, G. Hamarneh, "Seven-point checklist and skin lesion classification using
multitask multimodal neural nets", IEEE J. Biomed. Health Inform. 23(2), 2019, https://derm.cs.sfu.ca. The 16 cases of
melanosis and 8 miscellaneous ones fit none of the eight classes; 987 remain.
"""

from __future__ import annotations

from pathlib import Path

from grandrounds.data.datasets.published import find_table, require_distinct
from grandrounds.data.datasets.skin.classes import DERM7PT_LABELS, LEFT_OUT, lesion_label
from grandrounds.data.manifest import Record, read_table
from grandrounds.errors import DataError

METADATA = ("meta/meta.csv", "release_v0/meta/meta.csv")
IMAGES = "images"
COLUMNS = ("case_num", "diagnosis", "derm")
SOURCE = "Derm7pt"


def read_derm7pt(root: Path | str) -> tuple[Record, ...]:
    """Read the dermoscopic images of Derm7pt in its published layout.

    That is ``meta/meta.csv`` beside the folder ``images``, both in ``root`` or in ``release_v0`` below it.

    Args:
        root: the folder.

    Returns:
        The records with the classes of ``LESION_CLASSES``, all in split ``train``; images are paths below ``root``. A
        case is a lesion. Cases of melanosis and miscellaneous ones are left out.

    Raises:
        DataError: if the table, a column or an image is missing, an image is listed twice, or a diagnosis is unknown;
            file, line and column are named.
    """
    root = Path(root)
    table = find_table(root, METADATA, "Derm7pt")
    folder = table.parent.parent / IMAGES
    records = []
    for line, row in read_table(table, COLUMNS):
        label = lesion_label(row["diagnosis"], DERM7PT_LABELS, f"{table} line {line}, column diagnosis")
        if label == LEFT_OUT:
            continue
        path = folder / row["derm"]
        if not row["derm"] or not path.is_file():
            raise DataError(
                f"{table} line {line}, column derm: image {row['derm']!r} was looked for in {folder} and not found; "
                "complete the data set"
            )
        lesion = f"{SOURCE}/{row['case_num']}"
        records.append(Record(path.relative_to(root).as_posix(), label, lesion=lesion, source=SOURCE))
    return require_distinct(tuple(records), table)
