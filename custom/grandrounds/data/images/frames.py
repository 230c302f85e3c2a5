"""Files of several frames are found before a partition is made, from their headers alone."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

from grandrounds.data.images.dicom import DICOM_SUFFIXES, count_frames
from grandrounds.data.images.files.opening import raster_frames
from grandrounds.data.images.files.picture import require_one_frame
from grandrounds.data.images.readers import open_images

ONE_FRAME_SUFFIXES = (".jpg", ".jpeg", ".jfif", ".bmp", ".pgm", ".ppm", ".pnm")
"""Files that need not be opened: their formats have one frame, or previews of it."""


def require_single_frames(root: Path, names: Iterable[str]) -> None:
    """Refuse files of several frames, of which only one would be seen; what is no file or cannot be read is left to others.

    Raises:
        DataError: naming the first such file.
    """
    suspects = [name for name in names if not name.lower().endswith(ONE_FRAME_SUFFIXES)]
    if not suspects or not (root.is_dir() or root.suffix == ".zip"):
        return
    with open_images(root) as reader:
        for name in suspects:
            frames = 1
            # A file that is missing or damaged is counted when it is decoded.
            with suppress(Exception), reader.stream(name) as stream:
                frames = _frames(stream, name)
            require_one_frame(frames, str(root / name))


def _frames(stream: IO[bytes], name: str) -> int:
    if name.lower().endswith(DICOM_SUFFIXES):
        return count_frames(stream)
    return raster_frames(stream, name)
