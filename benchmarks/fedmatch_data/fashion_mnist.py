"""Fashion-MNIST: 70,000 grey images of 28x28 pixels in ten classes of clothing.

Source: H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms", arXiv:1708.07747, 2017 (MIT licence); four idx files, with or without ``.gz``.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from grandrounds.data.datasets.published import (
    LabelledImages,
    digest_of,
    is_made_from,
    read_labels,
    require_labels,
    write_arrays,
)
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError

FASHION_MNIST_CLASSES = (
    "t-shirt_top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle_boot",
)
SOURCE = "Fashion-MNIST"

UNPACKED = "fashion_mnist.npz"
PREFIXES: Mapping[str, str] = MappingProxyType({"train": "train", "test": "t10k"})
IMAGES_FILE, LABELS_FILE = "images-idx3-ubyte", "labels-idx1-ubyte"
IDX_LABELS = b"\0\0\x08\x01"
HEADER = 8


def read_fashion_mnist(root: Path | str) -> tuple[tuple[Record, ...], Path]:
    """Read the records of Fashion-MNIST from the npz file that :func:`unpack_fashion_mnist` writes.

    Args:
        root: the file, or the folder that has ``fashion_mnist.npz``.

    Returns:
        The records, training images first (all in split ``train``), and the file, which is the images' root.

    Raises:
        DataError: if there is no such file, or its arrays are not as they must be.
    """
    path = Path(root) if Path(root).is_file() else Path(root) / UNPACKED
    if not path.is_file():
        raise DataError(
            f"no {UNPACKED} in {root}; unpack the four idx files with unpack_fashion_mnist and name that folder"
        )
    return read_labels(path, FASHION_MNIST_CLASSES, SOURCE), path


def unpack_fashion_mnist(root: Path | str, folder: Path | str) -> Path:
    """Write the images of the four idx files into ``<folder>/fashion_mnist.npz`` (55 MB), unless they are there already.

    Training and test images are in two files; a site points to one.

    Args:
        root: folder of the idx files, under their published names.
        folder: where to write; made when it is missing.

    Returns:
        The file.

    Raises:
        DataError: if a file is missing or damaged, or images and labels differ in number.
    """
    files = {
        part: (_find(Path(root), f"{prefix}-{IMAGES_FILE}"), _find(Path(root), f"{prefix}-{LABELS_FILE}"))
        for part, prefix in PREFIXES.items()
    }
    digest = digest_of(path for pair in files.values() for path in pair)
    unpacked = Path(folder) / UNPACKED
    if not is_made_from(unpacked, digest):
        write_arrays({part: _read_part(*pair) for part, pair in files.items()}, unpacked, digest)
    return unpacked


def _find(root: Path, name: str) -> Path:
    for path in (root / f"{name}.gz", root / name):
        if path.is_file():
            return path
    raise DataError(f"no Fashion-MNIST in {root}: looked for {name}.gz and {name}; complete the data set")


def _read_part(images_file: Path, labels_file: Path) -> LabelledImages:
    with open_images(images_file) as reader:
        images = np.stack([reader.read(name) for name in reader.names()])
    labels = _read_labels(labels_file)
    if len(labels) != len(images):
        raise DataError(f"{labels_file} has {len(labels)} labels, {images_file} has {len(images)} images")
    return LabelledImages(images, labels)


def _read_labels(path: Path) -> np.ndarray:
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if len(data) < HEADER or not data.startswith(IDX_LABELS):
        raise DataError(f"{path} is no idx file of labels (unsigned bytes in one dimension)")
    count = int.from_bytes(data[len(IDX_LABELS) : HEADER], "big")
    if count != len(data) - HEADER:
        raise DataError(f"{path} is damaged: its header says {count} labels, it holds {len(data) - HEADER}")
    labels = np.frombuffer(data, np.uint8, offset=HEADER)
    require_labels(labels, len(FASHION_MNIST_CLASSES), str(path))
    return labels
