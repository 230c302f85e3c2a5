"""CIFAR-10, photographs of ten kinds of things.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

from __future__ import annotations

from pathlib import Path

import grandrounds as gr
from grandrounds.data.datasets.published import ReadDataset
from grandrounds.data.families import CellOptions
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError
from published_data.reading import read_labels

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
ARCHIVES = ("cifar10.npz", "cifar10_jpeg.npz")


def read_cifar10(root: Path | str) -> tuple[tuple[Record, ...], Path]:
    """Read the records of CIFAR-10 from an npz file.

    ``root`` is the file, or the folder that has ``cifar10.npz`` (arrays ``train``, ``train_labels``, and the same of
    ``test``) or ``cifar10_jpeg.npz`` (``train_jpeg``, ``train_offsets``, ``train_labels``, and the same of ``test``).

    Returns:
        The records, training images first (all in split ``train``), and the file, which is the images' root.

    Raises:
        DataError: if there is no such file, or its arrays are not as they must be.
    """
    root = Path(root)
    for path in [root] if root.is_file() else [root / name for name in ARCHIVES]:
        if path.is_file():
            return read_labels(path, CIFAR10_CLASSES, "CIFAR-10"), path
    raise DataError(
        f"no CIFAR-10 in {root}: looked for {', '.join(ARCHIVES)}; name the folder that holds one of them (of the published "
        "pickles benchmarks/fedperl_cifar10/published.py makes the first)"
    )


@gr.register_dataset("cifar10", options=CellOptions)
def cifar10(root: Path, options: CellOptions) -> ReadDataset:
    """CIFAR-10: cifar10.npz."""
    return ReadDataset(*read_cifar10(root), CIFAR10_CLASSES, name="cifar10")
