"""CIFAR's published files, which are pickles: these can run anything when they are opened carelessly.

Here only what the published files contain is admitted.

CIFAR-10: 60,000 colour images of 32x32 pixels in ten classes.

Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009; the archive
``cifar-10-python.tar.gz``.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from grandrounds.data.datasets.published import (
    LabelledImages,
    digest_of,
    is_made_from,
    read_labels,
    require_labels,
    write_arrays,
)
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError

SIDE = 32
PIXELS = 3 * SIDE * SIDE


class _CifarUnpickler(pickle.Unpickler):
    """Builds dictionaries, lists, numbers, texts and NumPy arrays; refuses every other class or function."""

    # What NumPy names in a pickled array. The function has moved within NumPy since the files were written.
    ADMITTED: Mapping[tuple[str, str], Any] = MappingProxyType(
        {
            ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        """Only arrays."""
        try:
            return self.ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def unpickled(path: Path, dataset: str) -> dict[bytes, Any]:
    """What a published file holds.

    Raises:
        DataError: if it cannot be read, is damaged, or asks for anything but arrays.
    """
    try:
        content = _CifarUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a damaged pickle raises almost anything
        raise DataError(f"{path} is no file of {dataset}'s Python version: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is no file of {dataset}'s Python version: expected a dictionary")
    return content


def require_names(path: Path, key: str, names: Sequence[str], dataset: str) -> None:
    """Raise ``DataError`` unless the file of names lists these classes in this order."""
    found = unpickled(path, dataset).get(key.encode())
    if found != [name.encode() for name in names]:
        raise DataError(f"{path}: {key} must be {', '.join(names)}, got {found!r}")


def read_batch(path: Path, key: str, classes: int, dataset: str) -> LabelledImages:
    """Images and labels of one published file.

    Raises:
        DataError: if the file is not as it is published.
    """
    content = unpickled(path, dataset)
    rows, labels = content.get(b"data"), content.get(key.encode())
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != PIXELS:
        raise DataError(f"{path}: data must be rows of {PIXELS} bytes")
    if not isinstance(labels, list) or len(labels) != len(rows):
        raise DataError(f"{path}: {key} must be a list of {len(rows)} numbers, one for each image")
    numbers = require_labels(np.array(labels), classes, f"{path}: {key}")
    # A row is the red plane, then the green, then the blue one.
    images = rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return LabelledImages(images, np.array(numbers))


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
