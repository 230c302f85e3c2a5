"""CIFAR-10 as it is published: pickles, of which only what the published files contain is admitted.

    python -m benchmarks.fedperl_cifar10.published cifar-10-batches-py FOLDER

writes ``FOLDER/cifar10.npz``, from which ``grandrounds partition cifar10`` and the experiments read.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.plug_in import published_data
from grandrounds.errors import DataError
from grandrounds.files import replacing

CIFAR10_SOURCE = "CIFAR-10"
UNPACKED = "cifar10.npz"
BATCHES_FOLDER = "cifar-10-batches-py"
META_FILE = "batches.meta"
BATCHES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
)
SOURCE_DIGEST = "source_sha256"
CIFAR10_SIDE = 32
PIXELS = 3 * CIFAR10_SIDE * CIFAR10_SIDE


class CifarImages(NamedTuple):
    """Images, uint8 of shape ``(n, height, width)`` or ``(n, height, width, 3)``, and their labels, shape ``(n,)``."""

    images: NDArray[np.uint8]
    labels: NDArray[np.integer]


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


def _unpickled(path: Path) -> dict[bytes, Any]:
    """What a published file holds.

    Raises:
        DataError: if it cannot be read, is damaged, or asks for anything but arrays.
    """
    try:
        content = _CifarUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a damaged pickle raises almost anything
        raise DataError(f"{path} is not a file of {CIFAR10_SOURCE}'s Python version: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a file of {CIFAR10_SOURCE}'s Python version: expected a dictionary")
    return content


def _read_batch(path: Path) -> CifarImages:
    content = _unpickled(path)
    rows, labels = content.get(b"data"), content.get(b"labels")
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != PIXELS:
        raise DataError(f"{path}: data must be rows of {PIXELS} bytes")
    if not isinstance(labels, list) or len(labels) != len(rows):
        raise DataError(f"{path}: labels must be a list of {len(rows)} numbers, one for each image")
    classes = published_data().cifar10.CIFAR10_CLASSES
    numbers = published_data().reading.require_labels(np.array(labels), len(classes), f"{path}: labels")
    # A row is the red plane, then the green, then the blue one.
    images = rows.reshape(-1, 3, CIFAR10_SIDE, CIFAR10_SIDE).transpose(0, 2, 3, 1)
    return CifarImages(images, np.array(numbers))


def batches_folder(root: Path | str) -> Path | None:
    """The folder with the published batches: ``root``, or ``cifar-10-batches-py`` in it; None if it is neither."""
    for folder in (Path(root), Path(root) / BATCHES_FOLDER):
        if (folder / META_FILE).is_file():
            return folder
    return None


def unpack_cifar10(root: Path | str, folder: Path | str) -> Path:
    """Write the images of the published batches into ``<folder>/cifar10.npz`` (184 MB), unless they are there already.

    ``root`` is ``cifar-10-batches-py`` (``data_batch_1`` to ``5``, ``test_batch``, ``batches.meta``) or its folder.

    Raises:
        DataError: if a batch is missing, contains anything that the published files do not, or is damaged.
    """
    batches = batches_folder(root)
    if batches is None:
        raise DataError(f"no CIFAR-10 in {root}: looked for {META_FILE} there and in {BATCHES_FOLDER}")
    label_names = _unpickled(batches / META_FILE).get(b"label_names")
    classes = published_data().cifar10.CIFAR10_CLASSES
    if label_names != [name.encode() for name in classes]:
        raise DataError(f"{batches / META_FILE}: label_names must be {', '.join(classes)}, got {label_names!r}")

    def read() -> dict[str, CifarImages]:
        """The images of both parts."""
        parts = {part: [_read_batch(batches / name) for name in names] for part, names in BATCHES.items()}
        return {part: CifarImages(*map(np.concatenate, zip(*own, strict=True))) for part, own in parts.items()}

    names = [META_FILE, *(name for part in BATCHES.values() for name in part)]
    return write_once(Path(folder) / UNPACKED, [batches / name for name in names], read)


def write_once(path: Path, sources: Iterable[Path], read: Callable[[], Mapping[str, CifarImages]]) -> Path:
    """Write images and labels by part into an npz file, uncompressed, unless it was made from the same ``sources``.

    Raises:
        DataError: naming the source that cannot be read.
    """
    digest = hashlib.sha256()
    for source in sources:
        try:
            with source.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise DataError(f"{source} cannot be read: {error.strerror or error}") from error
    if not _is_made_from(path, digest.hexdigest()):
        arrays: dict[str, Any] = {SOURCE_DIGEST: np.array(digest.hexdigest())}
        for part, (images, labels) in read().items():
            arrays |= {part: images, f"{part}_labels": labels.astype(np.uint8)}
        with replacing(path) as stream:
            np.savez(stream, **arrays)
    return path


def _is_made_from(path: Path, digest: str) -> bool:
    try:
        with np.load(path, allow_pickle=False) as content:
            return SOURCE_DIGEST in content and str(content[SOURCE_DIGEST]) == digest
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return False


if __name__ == "__main__":
    print(unpack_cifar10(*sys.argv[1:]))
