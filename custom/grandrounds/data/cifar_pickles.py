"""CIFAR's published files, which are pickles: these can run anything when they are opened carelessly.

Here only what the published files contain is admitted.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from grandrounds.data.labelled_arrays import LabelledImages, require_labels
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

    Args:
        path: the file.
        dataset: how errors call the data set.

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

    Args:
        path: the file.
        key: of the labels.
        classes: how many there are.
        dataset: how errors call the data set.

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
