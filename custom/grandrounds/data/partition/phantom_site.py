"""A hospital of drawn pictures: the data set of a federation that has downloaded nothing.

Hospitals differ as real ones do: each has its own device, which took most of its pictures, and its own class distribution.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_at_least
from grandrounds.data.datasets.phantom import PHANTOM_CLASSES, PHANTOM_FINDINGS, draw_phantom
from grandrounds.data.images.devices import DEVICES
from grandrounds.data.manifest import Record, write_manifest
from grandrounds.data.partition.files import MANIFEST_FILE
from grandrounds.data.partition.groups import shares_to_counts
from grandrounds.data.partition.splits import assign_splits
from grandrounds.data.site import CONFIG_NAME, FINDINGS_NAME, PHANTOM_NAME
from grandrounds.errors import ConfigurationError
from grandrounds.files import replacing, write_json
from grandrounds.folders import file_names, in_turn, put_in_place, temporary_sibling
from grandrounds.protocol.tasks import FINDINGS
from grandrounds.seeding import derive_seed, numpy_generator

IMAGES_FILE = "images.npz"
ARGUMENTS_FILE = "phantom.json"
FILES = frozenset({CONFIG_NAME, IMAGES_FILE, MANIFEST_FILE, ARGUMENTS_FILE})

VALIDATION_SHARE, TEST_SHARE = 0.15, 0.25
OWN_DEVICE_SHARE = 0.85
CLASS_SHARES = (0.40, 0.25, 0.20, 0.15)
FINDING_SHARE = 0.4
"""Of the images that show a finding, on average."""
MAX_IMAGES_PER_PATIENT = 3
MIN_PHANTOM_IMAGES = 12


def phantom_site(
    site: str,
    folder: Path | str,
    size: int = 48,
    images: int = 240,
    seed: int = 0,
    labelled: float = 0.15,
    devices: Sequence[str] = DEVICES,
    dataset: str = PHANTOM_NAME,
) -> Path:
    """Draw the data set ``phantom`` or ``phantom_findings`` of one site into ``<folder>/<site>``, unless it is there.

    ``site-k`` has mostly pictures of device k, counted cyclically, and a few of the others; the class distribution shifts
    from site to site (without a number in the name, by the name). Patients have one to three pictures of one class, and are
    divided 60 : 15 : 25 between training, validation and testing. The same arguments give the same pictures on every
    machine; other arguments replace them. ``size`` is the side in pixels, ``labelled`` the share of the training pictures
    with a label. Findings are independent of each other; how frequent each is differs between sites as the classes do.

    Returns:
        The site's ``grandrounds.json``, beside ``manifest.csv`` and ``images.npz`` (array ``images``).

    Raises:
        ConfigurationError: if the folder contains other files.
        ValueError: if a number is out of range or a device unknown.
    """
    require_at_least(images, MIN_PHANTOM_IMAGES, "images")
    require_at_least(len(devices), 1, "the number of devices")
    target = Path(folder).resolve() / site
    arguments = {
        "site": site,
        "size": size,
        "images": images,
        "seed": seed,
        "labelled": labelled,
        "devices": list(devices),
        **({} if dataset == PHANTOM_NAME else {"dataset": dataset}),
    }
    if not _holds(target, arguments):
        foreign = sorted(set(file_names(target)) - FILES)
        if foreign:
            raise ConfigurationError(f"{target} holds {foreign[0]}, which is not of a phantom; choose another folder")
        with temporary_sibling(target) as temporary:
            _write(temporary, _draw_records(site, images, seed, labelled, devices, dataset), size, seed, arguments)
            # Another process may have finished the same drawing in the meantime.
            with in_turn(target.parent, target):
                if not _holds(target, arguments):
                    put_in_place(temporary, target)
    return target / CONFIG_NAME


def _holds(target: Path, arguments: Mapping[str, Any]) -> bool:
    try:
        written = json.loads((target / ARGUMENTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(written == arguments) and set(file_names(target)) >= FILES


def _draw_records(
    site: str, images: int, seed: int, labelled: float, devices: Sequence[str], dataset: str
) -> tuple[Record, ...]:
    """Patients, their classes and devices, and the splits."""
    generator = numpy_generator(seed, "phantom", site, "records")
    sizes = generator.integers(1, MAX_IMAGES_PER_PATIENT + 1, size=images)
    patients = np.repeat(np.arange(images), sizes)[:images].tolist()
    number = _site_number(site)
    # The classes shift once more after each round of devices: sites with the same device still differ.
    class_shares = np.roll(CLASS_SHARES, number + number // len(devices))
    if dataset == FINDINGS_NAME:
        present = generator.random((patients[-1] + 1, len(PHANTOM_FINDINGS))) < FINDING_SHARE + class_shares[:-1] - 0.25
        label_of = [
            FINDINGS.cell([n for n, is_present in zip(PHANTOM_FINDINGS, row, strict=True) if is_present])
            for row in present
        ]
    else:
        label_of = _in_random_order(PHANTOM_CLASSES, class_shares, patients[-1] + 1, generator)
    device_of = _in_random_order(devices, _device_shares(number, len(devices)), patients[-1] + 1, generator)
    records = [
        Record(
            image=f"images/{index}",
            label=label_of[patient],
            patient=f"{site}-patient-{patient + 1}",
            source=f"{dataset}/{device_of[patient]}",
        )
        for index, patient in enumerate(patients)
    ]
    return assign_splits(records, generator, site=site, validation=VALIDATION_SHARE, test=TEST_SHARE, labelled=labelled)


def _site_number(site: str) -> int:
    """Zero for ``site-1``; a name without a number gets one from its hash."""
    digits = re.search(r"(\d+)$", site)
    return max(int(digits.group(1)) - 1, 0) if digits else derive_seed("phantom", site)


def _device_shares(number: int, devices: int) -> NDArray[np.float64]:
    if devices == 1:
        return np.ones(1)
    shares = np.full(devices, (1 - OWN_DEVICE_SHARE) / (devices - 1))
    shares[number % devices] = OWN_DEVICE_SHARE
    return shares


def _in_random_order(
    names: Sequence[str], shares: NDArray[np.float64], total: int, generator: np.random.Generator
) -> list[str]:
    """Names in random order, in proportion to their shares."""
    deck = np.repeat(np.arange(len(names)), shares_to_counts(shares.tolist(), total))
    return [names[index] for index in generator.permutation(deck)]


def _write(folder: Path, records: Sequence[Record], size: int, seed: int, arguments: Mapping[str, Any]) -> None:
    site, dataset = arguments["site"], arguments.get("dataset", PHANTOM_NAME)
    drawn = []
    for record in records:
        device, generator = record.source.partition("/")[2], numpy_generator(seed, dataset, site, record.image)
        shown = FINDINGS.names_in(record.label) if dataset == FINDINGS_NAME else record.label
        drawn.append(draw_phantom(shown, device, size, generator))
    pictures = np.stack(drawn)
    with replacing(folder / IMAGES_FILE) as stream:
        np.savez(stream, images=pictures)
    write_manifest(records, folder / MANIFEST_FILE)
    write_json(folder / CONFIG_NAME, {"datasets": {dataset: {"manifest": MANIFEST_FILE, "root": IMAGES_FILE}}})
    write_json(folder / ARGUMENTS_FILE, arguments)
