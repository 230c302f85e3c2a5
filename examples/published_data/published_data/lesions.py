"""Four public data sets of skin lesions under one folder, with the same eight classes.

Source: T. Bdair, N. Navab, S. Albarqouni, "Semi-supervised federated peer learning for skin lesion classification",
MELBA 2022: the classes of the ISIC 2019 challenge in their order, here under HAM10000's names in lower case. ISIC 2019
contains HAM10000, so in the paper's division most images of three clients are also at others, tests included. The variant
``clean`` is the same experiment without these copies.

* ISIC 2019: 25,331 dermoscopic images from BCN20000, HAM10000 and MSK, https://challenge.isic-archive.com/data/#2019
  (CC BY-NC 4.0); M. Combalia et al., arXiv:1908.02288; Tschandl et al., 2018; N. Codella et al., ISBI 2018. It contains all
  images of HAM10000 under the same names. There is no patient key; about 2,000 images have no lesion either.
* PAD-UFES-20: 2,298 smartphone images of 1,641 lesions of 1,373 patients, from Brazil. A. G. C. Pacheco et al., Data in
  Brief 32:106221, 2020, doi:10.17632/zr7vgbcyr2.1 (CC BY 4.0).
* Derm7pt: 1,011 cases with a dermoscopic and a clinical image each. J. Kawahara et al., "Seven-point checklist and skin
  lesion classification using multitask multimodal neural nets", IEEE J. Biomed. Health Inform. 23(2), 2019,
  https://derm.cs.sfu.ca. The 16 cases of melanosis and 8 miscellaneous ones fit none of the eight classes; 987 remain.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

import grandrounds as gr
from grandrounds.data.datasets.published import (
    ReadDataset,
    find_table,
    image_called,
    images_by_name,
    read_ham10000,
    read_records,
)
from grandrounds.data.manifest import Record, read_table
from grandrounds.data.options import DIVISION, PartitionOptions
from grandrounds.errors import DataError
from published_data.reading import NO_DIAGNOSIS, mapped_label, marked_column

Variant = Literal["paper", "clean"]
LESION_CLASSES = ("mel", "nv", "bcc", "ak", "bkl", "df", "vasc", "scc")

# HAM10000 calls actinic keratoses and Bowen's disease akiec; it has no invasive squamous cell carcinoma.
HAM10000_LESION_LABELS: Mapping[str, str] = {
    "akiec": "ak", "bcc": "bcc", "bkl": "bkl", "df": "df", "mel": "mel", "nv": "nv", "vasc": "vasc",
}  # fmt: skip

ISIC2019_LABELS: Mapping[str, str] = {
    "MEL": "mel", "NV": "nv", "BCC": "bcc", "AK": "ak", "BKL": "bkl", "DF": "df", "VASC": "vasc", "SCC": "scc",
    "UNK": NO_DIAGNOSIS,
}  # fmt: skip

PAD_UFES_20_LABELS: Mapping[str, str] = {
    "MEL": "mel", "NEV": "nv", "BCC": "bcc", "ACK": "ak", "SEK": "bkl", "SCC": "scc",
}  # fmt: skip

DERM7PT_LABELS: Mapping[str, str] = {
    "basal cell carcinoma": "bcc", "blue nevus": "nv", "clark nevus": "nv", "combined nevus": "nv",
    "congenital nevus": "nv", "dermal nevus": "nv", "recurrent nevus": "nv", "reed or spitz nevus": "nv",
    "melanoma": "mel", "melanoma (in situ)": "mel", "melanoma (less than 0.76 mm)": "mel",
    "melanoma (0.76 to 1.5 mm)": "mel", "melanoma (more than 1.5 mm)": "mel", "melanoma metastasis": "mel",
    "dermatofibroma": "df", "lentigo": "bkl", "seborrheic keratosis": "bkl", "vascular lesion": "vasc",
    "melanosis": NO_DIAGNOSIS, "miscellaneous": NO_DIAGNOSIS,
}  # fmt: skip

ISIC2019 = "ISIC2019"
HAM10000 = "HAM10000"
PAD_UFES_20 = "PAD-UFES-20"
DERM7PT = "Derm7pt"
LESION_FOLDERS: Mapping[str, str] = {
    ISIC2019: "isic2019",
    HAM10000: "ham10000",
    PAD_UFES_20: "pad_ufes_20",
    DERM7PT: "derm7pt",
}
DOWNSAMPLED = "_downsampled"
"""What ISIC 2019 appends to the name of an image that it has made smaller."""

GROUND_TRUTH_2019 = "ISIC_2019_Training_GroundTruth.csv"
METADATA_2019 = "ISIC_2019_Training_Metadata.csv"
PAD_METADATA = "metadata.csv"
PAD_COLUMNS = ("patient_id", "lesion_id", "diagnostic", "img_id")
DERM7PT_METADATA = ("meta/meta.csv", "release_v0/meta/meta.csv")
DERM7PT_COLUMNS = ("case_num", "diagnosis", "derm")


class Removed(NamedTuple):
    """How many images of ISIC 2019 were removed: HAM10000 has them under the same ISIC identifier, or byte by byte."""

    same_name: int
    same_content: int


def read_lesions(root: Path | str, variant: Variant) -> tuple[tuple[Record, ...], Removed]:
    """Read ISIC 2019, HAM10000, PAD-UFES-20 and Derm7pt as one data set.

    They are in the folders ``isic2019``, ``ham10000``, ``pad_ufes_20`` and ``derm7pt`` of ``root``, in their published
    layouts. The variant ``paper`` takes all images, each for itself: patients and lesions are forgotten, because the paper's
    division knows none. ``clean`` removes from ISIC 2019 what HAM10000 has, and keeps patients and lesions.

    Returns:
        The records with the classes of ``LESION_CLASSES``, images as paths below ``root``, and what was removed.

    Raises:
        DataError: if a folder is missing or a data set is not as it must be.
    """
    root = Path(root)
    for source, folder in LESION_FOLDERS.items():
        if not (root / folder).is_dir():
            expected = ", ".join(LESION_FOLDERS.values())
            raise DataError(f"no {source} in {root}: expected the folders {expected}; put it into {root / folder}")
    readers = {ISIC2019: read_isic2019, HAM10000: _ham10000, PAD_UFES_20: read_pad_ufes_20, DERM7PT: read_derm7pt}
    own = {source: _below(readers[source](root / folder), folder) for source, folder in LESION_FOLDERS.items()}
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
    return tuple(replace(record, label=HAM10000_LESION_LABELS[record.label]) for record in records)


def _without_copies(
    records: Sequence[Record], others: Sequence[Record], root: Path
) -> tuple[tuple[Record, ...], Removed]:
    """The records whose image is not among the others', by identifier and by content."""
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


def read_isic2019(root: Path | str) -> tuple[Record, ...]:
    """Read the records of the ISIC 2019 training data in its published layout.

    That is ``ISIC_2019_Training_GroundTruth.csv`` and ``ISIC_2019_Training_Metadata.csv`` with the JPEG files in
    ``ISIC_2019_Training_Input`` or any other folder below.

    Returns:
        The records with the classes of ``LESION_CLASSES``, all in split ``train``; images are paths below ``root``.
        Images of class ``UNK`` are left out.

    Raises:
        DataError: if a file, column, image or value is missing or wrong; file and line are named.
    """
    root = Path(root)
    table = find_table(root, (GROUND_TRUTH_2019,), "ISIC 2019")
    lesions = _lesions_2019(root)
    images = images_by_name(root, ".jpg")

    def record(row: dict[str, str], where: str) -> Record | None:
        """The record of a row, unless its class is unknown."""
        label = ISIC2019_LABELS[marked_column(row, tuple(ISIC2019_LABELS), where)]
        if row["image"] not in lesions:
            raise DataError(
                f"{where}, column image: {row['image']!r} has no row in {METADATA_2019}; complete the table"
            )
        if label == NO_DIAGNOSIS:
            return None
        image = image_called(row["image"], images, where, root)
        return Record(image, label, lesion=lesions[row["image"]], source=ISIC2019)

    return read_records(table, ("image", *ISIC2019_LABELS), record)


def _lesions_2019(root: Path) -> dict[str, str]:
    table = find_table(root, (METADATA_2019,), "ISIC 2019")
    return {row["image"]: row["lesion_id"] for _, row in read_table(table, ("image", "lesion_id"))}


def read_pad_ufes_20(root: Path | str) -> tuple[Record, ...]:
    """Read the records of PAD-UFES-20 in its published layout.

    That is ``metadata.csv`` with the PNG files in ``images/imgs_part_1`` to ``imgs_part_3`` or any other folder below.

    Returns:
        The records with the classes of ``LESION_CLASSES``, all in split ``train``; images are paths below ``root``.
        Patients and lesions carry the data set's name, because lesions are mere numbers in it.

    Raises:
        DataError: if a file, column, image or value is missing or wrong; file and line are named.
    """
    root = Path(root)
    table = find_table(root, (PAD_METADATA,), PAD_UFES_20)
    images = images_by_name(root, ".png")

    def record(row: dict[str, str], where: str) -> Record:
        """The record of a row."""
        return Record(
            image=image_called(row["img_id"].removesuffix(".png"), images, where, root),
            label=mapped_label(row["diagnostic"], PAD_UFES_20_LABELS, f"{where}, column diagnostic"),
            patient=_with_name(row["patient_id"]),
            lesion=_with_name(row["lesion_id"]),
            source=PAD_UFES_20,
        )

    return read_records(table, PAD_COLUMNS, record)


def _with_name(key: str) -> str:
    return f"{PAD_UFES_20}/{key}" if key else ""


def read_derm7pt(root: Path | str) -> tuple[Record, ...]:
    """Read the dermoscopic images of Derm7pt in its published layout.

    That is ``meta/meta.csv`` beside the folder ``images``, both in ``root`` or in ``release_v0`` below it.

    Returns:
        The records with the classes of ``LESION_CLASSES``, all in split ``train``; images are paths below ``root``. A
        case is a lesion. Cases of melanosis and miscellaneous ones are left out.

    Raises:
        DataError: if a file, column, image or value is missing or wrong; file and line are named.
    """
    root = Path(root)
    table = find_table(root, DERM7PT_METADATA, "Derm7pt")
    folder = table.parent.parent / "images"

    def record(row: dict[str, str], where: str) -> Record | None:
        """The record of a row, unless it has no class."""
        label = mapped_label(row["diagnosis"], DERM7PT_LABELS, f"{where}, column diagnosis")
        if label == NO_DIAGNOSIS:
            return None
        path = folder / row["derm"]
        if not row["derm"] or not path.is_file():
            raise DataError(
                f"{where}, column derm: image {row['derm']!r} was looked for in {folder} and not found; "
                "complete the data set"
            )
        lesion = f"{DERM7PT}/{row['case_num']}"
        return Record(path.relative_to(root).as_posix(), label, lesion=lesion, source=DERM7PT)

    return read_records(table, DERM7PT_COLUMNS, record)


@dataclass(frozen=True, kw_only=True)
class LesionOptions(PartitionOptions):
    """Options of the four joined data sets of skin lesions."""

    schemes: ClassVar[tuple[str, ...]] = ("sites", "dirichlet", "iid", "fedperl", "external")
    scheme: Annotated[str, f"{DIVISION}, or FedPerl's ten clients (fedperl)"] = "sites"
    variant: Annotated[Variant, "without images that two data sets share, or with them (paper)"] = "clean"

    @property
    def scales_counts(self) -> bool:
        """Whether scheme ``fedperl`` takes fewer images in proportion: where copies were removed."""
        return self.variant == "clean"


@gr.register_dataset("lesions", options=LesionOptions)
def lesions(root: Path, options: LesionOptions) -> ReadDataset:
    """Skin lesions of FedPerl: the folders isic2019, ham10000, pad_ufes_20 and derm7pt."""
    records, removed = read_lesions(root, options.variant)
    copies = {"removed_copies": removed._asdict()} if options.variant == "clean" else {}
    return ReadDataset(records, root, LESION_CLASSES, {"variant": options.variant, **copies})
