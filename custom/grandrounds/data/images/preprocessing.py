"""From an image's name to the square that a network gets, by the kind of image.

A data set's description says ``"preprocess": "mammogram"`` where images need more than resizing.
"""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

from grandrounds.data.images.decoding import Pixels, to_square
from grandrounds.data.images.mammogram import mammogram_square, read_mammogram
from grandrounds.data.images.readers import ImageReader
from grandrounds.errors import ConfigurationError

Preprocess = Literal["none", "mammogram"]
"""What is done before resizing: nothing (both sides are resized), or a mammogram's breast is cropped, turned and padded."""

Shape = tuple[int, int, int]


def preprocess_from(value: Any, where: str) -> Preprocess:
    """Check what somebody has written.

    Args:
        value: the word.
        where: file and field, for the message.

    Raises:
        ConfigurationError: if it is no such word.

    Example:
        >>> preprocess_from("mammogram", "preprocess")
        'mammogram'
    """
    if value not in get_args(Preprocess):
        raise ConfigurationError(f"{where} must be one of {', '.join(get_args(Preprocess))}, got {value!r}")
    return cast("Preprocess", value)


def read_square(
    reader: ImageReader, name: str, size: int, channels: int, preprocess: Preprocess
) -> tuple[Pixels, Shape]:
    """Read one image as a network gets it.

    Args:
        reader: where it is.
        name: its name there.
        size: height and width in pixels.
        channels: 1 or 3.
        preprocess: what is done before resizing.

    Returns:
        The image, shape ``(size, size, channels)``, values 0 to 255; and the original's height, width and channels.

    Raises:
        DataError: naming the image and the cause, if it is missing or damaged, or shows no breast.
    """
    if preprocess == "none":
        image = reader.read(name)
        return to_square(image, size, channels), (image.shape[0], image.shape[1], 1 if image.ndim == 2 else 3)
    levels, laterality = read_mammogram(reader.read_bytes(name), name)
    square = mammogram_square(levels, size, name, laterality)
    return to_square(square, size, channels), (levels.shape[0], levels.shape[1], 1)
