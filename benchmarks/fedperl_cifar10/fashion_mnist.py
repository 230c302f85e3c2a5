"""Fashion-MNIST: 70,000 grey images of 28x28 pixels in ten classes of clothing.

Source: H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms", arXiv:1708.07747, 2017 (MIT licence); four idx files with ``.gz``.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from benchmarks.fedperl_cifar10.published import CifarImages, write_once
from benchmarks.plug_in import published_data
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError

FASHION_MNIST_CLASSES = (
    *("t-shirt_top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle_boot"),
)
UNPACKED = "fashion_mnist.npz"
PREFIXES = {"train": "train", "test": "t10k"}
HEADER = 8


def read_fashion_mnist(root: Path, folder: Path) -> tuple[tuple[Record, ...], Path]:
    """Read the records; training and test images are first put into one file, because a site points to one."""
    files = {
        part: [root / f"{prefix}-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1")]
        for part, prefix in PREFIXES.items()
    }
    for path in (path for pair in files.values() for path in pair):
        if not path.is_file():
            raise DataError(f"no Fashion-MNIST in {root}: {path.name} is missing")
    sources = [path for pair in files.values() for path in pair]
    unpacked = write_once(folder / UNPACKED, sources, lambda: {part: _read_part(*pair) for part, pair in files.items()})
    return published_data().reading.read_labels(unpacked, FASHION_MNIST_CLASSES, "Fashion-MNIST"), unpacked


def _read_part(images_file: Path, labels_file: Path) -> CifarImages:
    with open_images(images_file) as reader:
        images = np.stack([reader.read(name) for name in reader.names()])
    labels = np.frombuffer(gzip.decompress(labels_file.read_bytes()), np.uint8, offset=HEADER)
    published_data().reading.require_labels(labels, len(FASHION_MNIST_CLASSES), str(labels_file))
    if len(labels) != len(images):
        raise DataError(f"{labels_file} has {len(labels)} labels, {images_file} has {len(images)} images")
    return CifarImages(images, labels)
