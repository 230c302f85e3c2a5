"""Labels of published data sets: columns, folders and words of a table, as classes."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_known_label
from grandrounds.data.datasets.published import TRAIN_AND_TEST, TRUE_AND_FALSE
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError


def marked_column(row: Mapping[str, str], columns: Sequence[str], where: str) -> str:
    """The one of these columns that holds 1.

    Raises:
        DataError: if the others do not hold 0, or there are several or none.
    """
    for name in columns:
        if row[name] not in TRUE_AND_FALSE:
            raise DataError(f"{where}, column {name}: expected 0 or 1, got {row[name]!r}")
    marked = [name for name in columns if TRUE_AND_FALSE[row[name]]]
    if len(marked) != 1:
        raise DataError(f"{where}: expected 1 in one of the columns {', '.join(columns)}, got {len(marked)}")
    return marked[0]


def mapped_label(name: str, labels: Mapping[str, str], where: str) -> str:
    """The class of a published label; empty if it has no class.

    Raises:
        DataError: if the label is unknown.

    Example:
        >>> mapped_label("ACK", {"ACK": "ak", "UNK": ""}, "metadata.csv line 2")
        'ak'
    """
    require_known_label(name, tuple(labels), where)
    return labels[name]


def read_labels(
    path: Path, classes: Sequence[str], source: str, arrays: Mapping[str, str] = TRAIN_AND_TEST
) -> tuple[Record, ...]:
    """The records of an npz file: one per image, array by array, all in split ``train``.

    A label is an index into ``classes``; ``arrays`` names the labels, of shape ``(n,)`` or ``(n, 1)``, by their images.

    Raises:
        DataError: if an array is missing, a label is not a class, or images and labels differ in number.
    """
    with open_images(path) as reader:
        names = set(reader.names())
    records: list[Record] = []
    try:
        with np.load(path, allow_pickle=False) as content:
            for images, name in arrays.items():
                found = content[name]
                column = found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found
                labels = require_labels(column, len(classes), f"{path}: {name}")
                records += (
                    Record(f"{images}/{row}", classes[label], source=source) for row, label in enumerate(labels)
                )
    except KeyError as error:
        raise DataError(f"{path}: {error.args[0]}; expected {', '.join(arrays.values())}") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if names != {record.image for record in records}:
        raise DataError(f"{path} has {len(names)} images and {len(records)} labels; every image needs one label")
    return tuple(records)


def require_labels(column: NDArray[np.generic], classes: int, where: str) -> list[int]:
    """The labels as plain integers.

    Raises:
        DataError: if they are not one-dimensional arrays of integers from 0 to ``classes - 1``.
    """
    if column.ndim != 1 or not np.issubdtype(column.dtype, np.integer):
        raise DataError(f"{where} must be a row of integers, got {column.dtype} of shape {column.shape}")
    values: list[int] = column.tolist()
    if values and not 0 <= min(values) <= max(values) < classes:
        raise DataError(f"{where}: labels must be from 0 to {classes - 1}, got {min(values)} to {max(values)}")
    return values
