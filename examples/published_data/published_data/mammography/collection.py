"""The mammography data sets by name, alone or several as one, with the same classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grandrounds as gr
from grandrounds.data.datasets.published import Progress, ReadDataset
from grandrounds.data.images.files.reading import Reading
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError
from published_data.mammography import cbis_ddsm, cmmd, inbreast, mini_mias
from published_data.mammography.options import (
    CbisDdsmOptions,
    InbreastOptions,
    MammogramsOptions,
    MammographyOptions,
    MiniMiasOptions,
    ScreeningOptions,
)
from published_data.mammography.records import Mammogram, to_records, vocabulary

COLLECTION = "mammograms"
SOURCE_FOLDERS: Mapping[str, str] = MappingProxyType(
    {
        "inbreast": inbreast.INBREAST_SOURCE,
        "cbis_ddsm": cbis_ddsm.CBIS_DDSM_SOURCE,
        "cmmd": cmmd.CMMD_SOURCE,
        "mini_mias": mini_mias.MINI_MIAS_SOURCE,
    }
)
"""The source of each data set in records; the keys are also the folders of a collection."""


def read_mammography(
    dataset: str, root: Path, options: MammographyOptions, progress: Progress | None = None
) -> tuple[tuple[Record, ...], Path, dict[str, Any]]:
    """Read a mammography data set, or under ``mammograms`` all of them that have a folder of their name in ``root``.

    ``progress`` gets the number of headers read and of all headers.

    Returns:
        The records, the folder or archive of the images, and further entries of the partition's description.

    Raises:
        DataError: if a data set is incomplete or inconsistent, or there is none.
        ConfigurationError: if the folder for simulated vendors contains something else.
    """
    collected = dataset == COLLECTION
    parts = _folders(root) if collected else {dataset: root}
    published_test = isinstance(options, CbisDdsmOptions) and options.published_test
    records: list[Record] = []
    facts: dict[str, Any] = {"normals": options.normals} if isinstance(options, ScreeningOptions) else {}
    images = root
    for name, folder in parts.items():
        found, images, own = _read(name, folder, options, progress)
        facts |= {f"{name}_{key}": value for key, value in own.items()}
        if not published_test:
            found = tuple(replace(one, test=False) for one in found)
        own_records = to_records(found, SOURCE_FOLDERS[name], facts.get("normals", "benign"))
        records += _below(root, name, images, own_records) if collected else own_records
    return tuple(records), root if collected else images, facts


def _folders(root: Path) -> dict[str, Path]:
    found = {name: root / name for name in SOURCE_FOLDERS if (root / name).is_dir()}
    if not found:
        raise DataError(
            f"no mammograms in {root}: looked for the folders {', '.join(SOURCE_FOLDERS)}; name the folder of these"
        )
    return found


def _read(
    name: str, root: Path, options: MammographyOptions, progress: Progress | None
) -> tuple[tuple[Mammogram, ...], Path, Mapping[str, Any]]:
    if name == "inbreast" and isinstance(options, InbreastOptions):
        return inbreast.read_inbreast(root, options.birads_3), root, {"birads_3": options.birads_3}
    if name == "cbis_ddsm" and isinstance(options, CbisDdsmOptions):
        mammograms, counts = cbis_ddsm.read_cbis_ddsm(root)
        return mammograms, root, {**counts, "published_test": options.published_test}
    if name == "cmmd":
        mammograms, left_out = cmmd.read_cmmd(root, progress)
        return mammograms, root, left_out
    mammograms, images = mini_mias.read_mini_mias(root)
    if not isinstance(options, MiniMiasOptions) or options.simulated_vendors is None:
        return mammograms, images, {}
    rendered, folder = mini_mias.render_vendors(mammograms, images, options.simulated_vendors, options.seed)
    return rendered, folder, {"simulated_vendors": True}


def _below(root: Path, name: str, images: Path, records: tuple[Record, ...]) -> tuple[Record, ...]:
    """The records with images as paths below the collection's folder."""
    if images != root / name:
        raise DataError(
            f"{images} is an archive or lies elsewhere; a collection needs its images as files below {root}"
        )
    return tuple(replace(record, image=f"{name}/{record.image}") for record in records)


@gr.register_dataset("inbreast", options=InbreastOptions)
def read_inbreast(root: Path, options: InbreastOptions) -> ReadDataset:
    """INbreast: INbreast.csv (save INbreast.xls as that) and AllDICOMs."""
    return _as_dataset("inbreast", root, options)


@gr.register_dataset("cbis_ddsm", options=CbisDdsmOptions)
def read_cbis_ddsm(root: Path, options: CbisDdsmOptions) -> ReadDataset:
    """CBIS-DDSM: four tables mass_case_..., calc_case_... and the folder CBIS-DDSM."""
    return _as_dataset("cbis_ddsm", root, options)


@gr.register_dataset("cmmd", options=MammographyOptions)
def read_cmmd(root: Path, options: MammographyOptions, progress: Progress | None = None) -> ReadDataset:
    """CMMD: CMMD_clinicaldata_revision.csv (save the .xlsx as that) and the folder CMMD."""
    return _as_dataset("cmmd", root, options, progress)


@gr.register_dataset("mini_mias", options=MiniMiasOptions)
def read_mini_mias(root: Path, options: MiniMiasOptions) -> ReadDataset:
    """mini-MIAS: Info.txt and the PGM files."""
    return _as_dataset("mini_mias", root, options)


@gr.register_dataset("mammograms", options=MammogramsOptions)
def read_mammograms(root: Path, options: MammogramsOptions, progress: Progress | None = None) -> ReadDataset:
    """Mammograms: some of the folders inbreast, cbis_ddsm, cmmd and mini_mias."""
    return _as_dataset(COLLECTION, root, options, progress)


def _as_dataset(dataset: str, root: Path, options: MammographyOptions, progress: Progress | None = None) -> ReadDataset:
    records, images, facts = read_mammography(dataset, root, options, progress)
    classes = vocabulary(facts.get("normals", "benign"))
    return ReadDataset(records, images, classes, facts, Reading(preprocess="mammogram"), COLLECTION)
