"""CIFAR-100: 60,000 colour images of 32x32 pixels in a hundred classes; RHFL's public set, whose labels nobody reads.

Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009; the archive
``cifar-100-python.tar.gz``. RHFL: Fang & Ye, CVPR 2022.
"""

from __future__ import annotations

from pathlib import Path

from grandrounds.data.datasets.cifar10 import read_batch
from grandrounds.data.datasets.labelled_arrays import PARTS, digest_of, is_made_from, write_arrays
from grandrounds.errors import DataError

UNPACKED = "cifar100.npz"
FOLDER = "cifar-100-python"
CLASSES = 100


def unpack_cifar100(root: Path | str, folder: Path | str) -> Path:
    """Write the images of the published files into ``<folder>/cifar100.npz`` (184 MB), unless they are there already.

    Args:
        root: ``cifar-100-python`` (``train`` and ``test``) or the folder it is in.
        folder: where to write; made when it is missing.

    Returns:
        The file, whose images are ``train/0``, ``train/1``, ... and ``test/0``, ...

    Raises:
        DataError: if a file is missing, contains anything that the published ones do not, or is damaged.
    """
    found = next((place for place in (Path(root), Path(root) / FOLDER) if _is_there(place)), None)
    if found is None:
        raise DataError(f"no CIFAR-100 in {root}: looked for {' and '.join(PARTS)} there and in {FOLDER}")
    digest = digest_of(found / part for part in PARTS)
    path = Path(folder) / UNPACKED
    if not is_made_from(path, digest):
        parts = {part: read_batch(found / part, "fine_labels", CLASSES, "CIFAR-100") for part in PARTS}
        write_arrays(parts, path, digest)
    return path


def _is_there(folder: Path) -> bool:
    return all((folder / part).is_file() for part in PARTS)
