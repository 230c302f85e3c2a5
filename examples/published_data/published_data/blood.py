"""White blood cells of two collections in one vocabulary of thirteen classes, as MDH-FL (arXiv 2308.00155) uses them.

Sources: C. Matek, S. Schwarz, C. Marr, K. Spiekermann, "A Single-cell Morphological Dataset of Leukocytes from AML Patients
and Non-malignant Controls" (Matek-19), The Cancer Imaging Archive, 2019, doi:10.7937/tcia.2019.36f5o9ld; S. Shetab Boushehri
et al., "A large expert-annotated single-cell peripheral blood dataset for hematological disease diagnostics" (MLL23),
Scientific Data 12:1773, 2025, doi:10.5281/zenodo.14277609, of which INT-20 is an earlier form. The paper does not print its
classes; these are the ones that R. Salehi et al., "Unsupervised Cross-Domain Feature Extraction for Single Blood Cell Image
Classification", MICCAI 2022, map both collections to. Neither has a patient key.

BloodMNIST is made from PBC Barcelona, whose classes it has: J. Yang et al., "MedMNIST v2", Scientific Data 10:41, 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import grandrounds as gr
from grandrounds.data.datasets.published import PBC_CLASSES, ReadDataset, read_class_folders
from grandrounds.data.families import CellOptions
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError
from published_data.reading import read_labels

BLOODMNIST = ("bloodmnist.npz", "bloodmnist_64.npz", "bloodmnist_128.npz", "bloodmnist_224.npz")
LABELS = {f"{part}_images": f"{part}_labels" for part in ("train", "val", "test")}
BLOOD_CELL_CLASSES = (
    "basophil", "eosinophil", "erythroblast", "myeloblast", "promyelocyte", "myelocyte", "metamyelocyte",
    "neutrophil_banded", "neutrophil_segmented", "monocyte", "lymphocyte_typical", "lymphocyte_atypical",
    "smudge_cell",
)  # fmt: skip
"""In an order that is part of the experiments: noise of kind ``pair`` takes a class for the next one."""

MATEK19: Mapping[str, str | None] = MappingProxyType({
    "BAS": "basophil", "EBO": "erythroblast", "EOS": "eosinophil", "KSC": "smudge_cell",
    "LYA": "lymphocyte_atypical", "LYT": "lymphocyte_typical", "MMZ": "metamyelocyte", "MOB": "monocyte",
    "MON": "monocyte", "MYB": "myelocyte", "MYO": "myeloblast", "NGB": "neutrophil_banded",
    "NGS": "neutrophil_segmented", "PMB": None, "PMO": "promyelocyte",
})  # fmt: skip
"""Monoblasts count as monocytes; bilobed promyelocytes (18 images) have no class."""

MLL23: Mapping[str, str | None] = MappingProxyType({
    "basophil": "basophil", "eosinophil": "eosinophil", "hairy_cell": None, "lymphocyte": "lymphocyte_typical",
    "lymphocyte_large_granular": None, "lymphocyte_neoplastic": "lymphocyte_atypical",
    "lymphocyte_reactive": "lymphocyte_atypical", "metamyelocyte": "metamyelocyte", "monocyte": "monocyte",
    "myeloblast": "myeloblast", "myelocyte": "myelocyte", "neutrophil_band": "neutrophil_banded",
    "neutrophil_segmented": "neutrophil_segmented", "normoblast": "erythroblast", "plasma_cell": None,
    "promyelocyte": "promyelocyte", "promyelocyte_atypical": None, "smudge_cell": "smudge_cell",
})  # fmt: skip

INT20: Mapping[str, str | None] = MappingProxyType({
    "01-NORMO": "erythroblast", "04-LGL": None, "05-MONO": "monocyte", "08-LYMPH-neo": "lymphocyte_atypical",
    "09-BASO": "basophil", "10-EOS": "eosinophil", "11-STAB": "neutrophil_banded",
    "12-LYMPH-reaktiv": "lymphocyte_atypical", "13-MYBL": "myeloblast", "14-LYMPH-typ": "lymphocyte_typical",
    "15-SEG": "neutrophil_segmented", "16-PLZ": None, "17-Kernschatten": "smudge_cell", "18-PMYEL": "promyelocyte",
    "19-MYEL": "myelocyte", "20-Meta": "metamyelocyte", "21-Haarzelle": None, "22-Atyp-PMYEL": None,
})  # fmt: skip


def read_matek19(root: Path | str) -> tuple[tuple[Record, ...], dict[str, int]]:
    """Read the records of Matek-19: ``AML-Cytomorphology`` with the folders ``BAS`` to ``PMO``, or any folder above it.

    Returns:
        The records of thirteen classes, 18,347 images when the data set is whole, and the images left out, by folder.

    Raises:
        DataError: if a folder is missing, or there are images elsewhere.
    """
    return read_class_folders(Path(root), MATEK19, "Matek-19")


def read_mll23(root: Path | str) -> tuple[tuple[Record, ...], dict[str, int]]:
    """Read the records of MLL23, or of INT-20.

    ``root`` has the folders of the eighteen classes, under the names of MLL23 (``basophil``) or of INT-20 (``09-BASO``).

    Returns:
        The records of thirteen classes, 32,816 images of MLL23 when it is whole, and the images left out, by folder.

    Raises:
        DataError: if neither kind of folders is there, one is missing, or there are images elsewhere.
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"no MLL23 in {root}: expected a folder with the folders of its classes")
    older = any(path.name in INT20 for path in root.rglob("*") if path.is_dir())
    return read_class_folders(root, *((INT20, "INT-20") if older else (MLL23, "MLL23")))


def read_bloodmnist(root: Path | str) -> tuple[tuple[Record, ...], Path]:
    """Read the records of BloodMNIST from its npz file, or the folder of ``bloodmnist.npz`` or one of the larger ones.

    Returns:
        The records, all in split ``train``, those of the published training part first; and the file.

    Raises:
        DataError: if there is no such file, or its arrays are not as they must be.
    """
    root = Path(root)
    path = next((path for path in (root, *(root / name for name in BLOODMNIST)) if path.is_file()), None)
    if path is None:
        raise DataError(f"no BloodMNIST in {root}: looked for {', '.join(BLOODMNIST)}; name its folder")
    return read_labels(path, PBC_CLASSES, "BloodMNIST", LABELS), path


@gr.register_dataset("matek19", options=CellOptions)
def matek19(root: Path, options: CellOptions) -> ReadDataset:
    """AML-Cytomorphology: folders BAS to PMO of TIFF files; thirteen classes."""
    records, left_out = read_matek19(root)
    return ReadDataset(records, root, BLOOD_CELL_CLASSES, {"left_out": left_out}, name="cells")


@gr.register_dataset("mll23", options=CellOptions)
def mll23(root: Path, options: CellOptions) -> ReadDataset:
    """MLL23, or INT-20: a folder for each of its classes; the same thirteen."""
    records, left_out = read_mll23(root)
    return ReadDataset(records, root, BLOOD_CELL_CLASSES, {"left_out": left_out}, name="cells")


@gr.register_dataset("bloodmnist", options=CellOptions)
def bloodmnist(root: Path, options: CellOptions) -> ReadDataset:
    """BloodMNIST: bloodmnist.npz, or one of the larger ones."""
    return ReadDataset(*read_bloodmnist(root), PBC_CLASSES, name="cells")
