"""Mini-MIAS: 322 scanned films of 161 patients, both breasts of each, mediolateral oblique.

Source: J. Suckling et al., "The Mammographic Image Analysis Society digital mammogram database", Excerpta Medica,
International Congress Series 1069, 1994 (research purposes only). Two thirds show nothing; 52 films show cancer, which is
enough for a test of the software and not for a comparison of methods.

All films come from one place. To try out methods that compensate for devices, they can be rendered as by three simulated
vendors, which differ in contrast curve, sharpness and noise. The rendered films are marked as simulated everywhere.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import ndimage

from grandrounds.checks import require_known_label
from grandrounds.data.datasets.published import (
    BENIGN,
    MALIGNANT,
    find_table,
    image_called,
    images_by_name,
    images_in_archive,
)
from grandrounds.data.images.mammogram import Levels, read_mammogram
from grandrounds.data.images.readers import ImageReader, open_images
from grandrounds.data.manifest import read_table
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.files import write_json
from grandrounds.folders import in_turn, put_in_place, temporary_sibling
from grandrounds.seeding import numpy_generator
from published_data.mammography.records import BREAST_FINDINGS, Finding, Mammogram, most_severe
from published_data.reading import NORMAL

MINI_MIAS_SOURCE = "mini-MIAS"
MINI_MIAS_VENDOR = "film"
INFORMATION = "Info.txt"
MINI_MIAS_MANIFEST = "mini_mias_manifest.csv"
MINI_MIAS_ARCHIVE = "mini_mias_512.zip"
BY_NAME: Mapping[str, Finding] = {name: name for name in BREAST_FINDINGS}
ROW = re.compile(r"(mdb(\d{3}))\s+[FGD]\s+(CALC|CIRC|SPIC|MISC|ARCH|ASYM|NORM)(?:\s+([BM]))?\b.*")


def read_mini_mias(root: Path | str) -> tuple[tuple[Mammogram, ...], Path]:
    """Read one of the layouts in which mini-MIAS is found.

    * the published one: ``Info.txt`` and the PGM files ``mdb001.pgm`` and so on, in the same folder or below;
    * a small one: ``mini_mias_manifest.csv`` beside ``mini_mias_512.zip``.

    Returns:
        The mammograms in the order of their numbers, and the images' root: the folder, or the archive. Films 2k - 1
        and 2k are the right and the left breast of one patient.

    Raises:
        DataError: if no layout is found, or a row or an image is missing or wrong.
    """
    root = Path(root)
    if (root / MINI_MIAS_MANIFEST).is_file():
        return _read_archive_layout(root), root / MINI_MIAS_ARCHIVE
    return _read_published_layout(root, find_table(root, (INFORMATION, MINI_MIAS_MANIFEST), MINI_MIAS_SOURCE)), root


def _read_published_layout(root: Path, table: Path) -> tuple[Mammogram, ...]:
    findings: dict[str, list[Finding]] = defaultdict(list)
    for line, text in enumerate(table.read_text(encoding="latin-1").splitlines(), start=1):
        row = ROW.fullmatch(text.strip())
        if row is None:
            if re.match(r"mdb\d", text):
                raise DataError(f"{table} line {line}: expected number, tissue, abnormality and severity, got {text!r}")
            continue
        name, _, abnormality, severity = row.groups()
        if abnormality != "NORM" and severity is None:
            raise DataError(f"{table} line {line}: {name} has an abnormality and no severity (B or M)")
        findings[name].append(NORMAL if abnormality == "NORM" else MALIGNANT if severity == "M" else BENIGN)
    if not findings:
        raise DataError(f"{table} has no row like 'mdb001 G CIRC B 535 425 197'; take the data set's own file")
    images = images_by_name(root, ".pgm")
    return tuple(
        _film(image_called(name, images, str(table), root), name, most_severe(found))
        for name, found in sorted(findings.items())
    )


def _read_archive_layout(root: Path) -> tuple[Mammogram, ...]:
    table, archive = root / MINI_MIAS_MANIFEST, root / MINI_MIAS_ARCHIVE
    images = images_in_archive(archive, table)
    found = []
    for line, row in read_table(table, ("image", "label")):
        where = f"{table} line {line}"
        require_known_label(row["label"], tuple(BY_NAME), f"{where}, column label")
        image = image_called(row["image"], images, where, archive)
        found.append(_film(image, Path(image).stem, BY_NAME[row["label"]]))
    return tuple(found)


def _film(image: str, name: str, finding: Finding) -> Mammogram:
    number = re.fullmatch(r"mdb(\d{3})", name)
    if number is None:
        raise DataError(f"{image} is not named like the films of {MINI_MIAS_SOURCE}, mdb001 and so on")
    film = int(number[1])
    return Mammogram(image, finding, f"{(film + 1) // 2:03d}", "R" if film % 2 else "L", "MLO", MINI_MIAS_VENDOR)


RECORD = "simulated_vendors.json"
WHITE = 65_535


@dataclass(frozen=True)
class Vendor:
    """How a simulated device renders a film.

    Attributes:
        gamma: exponent of the contrast curve on levels in [0, 1]; below one dark tissue becomes brighter.
        blur: standard deviation of the point spread, as a share of the longer side.
        noise: standard deviation of the noise of a white pixel; it grows with the root of the level, as quanta do.
    """

    gamma: float
    blur: float
    noise: float


SIMULATED_VENDORS: Mapping[str, Vendor] = MappingProxyType(
    {
        "simulated-1": Vendor(gamma=1.0, blur=0.0, noise=0.005),
        "simulated-2": Vendor(gamma=0.6, blur=0.003, noise=0.02),
        "simulated-3": Vendor(gamma=1.7, blur=0.0015, noise=0.04),
    }
)


def simulated_film(levels: Levels, vendor: Vendor, generator: np.random.Generator) -> Levels:
    r"""Render a film as a vendor's device: blurred, under its contrast curve, with its noise.

    .. math:: y = z^{\gamma} + \sigma \sqrt{z^{\gamma}} \, \epsilon, \qquad z = G_b * x

    Levels :math:`x` of shape ``(H, W)`` are in [0, 1], before and after.

    Example:
        >>> simulated_film(np.float32([[0.0, 0.25, 1.0]]), Vendor(0.5, 0.0, 0.0), np.random.default_rng(0)).tolist()
        [[0.0, 0.5, 1.0]]
    """
    seen = ndimage.gaussian_filter(levels, vendor.blur * max(levels.shape)) if vendor.blur > 0 else levels
    curved = np.clip(seen, 0, 1) ** vendor.gamma
    noisy = curved + vendor.noise * np.sqrt(curved) * generator.standard_normal(levels.shape, np.float32)
    return np.asarray(np.clip(noisy, 0, 1), np.float32)


def assign_vendors(mammograms: Sequence[Mammogram], generator: np.random.Generator) -> tuple[Mammogram, ...]:
    """Give every patient a simulated vendor at random, each vendor as many of each finding as the others, within one.

    A patient counts as of the most severe finding.
    """
    findings = {
        one.patient: most_severe([m.finding for m in mammograms if m.patient == one.patient]) for one in mammograms
    }
    names = list(SIMULATED_VENDORS)
    vendor_of: dict[str, str] = {}
    for finding in BREAST_FINDINGS:
        patients = [patient for patient, own in findings.items() if own == finding]
        for position in generator.permutation(len(patients)):
            vendor_of[patients[position]] = names[len(vendor_of) % len(names)]
    return tuple(replace(one, vendor=vendor_of[one.patient]) for one in mammograms)


def render_vendors(
    mammograms: Sequence[Mammogram], images: Path, folder: Path, seed: int
) -> tuple[tuple[Mammogram, ...], Path]:
    """Write every film as its simulated vendor renders it, as 16-bit PNG files; files of the same call are used again.

    Returns:
        The records of the pictures, ``VENDOR/NAME.png``, and their folder.

    Raises:
        ConfigurationError: if the folder contains something else.
        DataError: if a film cannot be read.
    """
    assigned = assign_vendors(mammograms, numpy_generator(seed, "mammograms", "vendors"))
    rendered = tuple(replace(one, image=f"{one.vendor}/{Path(one.image).stem}.png") for one in assigned)
    with open_images(images) as reader:
        record = _record(reader.fingerprint([one.image for one in assigned]), seed)
        if folder.exists() and any(folder.iterdir()):
            _require_same(folder, record)
            return rendered, folder
        with temporary_sibling(folder) as temporary:
            for film, picture in zip(assigned, rendered, strict=True):
                _render_film(reader, film, temporary / picture.image, seed)
            write_json(temporary / RECORD, record)
            with in_turn(folder.parent, folder):
                put_in_place(temporary, folder)
    return rendered, folder


def _record(fingerprint: str, seed: int) -> dict[str, Any]:
    vendors = {name: asdict(vendor) for name, vendor in SIMULATED_VENDORS.items()}
    return {"simulated": True, "films": fingerprint, "seed": seed, "vendors": vendors}


def _require_same(folder: Path, record: Mapping[str, Any]) -> None:
    try:
        same = json.loads((folder / RECORD).read_text(encoding="utf-8")) == record
    except (OSError, ValueError):
        same = False
    if not same:
        raise ConfigurationError(
            f"{folder} holds other files than these simulated vendors; name an empty folder (simulated_vendors)"
        )


def _render_film(reader: ImageReader, film: Mammogram, path: Path, seed: int) -> None:
    from PIL import Image

    levels, _ = read_mammogram(reader.read_bytes(film.image), film.image)
    brightest = max(float(levels.max()), 1.0)
    generator = numpy_generator(seed, "mammograms", "noise", film.image)
    picture = simulated_film(levels / np.float32(brightest), SIMULATED_VENDORS[film.vendor], generator)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.rint(picture * WHITE).astype(np.uint16)).save(path, compress_level=1)
