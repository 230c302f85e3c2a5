"""Four public data sets of skin lesions under one folder, with the same eight classes.

Source: T. Bdair, N. Navab, S. Albarqouni, "Semi-supervised federated peer learning for skin lesion classification",
MELBA 2022. ISIC 2019 contains HAM10000, so that in the paper's division most images of three clients are also at others,
tests included. The variant ``clean`` is the same experiment without them.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from grandrounds.data.datasets.skin.classes import HAM10000_LABELS
from grandrounds.data.datasets.skin.derm7pt import SOURCE as DERM7PT
from grandrounds.data.datasets.skin.derm7pt import read_derm7pt
from grandrounds.data.datasets.skin.ham10000 import read_ham10000
from grandrounds.data.datasets.skin.isic2019 import SOURCE as ISIC2019
from grandrounds.data.datasets.skin.isic2019 import read_isic2019
from grandrounds.data.datasets.skin.pad_ufes_20 import SOURCE as PAD_UFES_20
from grandrounds.data.datasets.skin.pad_ufes_20 import read_pad_ufes_20
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError

Variant = Literal["paper", "clean"]

HAM10000 = "HAM10000"
FOLDERS: Mapping[str, str] = {
    ISIC2019: "isic2019",
    HAM10000: "ham10000",
    PAD_UFES_20: "pad_ufes_20",
    DERM7PT: "derm7pt",
}
DOWNSAMPLED = "_downsampled"
"""What ISIC 2019 appends to the name of an image that it has made smaller."""


class Removed(NamedTuple):
    """How many images of ISIC 2019 were removed because HAM10000 has them.

    Attributes:
        same_name: under the same ISIC identifier.
        same_content: under another name, byte by byte.
    """

    same_name: int
    same_content: int


def read_lesions(root: Path | str, variant: Variant) -> tuple[tuple[Record, ...], Removed]:
    """Read ISIC 2019, HAM10000, PAD-UFES-20 and Derm7pt as one data set.

    Args:
        root: a folder with the folders ``isic2019``, ``ham10000``, ``pad_ufes_20`` and ``derm7pt``, each in its data
            set's published layout.
        variant: ``paper`` takes all images, each for itself: patients and lesions are forgotten, because the paper's
            division knows none. ``clean`` removes from ISIC 2019 what HAM10000 has, and keeps patients and lesions.

    Returns:
        The records with the classes of ``LESION_CLASSES``, images as paths below ``root``, and what was removed.

    Raises:
        DataError: if a folder is missing or a data set is not as it must be.
    """
    root = Path(root)
    for source, folder in FOLDERS.items():
        if not (root / folder).is_dir():
            expected = ", ".join(FOLDERS.values())
            raise DataError(f"no {source} in {root}: expected the folders {expected}; put it into {root / folder}")
    own = {
        ISIC2019: _below(read_isic2019(root / FOLDERS[ISIC2019]), FOLDERS[ISIC2019]),
        HAM10000: _below(_ham10000(root / FOLDERS[HAM10000]), FOLDERS[HAM10000]),
        PAD_UFES_20: _below(read_pad_ufes_20(root / FOLDERS[PAD_UFES_20]), FOLDERS[PAD_UFES_20]),
        DERM7PT: _below(read_derm7pt(root / FOLDERS[DERM7PT]), FOLDERS[DERM7PT]),
    }
    removed = Removed(0, 0)
    if variant == "clean":
        own[ISIC2019], removed = _without_copies(own[ISIC2019], own[HAM10000], root)
    records = tuple(record for records in own.values() for record in records)
    if variant == "paper":
        records = tuple(replace(record, patient="", lesion="") for record in records)
    return records, removed


def _below(records: Iterable[Record], folder: str) -> tuple[Record, ...]:
    return tuple(replace(record, image=f"{folder}/{record.image}") for record in records)


def _ham10000(root: Path) -> tuple[Record, ...]:
    records, images = read_ham10000(root)
    if images != root:
        raise DataError(
            f"{images} is an archive; unpack it: the four data sets need their images as files in one folder"
        )
    return tuple(replace(record, label=HAM10000_LABELS[record.label]) for record in records)


def _without_copies(
    records: Sequence[Record], others: Sequence[Record], root: Path
) -> tuple[tuple[Record, ...], Removed]:
    """The records whose image is none of the others', by identifier and by content."""
    identifiers = {_identifier(record) for record in others}
    renamed = [record for record in records if _identifier(record) not in identifiers]
    copies = _same_content(renamed, others, root)
    kept = tuple(record for record in renamed if record.image not in copies)
    return kept, Removed(len(records) - len(renamed), len(renamed) - len(kept))


def _identifier(record: Record) -> str:
    return Path(record.image).stem.removesuffix(DOWNSAMPLED)


def _same_content(records: Sequence[Record], others: Sequence[Record], root: Path) -> set[str]:
    """The images among ``records`` that are a file of ``others``; only files of equal size are read."""
    of_size: dict[int, list[Path]] = defaultdict(list)
    for record in others:
        of_size[(root / record.image).stat().st_size].append(root / record.image)
    found: set[str] = set()
    digests: dict[Path, bytes] = {}
    for record in records:
        candidates = of_size.get((root / record.image).stat().st_size, [])
        for path in candidates:
            digests.setdefault(path, _digest(path))
        if candidates and _digest(root / record.image) in {digests[path] for path in candidates}:
            found.add(record.image)
    return found


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()
