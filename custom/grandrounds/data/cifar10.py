"""CIFAR-10: 60,000 colour images of 32x32 pixels in ten classes.

Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009; the archive
``cifar-10-python.tar.gz``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from grandrounds.data.cifar_pickles import read_batch, require_names
from grandrounds.data.labelled_arrays import (
    LabelledImages,
    digest_of,
    is_made_from,
    read_labels,
    write_arrays,
)
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SOURCE = "CIFAR-10"

UNPACKED = "cifar10.npz"
ARCHIVES = (UNPACKED, "cifar10_jpeg.npz")
BATCHES_FOLDER = "cifar-10-batches-py"
META_FILE = "batches.meta"
BATCHES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
)


def read_cifar10(root: Path | str) -> tuple[tuple[Record, ...], Path]:
    """Read the records of CIFAR-10 from an npz file.

    Args:
        root: the file, or the folder that has ``cifar10.npz`` (what :func:`unpack_cifar10` writes) or
            ``cifar10_jpeg.npz`` (``train_jpeg``, ``train_offsets``, ``train_labels``, and the same of ``test``).

    Returns:
        The records, training images first (all in split ``train``), and the file, which is the images' root.

    Raises:
        DataError: if there is no such file, or its arrays are not as they must be; the published batches are named,
            because they must be unpacked first.
    """
    root = Path(root)
    for path in [root] if root.is_file() else [root / name for name in ARCHIVES]:
        if path.is_file():
            return read_labels(path, CIFAR10_CLASSES, SOURCE), path
    if batches_folder(root):
        raise DataError(f"{root} has CIFAR-10 as it is published; unpack it with unpack_cifar10 and name that folder")
    expected = ", ".join((*ARCHIVES, f"{BATCHES_FOLDER}/{META_FILE}"))
    raise DataError(f"no CIFAR-10 in {root}: looked for {expected}; name the folder that holds one of them")


def batches_folder(root: Path | str) -> Path | None:
    """The folder with the published batches: ``root``, or ``cifar-10-batches-py`` in it; None if it is neither."""
    for folder in (Path(root), Path(root) / BATCHES_FOLDER):
        if (folder / META_FILE).is_file():
            return folder
    return None


def unpack_cifar10(root: Path | str, folder: Path | str) -> Path:
    """Write the images of the published batches into ``<folder>/cifar10.npz`` (184 MB), unless they are there already.

    Args:
        root: ``cifar-10-batches-py`` (``data_batch_1`` to ``5``, ``test_batch``, ``batches.meta``) or the folder it is in.
        folder: where to write; made when it is missing.

    Returns:
        The file.

    Raises:
        DataError: if a batch is missing, contains anything that the published files do not, or is damaged.
    """
    batches = batches_folder(root)
    if batches is None:
        raise DataError(f"no CIFAR-10 in {root}: looked for {META_FILE} there and in {BATCHES_FOLDER}")
    require_names(batches / META_FILE, "label_names", CIFAR10_CLASSES, SOURCE)
    names = [META_FILE, *(name for part in BATCHES.values() for name in part)]
    digest = digest_of(batches / name for name in names)
    path = Path(folder) / UNPACKED
    if not is_made_from(path, digest):
        parts = {
            part: [read_batch(batches / name, "labels", len(CIFAR10_CLASSES), SOURCE) for name in files]
            for part, files in BATCHES.items()
        }
        write_arrays({part: _joined(found) for part, found in parts.items()}, path, digest)
    return path


def _joined(parts: list[LabelledImages]) -> LabelledImages:
    return LabelledImages(*(np.concatenate(column) for column in zip(*parts, strict=True)))
