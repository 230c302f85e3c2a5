"""Images and labels of a published data set in one npz file, which the readers can read.

CIFAR-10 and Fashion-MNIST are published in formats of their own, in several files each. A site points to one place only,
and names its images there; so the images are written once into an npz file, as ``train/0``, ``train/1``, ... and
``test/0``, ... with their labels beside them.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError
from grandrounds.files import replacing

PARTS = ("train", "test")
DIGEST = "source_sha256"


class LabelledImages(NamedTuple):
    """Images and their labels.

    Attributes:
        images: shape ``(n, height, width)`` or ``(n, height, width, 3)``, uint8.
        labels: shape ``(n,)``, integers, index into the vocabulary.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.integer]


def write_arrays(parts: Mapping[str, LabelledImages], path: Path, digest: str) -> None:
    """Write images and labels into an npz file, uncompressed, so that nobody ever sees half of it.

    Args:
        parts: the images of ``train`` and ``test``.
        path: the file.
        digest: of what the images were made from, see :func:`digest_of`.
    """
    arrays: dict[str, Any] = {DIGEST: np.array(digest)}
    for part, (images, labels) in parts.items():
        arrays |= {part: images, f"{part}_labels": labels.astype(np.uint8)}
    with replacing(path) as stream:
        np.savez(stream, **arrays)


def is_made_from(path: Path, digest: str) -> bool:
    """Whether the file at ``path`` was written by :func:`write_arrays` from the same source."""
    try:
        with np.load(path, allow_pickle=False) as content:
            return DIGEST in content and str(content[DIGEST]) == digest
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return False


def digest_of(files: Iterable[Path]) -> str:
    """SHA-256 of the contents of some files, one after the other, in hexadecimal.

    Raises:
        DataError: naming the file that cannot be read.
    """
    digest = hashlib.sha256()
    for path in files:
        try:
            with path.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


def read_labels(path: Path, classes: Sequence[str], source: str) -> tuple[Record, ...]:
    """The records of an npz file with images ``train`` and ``test`` (pixels, or JPEG bytes) and their labels.

    Args:
        path: the file; its labels are the arrays ``train_labels`` and ``test_labels``.
        classes: the vocabulary; a label is an index into it.
        source: the records' source.

    Returns:
        One record per image, those of ``train`` first; all in split ``train``.

    Raises:
        DataError: if an array is missing, a label is no class, or images and labels differ in number.
    """
    with open_images(path) as reader:
        names = set(reader.names())
    records: list[Record] = []
    try:
        with np.load(path, allow_pickle=False) as content:
            for part in PARTS:
                labels = require_labels(content[f"{part}_labels"], len(classes), f"{path}: {part}_labels")
                records += (Record(f"{part}/{row}", classes[label], source=source) for row, label in enumerate(labels))
    except KeyError as error:
        raise DataError(f"{path}: {error.args[0]}; expected labels of {' and '.join(PARTS)}") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if names != {record.image for record in records}:
        raise DataError(f"{path} has {len(names)} images and {len(records)} labels; every image needs one label")
    return tuple(records)


def require_labels(labels: NDArray[np.generic], classes: int, where: str) -> list[int]:
    """The labels as plain integers.

    Raises:
        DataError: if they are no one-dimensional array of integers from 0 to ``classes - 1``.
    """
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"{where} must be a row of integers, got {labels.dtype} of shape {labels.shape}")
    values: list[int] = labels.tolist()
    if values and not 0 <= min(values) <= max(values) < classes:
        raise DataError(f"{where}: labels must be from 0 to {classes - 1}, got {min(values)} to {max(values)}")
    return values
