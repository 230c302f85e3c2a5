"""The mammography data sets by name, alone or several as one, with the same classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from grandrounds.data.datasets.mammography import cbis_ddsm, cmmd, inbreast, mini_mias
from grandrounds.data.datasets.mammography.cbis_ddsm import read_cbis_ddsm
from grandrounds.data.datasets.mammography.cmmd import read_cmmd
from grandrounds.data.datasets.mammography.inbreast import BiradsThree, read_inbreast
from grandrounds.data.datasets.mammography.mini_mias import read_mini_mias
from grandrounds.data.datasets.mammography.records import Mammogram, Normals, to_records, vocabulary
from grandrounds.data.datasets.mammography.vendors import render_vendors
from grandrounds.data.datasets.rsna_ich import Progress
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError

COLLECTION = "mammograms"
SOURCES: Mapping[str, str] = MappingProxyType(
    {
        "inbreast": inbreast.SOURCE,
        "cbis_ddsm": cbis_ddsm.SOURCE,
        "cmmd": cmmd.SOURCE,
        "mini_mias": mini_mias.SOURCE,
    }
)
"""How records call each data set; the names are also those of the folders of a collection."""

MAMMOGRAPHY = (*SOURCES, COLLECTION)


@dataclass(frozen=True)
class MammographyOptions:
    """What can be chosen of mammography data sets.

    Attributes:
        normals: what becomes of images without a finding.
        birads_3: what an assessment of 3 counts as, in INbreast.
        published_test: whether CBIS-DDSM's published test set is the test set.
        simulated_vendors: a folder for mini-MIAS as three simulated vendors show it; None leaves the films as they are.
    """

    normals: Normals = "benign"
    birads_3: BiradsThree = "malignant"
    published_test: bool = False
    simulated_vendors: Path | None = None


@dataclass(frozen=True)
class ReadMammograms:
    """What was read: records, the folder or archive of the images, the vocabulary, and what else is to be said."""

    records: tuple[Record, ...]
    images: Path
    classes: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)


def read_mammography(
    dataset: str, root: Path, options: MammographyOptions, seed: int, progress: Progress | None = None
) -> ReadMammograms:
    """Read a mammography data set, or under ``mammograms`` all of them that have a folder of their name in ``root``.

    Args:
        dataset: one of ``MAMMOGRAPHY``.
        root: its folder, or the folder of the folders.
        options: what was chosen.
        seed: of the simulated vendors.
        progress: told how far a long reading is.

    Raises:
        DataError: if a data set is not as it must be, or there is none.
        ConfigurationError: if the folder for simulated vendors holds something else.
    """
    parts = _folders(root) if dataset == COLLECTION else {dataset: root}
    records: list[Record] = []
    facts: dict[str, Any] = {"normals": options.normals}
    images = root
    for name, folder in parts.items():
        found, images, own = _read(name, folder, options, seed, progress)
        if not options.published_test:
            found = tuple(replace(one, test=False) for one in found)
        facts |= {f"{name}_{key}": value for key, value in own.items()}
        records += _below(root, name, images, to_records(found, SOURCES[name], options.normals), dataset == COLLECTION)
    return ReadMammograms(tuple(records), root if dataset == COLLECTION else images, vocabulary(options.normals), facts)


def _folders(root: Path) -> dict[str, Path]:
    found = {name: root / name for name in SOURCES if (root / name).is_dir()}
    if not found:
        raise DataError(
            f"no mammograms in {root}: looked for the folders {', '.join(SOURCES)}; name the folder of these"
        )
    return found


def _read(
    name: str, root: Path, options: MammographyOptions, seed: int, progress: Progress | None
) -> tuple[tuple[Mammogram, ...], Path, Mapping[str, Any]]:
    if name == "inbreast":
        return read_inbreast(root, options.birads_3), root, {"birads_3": options.birads_3}
    if name == "cbis_ddsm":
        films, counts = read_cbis_ddsm(root)
        return films, root, {**counts, "published_test": options.published_test}
    if name == "cmmd":
        found, left_out = read_cmmd(root, progress)
        return found, root, left_out
    films, images = read_mini_mias(root)
    if options.simulated_vendors is None:
        return films, images, {}
    shown, folder = render_vendors(films, images, options.simulated_vendors, seed)
    return shown, folder, {"simulated_vendors": True}


def _below(root: Path, name: str, images: Path, records: tuple[Record, ...], collected: bool) -> tuple[Record, ...]:
    """The records with images as paths below the collection's folder."""
    if not collected:
        return records
    if images != root / name:
        raise DataError(
            f"{images} is an archive or lies elsewhere; a collection needs its images as files below {root}"
        )
    return tuple(replace(record, image=f"{name}/{record.image}") for record in records)
