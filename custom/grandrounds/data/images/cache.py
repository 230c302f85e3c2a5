"""Decode and resize each image once, then read it from a memory map.

Every run of every method at a site needs the same small images; decoding them again in each epoch costs more than the
training of a small network. The cache is an array and its record per (images, size, channels, windows, preprocessing),
shared by all processes of a site. Every build has an array file of its own, which its record names: so the
quarantined rows always belong to the array that is read, also after a build was killed or two processes read different
images.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from grandrounds.checks import require_fraction
from grandrounds.data.families import Preprocess
from grandrounds.data.images.decoding import Pixels, to_square
from grandrounds.data.images.devices import retaken
from grandrounds.data.images.dicom import Window, require_channels
from grandrounds.data.images.mammogram import mammogram_square, read_mammogram
from grandrounds.data.images.readers import ImageReader, open_images
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.files import replacing, write_json

FORMAT_VERSION = 1
PREPROCESSING_VERSION = 3
"""Grows when a preprocessing gives other pixels for the same image."""

SHOWN_REASONS = 3

Quarantined = tuple[int, str, str]
Shape = tuple[int, int, int]
OriginalShape = tuple[int, int, int, int]
Decode = Callable[[str], tuple[Pixels, Shape]]
"""From an image's name to its square and its original shape."""


@dataclass(frozen=True, eq=False)
class DecodedCache:
    """The decoded images of one data set.

    Attributes:
        images: ``(N, size, size, channels)`` uint8, read-only memory map; rows are in the order of the names.
        quarantined: row, name and reason of each image that cannot be read; these rows are zero.
        decoded: how many images were decoded for this call; 0 when the cache was reused.
        shapes: height, width, channels and number of the images as they were before resizing.
    """

    images: np.memmap
    quarantined: tuple[Quarantined, ...]
    decoded: int
    shapes: tuple[OriginalShape, ...]


@dataclass(frozen=True)
class _CacheFiles:
    """The files of a cache and the shape of its array."""

    folder: Path
    key: str
    shape: tuple[int, int, int, int]

    @property
    def record(self) -> Path:
        """Says which array is the current one, and what was found while decoding."""
        return self.folder / f"{self.key}.json"

    def new_array(self) -> Path:
        """A name that no other process chooses."""
        return self.folder / f"{self.key}.{uuid.uuid4().hex}.npy"

    def arrays(self) -> set[Path]:
        """All arrays of this key, those of interrupted runs too."""
        return set(self.folder.glob(f"{self.key}*.npy"))


def open_cache(
    names: Sequence[str],
    root: Path,
    image_size: int,
    channels: int,
    cache_dir: Path,
    max_unreadable: float = 0.01,
    windows: Sequence[Window] = (),
    preprocess: Preprocess = "none",
) -> DecodedCache:
    """Open the decoded images of ``root`` under these names, decoding them if this has not been done.

    Several processes may do this at once: each writes its own array and then replaces the record, which names the array;
    arrays without a record are removed, and stay readable where they are mapped. A cache is rebuilt if it is damaged, or if
    a quarantined image can be read now (a decoder was installed, a network folder is back). There is one window for each
    channel of CT slices; ``preprocess`` is as in :func:`read_square`.

    Raises:
        DataError: if ``names`` is empty, ``root`` cannot be opened or more than ``max_unreadable`` of the images, a
            fraction, are unreadable.
        ConfigurationError: if ``cache_dir`` cannot be written, or there are not as many windows as channels.
        ValueError: if ``image_size``, ``channels`` or ``max_unreadable`` is out of range.
    """
    require_fraction(max_unreadable, "max_unreadable")
    if image_size < 1 or channels not in (1, 3):
        raise ValueError(f"expected image_size >= 1 and channels 1 or 3, got {image_size} and {channels}")
    if not names:
        raise DataError(f"{root}: the list of images is empty")
    require_channels(windows, channels, str(root))
    with open_images(root, windows) as reader:
        key = _key(names, reader.fingerprint(names), image_size, channels, windows, preprocess)
        shape = (len(names), image_size, image_size, channels)
        decode: Decode = partial(read_square, reader, size=image_size, channels=channels, preprocess=preprocess)
        files = _CacheFiles(cache_dir, key, shape)
        # Between reading the record and opening its array another process may have replaced both: look once more.
        cache = _reuse(files) or _reuse(files)
        if cache is None or any(_is_readable(decode, name) for _, name, _ in cache.quarantined):
            cache = _build(decode, names, files, root, max_unreadable)
    _require_few_unreadable(cache.quarantined, len(names), root, max_unreadable)
    return cache


def _key(
    names: Sequence[str],
    fingerprint: str,
    image_size: int,
    channels: int,
    windows: Sequence[Window],
    preprocess: Preprocess,
) -> str:
    content = [FORMAT_VERSION, PREPROCESSING_VERSION, fingerprint, image_size, channels, list(names)]
    if windows:
        content.append([[float(centre), float(width)] for centre, width in windows])
    if preprocess != "none":
        content.append(preprocess)
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _reuse(files: _CacheFiles) -> DecodedCache | None:
    """The cache, or None if it is missing or damaged."""
    try:
        record = json.loads(files.record.read_text(encoding="utf-8"))
        quarantined = tuple((int(row), str(name), str(reason)) for row, name, reason in record["quarantined"])
        shapes = tuple((int(h), int(w), int(c), int(count)) for h, w, c, count in record["shapes"])
        array = files.folder / Path(record["array"]).name
        images = np.load(array, mmap_mode="r", allow_pickle=False)
        size = array.stat().st_size
    except (OSError, ValueError, TypeError, KeyError, EOFError):
        return None
    whole = images.shape == files.shape and images.dtype == np.uint8 and images.flags.c_contiguous
    if not whole or size != images.offset + images.nbytes:
        return None
    return DecodedCache(images, quarantined, 0, shapes)


def _build(decode: Decode, names: Sequence[str], files: _CacheFiles, root: Path, max_unreadable: float) -> DecodedCache:
    array = files.new_array()
    try:
        # Only what was there before: an array that appears meanwhile is about to be named by another process's record.
        stale = files.arrays()
        quarantined, shapes = _decode(decode, names, array, files.shape, root, max_unreadable)
        images = np.load(array, mmap_mode="r", allow_pickle=False)
        stale |= _named_array(files)
        write_json(files.record, {"array": array.name, "quarantined": quarantined, "shapes": shapes})
    except OSError as error:
        _remove([array])
        raise ConfigurationError(
            f"{files.folder}: the image cache cannot be written ({error.strerror or error}); free some space "
            "there or choose another folder"
        ) from error
    _remove(stale)
    return DecodedCache(images, quarantined, len(names) - len(quarantined), shapes)


def _remove(paths: Iterable[Path]) -> None:
    """Remove files where possible: one that stays costs space and nothing else."""
    for path in paths:
        with suppress(OSError):
            path.unlink()


def _named_array(files: _CacheFiles) -> set[Path]:
    """The array that the record names now, which a new record is about to supersede; empty without a usable record."""
    try:
        return {files.folder / Path(json.loads(files.record.read_text(encoding="utf-8"))["array"]).name}
    except (OSError, ValueError, TypeError, KeyError):
        return set()


def _decode(
    decode: Decode,
    names: Sequence[str],
    array: Path,
    shape: tuple[int, int, int, int],
    root: Path,
    max_unreadable: float,
) -> tuple[tuple[Quarantined, ...], tuple[OriginalShape, ...]]:
    """Write all images to ``array``; return which could not be read, and the original shapes."""
    # Written from front to back rather than through a writable map: a full disk is then an error, not a crash.
    quarantined: list[Quarantined] = []
    shapes: Counter[tuple[int, int, int]] = Counter()
    _, size, _, channels = shape
    with replacing(array) as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for row, name in enumerate(names):
            try:
                image, original = decode(name)
            except DataError as error:
                quarantined.append((row, name, str(error)))
                stream.write(bytes(size * size * channels))
                continue
            shapes[original] += 1
            stream.write(image.tobytes())
        _require_few_unreadable(quarantined, len(names), root, max_unreadable)
    return tuple(quarantined), tuple(sorted((*original, count) for original, count in shapes.items()))


def _is_readable(decode: Decode, name: str) -> bool:
    try:
        decode(name)
    except DataError:
        return False
    return True


def _require_few_unreadable(quarantined: Sequence[Quarantined], total: int, root: Path, limit: float) -> None:
    if len(quarantined) > limit * total:
        shown = "; ".join(reason for _, _, reason in quarantined[:SHOWN_REASONS])
        raise DataError(
            f"{root}: {len(quarantined)} of {total} images cannot be read, allowed are {limit:.2%} (max_unreadable); "
            f"the first: {shown}"
        )


def read_square(
    reader: ImageReader, name: str, size: int, channels: int, preprocess: Preprocess
) -> tuple[Pixels, Shape]:
    """Read and resize one image; mammograms are prepared before resizing, a synthetic device takes the resized image.

    Returns:
        The image, shape ``(size, size, channels)``, values 0 to 255; and the original's height, width and channels.

    Raises:
        DataError: naming the image and the cause, if it is missing or damaged, or shows no breast.
    """
    if preprocess != "mammogram":
        image = reader.read(name)
        square = to_square(image, size, channels)
        shape = (image.shape[0], image.shape[1], 1 if image.ndim == 2 else 3)
        return square if preprocess == "none" else retaken(square, preprocess), shape
    levels, laterality = read_mammogram(reader.read_bytes(name), name)
    square = mammogram_square(levels, size, name, laterality)
    return to_square(square, size, channels), (levels.shape[0], levels.shape[1], 1)
