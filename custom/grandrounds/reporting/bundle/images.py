"""Images as a bundle reads them. Bundles have a copy of this module and of all that it imports, see :mod:`.scripts`."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from grandrounds.data.images.decoding import decode_picture
from grandrounds.data.images.sizing import SIZINGS
from grandrounds.data.images.tensors import to_tensor


class ImageDecoder:
    """Reads an image file as training did: the same decoding, resizing to ``size`` pixels and scaling."""

    def __init__(self, size: int, channels: int, preprocessing: str = "exact") -> None:
        self.size = size
        self.channels = channels
        self.sizing = SIZINGS[preprocessing]

    def __call__(self, path: str | Path) -> Tensor:
        """The image, shape ``(channels, size, size)``, float32 in [0, 1]."""
        picture = decode_picture(Path(path).read_bytes(), str(path), draft=self.sizing.draft(self.size))
        pixels = self.sizing.square(picture.image, self.size, self.channels)
        return to_tensor(pixels[None])[0]


def listed_images(folder: str | Path) -> list[dict[str, Any]]:
    """The files of a folder and of the folders in it as items of a MONAI data set: ``image`` and ``filename_or_obj``."""
    return [_item(path) for path in sorted(Path(folder).rglob("*")) if path.is_file()]


def images_of_table(folder: str | Path, table: str | Path, classes: Sequence[str]) -> list[dict[str, Any]]:
    """The images of a table as items of a MONAI data set.

    Args:
        folder: of the images.
        table: a CSV file with the column ``image``, the file in the folder, and a column of 0 or 1 for each class.
        classes: of the model, in the order of its outputs.

    Returns:
        ``image`` and ``filename_or_obj``, and ``label``: float32, shape ``(classes,)``.
    """
    with Path(table).open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return [
        {**_item(Path(folder, row["image"])), "label": np.array([float(row[name]) for name in classes], np.float32)}
        for row in rows
    ]


def _item(path: Path) -> dict[str, Any]:
    return {"image": str(path), "filename_or_obj": str(path)}
