"""RSNA intracranial haemorrhage: CT slices of heads, five subtypes of haemorrhage.

Source: A. Flanders et al., "Construction of a machine learning dataset through collaboration: the RSNA 2019 brain CT
hemorrhage challenge", Radiology: Artificial Intelligence 2:e190211, 2020 (research use). Q. Liu et al., "Federated
semi-supervised medical image classification via inter-client relation matching", MICCAI 2021, take 25,000 slices with a
subtype from its 752,803 of the second stage.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from grandrounds.data.manifest import Record
from grandrounds.data.published_files import find_table, image_called
from grandrounds.data.rsna_labels import Multi, read_subtypes, single_labels
from grandrounds.data.rsna_patients import SUFFIX, Progress, find_patients
from grandrounds.errors import DataError

TABLE = "stage_2_train.csv"
FOLDERS = ("stage_2_train", "stage_2_train_images")
PATIENTS = "patients.csv"
SOURCE = "RSNA-ICH"
SLICES = 25_000
"""How many slices the paper takes."""


def read_rsna_ich(
    root: Path | str,
    generator: np.random.Generator,
    *,
    multi: Multi = "drop",
    slices: int = SLICES,
    patients: Path | None = None,
    progress: Progress | None = None,
) -> tuple[tuple[Record, ...], dict[str, int]]:
    """Read slices with a haemorrhage from the published layout.

    That is ``stage_2_train.csv`` beside the folder ``stage_2_train`` or ``stage_2_train_images`` of ``.dcm`` files. Slices
    without a subtype are no part of the problem and need not be there.

    Args:
        root: the folder of both.
        generator: where the randomness of the drawing comes from.
        multi: of slices with several subtypes, see :func:`~grandrounds.data.rsna_labels.single_labels`.
        slices: how many are drawn, see :func:`draw_slices`.
        patients: the table of patients, see :func:`~grandrounds.data.rsna_patients.find_patients`; ``patients.csv`` in
            ``root`` by default. The first time, the headers of all slices with a subtype are read for it.
        progress: told how far that is.

    Returns:
        The records with the classes of ``RSNA_ICH_CLASSES``, all in split ``train``, images as paths below ``root``; and
        how many slices of the table have no subtype, and how many several.

    Raises:
        DataError: if a table, a file or a patient is missing or wrong, or there are fewer slices than are asked for.
        ConfigurationError: if the table of patients must be written and cannot be.
    """
    root = Path(root)
    table = find_table(root, (TABLE,), "RSNA-ICH")
    labels, counts = single_labels(read_subtypes(table), multi)
    images = _images(root)
    paths = {image: image_called(image, images, str(table), str(root)) for image in labels}
    files = {image: root / path for image, path in paths.items()}
    owners = find_patients(files, patients or root / PATIENTS, progress)
    records = tuple(
        Record(paths[image], label, patient=owners[image], source=SOURCE) for image, label in labels.items()
    )
    if slices > len(records):
        raise DataError(
            f"{table}: {len(records)} slices {'with exactly one subtype' if multi == 'drop' else 'with a subtype'}, "
            f"asked for {slices}; ask for fewer slices"
        )
    return draw_slices(records, slices, generator), counts


def draw_slices(records: Sequence[Record], slices: int, generator: np.random.Generator) -> tuple[Record, ...]:
    """Draw patients at random until their slices suffice; of the last one only as many are taken as are missing.

    Args:
        records: the whole data set.
        slices: how many to draw.
        generator: where the randomness comes from.

    Returns:
        That many records, or all if there are fewer, in their order.

    Example:
        >>> three = [Record("a", "subdural", patient="p"), Record("b", "epidural", patient="p")]
        >>> [record.image for record in draw_slices(three, 1, np.random.default_rng(0))]
        ['a']
    """
    of_patient: dict[str, list[int]] = defaultdict(list)
    for index, record in enumerate(records):
        of_patient[record.patient].append(index)
    members = list(of_patient.values())
    drawn: list[int] = []
    for patient in generator.permutation(len(members)):
        drawn.extend(members[patient][: slices - len(drawn)])
        if len(drawn) == slices:
            break
    return tuple(records[index] for index in sorted(drawn))


def _images(root: Path) -> Mapping[str, str]:
    """Path below ``root`` of every slice, by its name; one flat folder, so no walk through all below."""
    for folder in FOLDERS:
        if (root / folder).is_dir():
            with os.scandir(root / folder) as entries:
                names = (entry.name for entry in entries if entry.name.endswith(SUFFIX))
                return {name.removesuffix(SUFFIX): f"{folder}/{name}" for name in names}
    raise DataError(f"no images in {root}: looked for the folders {', '.join(FOLDERS)}; unpack the slices there")
