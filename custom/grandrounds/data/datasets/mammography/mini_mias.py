"""Mini-MIAS: 322 scanned films of 161 patients, both breasts of each, mediolateral oblique.

Source: J. Suckling et al., "The Mammographic Image Analysis Society digital mammogram database", Excerpta Medica,
International Congress Series 1069, 1994 (research purposes only). Two thirds show nothing; 52 films show cancer, which is
enough for a test of the machinery and not for a comparison of methods.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from grandrounds.data.datasets.malignancy import BENIGN, MALIGNANT, NORMAL
from grandrounds.data.datasets.mammography.records import FINDINGS, Finding, Mammogram, gravest
from grandrounds.data.datasets.published import find_table, image_called, images_by_name, images_in_archive
from grandrounds.data.manifest import read_table, require_known_label
from grandrounds.errors import DataError

SOURCE = "mini-MIAS"
VENDOR = "film"
INFORMATION = "Info.txt"
ARCHIVE_MANIFEST = "mini_mias_manifest.csv"
ARCHIVE = "mini_mias_512.zip"
BY_NAME: Mapping[str, Finding] = {name: name for name in FINDINGS}
ROW = re.compile(r"(mdb(\d{3}))\s+[FGD]\s+(CALC|CIRC|SPIC|MISC|ARCH|ASYM|NORM)(?:\s+([BM]))?\b.*")


def read_mini_mias(root: Path | str) -> tuple[tuple[Mammogram, ...], Path]:
    """Read one of the layouts in which mini-MIAS is found.

    * the published one: ``Info.txt`` and the PGM files ``mdb001.pgm`` and so on, in the same folder or below;
    * a small one: ``mini_mias_manifest.csv`` beside ``mini_mias_512.zip``.

    Args:
        root: the folder.

    Returns:
        The mammograms in the order of their numbers, and the images' root: the folder, or the archive. Films 2k - 1
        and 2k are the right and the left breast of one patient.

    Raises:
        DataError: if no layout is found, or a row or an image is missing or wrong.
    """
    root = Path(root)
    if (root / ARCHIVE_MANIFEST).is_file():
        return _read_archive_layout(root), root / ARCHIVE
    return _read_published_layout(root, find_table(root, (INFORMATION, ARCHIVE_MANIFEST), SOURCE)), root


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
        _film(image_called(name, images, str(table), f"{root} and the folders in it"), name, gravest(found))
        for name, found in sorted(findings.items())
    )


def _read_archive_layout(root: Path) -> tuple[Mammogram, ...]:
    table, archive = root / ARCHIVE_MANIFEST, root / ARCHIVE
    images = images_in_archive(archive, table)
    found = []
    for line, row in read_table(table, ("image", "label")):
        where = f"{table} line {line}"
        require_known_label(row["label"], tuple(BY_NAME), f"{where}, column label")
        image = image_called(row["image"], images, where, str(archive))
        found.append(_film(image, Path(image).stem, BY_NAME[row["label"]]))
    return tuple(found)


def _film(image: str, name: str, finding: Finding) -> Mammogram:
    number = re.fullmatch(r"mdb(\d{3})", name)
    if number is None:
        raise DataError(f"{image} is not named like the films of {SOURCE}, mdb001 and so on")
    film = int(number[1])
    return Mammogram(image, finding, f"{(film + 1) // 2:03d}", "R" if film % 2 else "L", "MLO", VENDOR)
