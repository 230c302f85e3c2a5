"""Decode and resize each image once, then read it from a memory map.

Every run of every method at a site needs the same small images; decoding them again in each epoch costs more than the
training of a small network. The cache is an array and its record per (images, size, channels, reading, preprocessing),
shared by all processes of a site. Every build has an array file of its own, which its record names: so the
quarantined rows always belong to the array that is read, also after a build was killed or two processes read different
images. A build takes the squares of images whose content an earlier one has decoded in the same way, and decodes the rest on
all cores. Caches of earlier versions are removed, and the oldest ones when a folder has become large.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_fraction
from grandrounds.data.images.decoding import image_digests
from grandrounds.data.images.files.reading import AS_IN_FILES, Reading, require_channels
from grandrounds.data.images.ordered import in_order, kept_blocks
from grandrounds.data.images.preparation import Preparation, Shape, Square
from grandrounds.data.images.readers import NPY_HEADERS, ImageReader, open_images
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.files import replacing, write_json

FORMAT_VERSION = 2
PREPROCESSING_VERSION = 6
"""Grows when a preprocessing gives other pixels for the same image."""

SHOWN_REASONS = 3
LEAST_FREE = 2**28
"""Bytes of the disk that decoded images do not take."""
FOLDER_BYTES = 2**35
"""What the arrays of a folder may take together; the least recently used ones go first."""
KEPT_SECONDS = 24 * 3600.0
"""How long an unused cache stays even so."""

Records = dict[str, tuple[Path, int]]
MOST_RECORDS, OPEN_RECORDS = 4096, 256  # whose contents are remembered, and whose arrays are open at once
ANY_VERSION = re.compile(r"([0-9a-f]{64}|images-\d+-\d+-[0-9a-f-]+)(\.[0-9a-f]{32})?\.(json|npy)")
"""Names of a cache's files in any version."""

Quarantined = tuple[int, str, str]
OriginalShape = tuple[int, int, int, int]


@dataclass(frozen=True, eq=False)
class DecodedCache:
    """The decoded images of one data set.

    Attributes:
        images: ``(N, size, size, channels)`` uint8, read-only memory map; rows are in the order of the names.
        quarantined: row, name and reason of each image that cannot be read; these rows are zero.
        decoded: how many images were decoded for this call; 0 when the cache was reused.
        shapes: height, width, channels and number of the images as they were before resizing; empty when unknown.
        rules: of each image, those of decoding that were applied; empty when unknown.
        originals: height, width and channels of each image as it was, zeros for one that cannot be read; empty when unknown.
        digests: see :func:`~grandrounds.data.images.decoding.image_digests`; none from a cache of an earlier release.
    """

    images: NDArray[np.uint8]
    quarantined: tuple[Quarantined, ...] = ()
    decoded: int = 0
    shapes: tuple[OriginalShape, ...] = ()
    rules: tuple[tuple[str, ...], ...] = ()
    originals: tuple[Shape, ...] = ()
    digests: tuple[str, ...] = ()

    @property
    def unreadable(self) -> list[int]:
        """The rows of the quarantined images."""
        return [row for row, _, _ in self.quarantined]


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


@dataclass(frozen=True, eq=False)
class _Opened:
    """A record and its array.

    ``kinds`` are the different pairs of shape and rules, ``kind`` has the one of each row, -1 if it is quarantined.
    """

    images: np.memmap
    quarantined: tuple[Quarantined, ...]
    contents: list[str]
    kinds: list[tuple[Shape, tuple[str, ...]]]
    kind: list[int]
    digests: tuple[str, ...]

    def cache(self, decoded: int) -> DecodedCache:
        counts = Counter(self.kinds[number][0] for number in self.kind if number >= 0)
        shapes = tuple(sorted((*shape, count) for shape, count in counts.items()))
        rules = tuple(self.kinds[number][1] if number >= 0 else () for number in self.kind)
        originals = tuple(self.kinds[number][0] if number >= 0 else (0, 0, 0) for number in self.kind)
        return DecodedCache(self.images, self.quarantined, decoded, shapes, rules, originals, self.digests)

    def squares(self) -> Iterator[tuple[str, Square]]:
        for row, (content, number) in enumerate(zip(self.contents, self.kind, strict=True)):
            if number >= 0:
                yield content, Square(self.images[row], *self.kinds[number])


def open_cache(
    names: Sequence[str],
    root: Path,
    image_size: int,
    channels: int,
    cache_dir: Path,
    max_unreadable: float = 0.01,
    reading: Reading = AS_IN_FILES,
    sizing: str = "exact",
) -> DecodedCache:
    """Open the decoded images of ``root`` under these names, decoding those that have not been decoded.

    Several processes may do this at once: each writes its own array and then replaces the record, which names the array;
    arrays without a record are removed, and stay readable where they are mapped. A cache is rebuilt if it is damaged, or if
    a quarantined image can be read now (a decoder was installed, a network folder is back). ``reading`` is the data set's,
    ``sizing`` the problem's preprocessing, a name of :data:`~grandrounds.data.images.sizing.SIZINGS`.

    Raises:
        DataError: if ``names`` is empty, ``root`` cannot be opened or more than ``max_unreadable`` of the images, a
            fraction, are unreadable.
        ConfigurationError: if ``cache_dir`` cannot be written, or there are not as many windows as channels.
        ValueError: if ``image_size``, ``channels`` or ``max_unreadable`` is out of range.
    """
    require_fraction(max_unreadable, "max_unreadable")
    preparation = Preparation(image_size, channels, reading, sizing)
    if not names:
        raise DataError(f"{root}: the list of images is empty")
    require_channels(reading.windows, channels, str(root))
    with open_images(root, reading) as reader:
        images = hashlib.sha256(json.dumps([reader.fingerprint(names), list(names)]).encode()).hexdigest()[:40]
        files = _CacheFiles(
            cache_dir, f"{_prefix()}{preparation.key}-{images}", (len(names), image_size, image_size, channels)
        )
        # Between reading the record and opening its array another process may have replaced both: look once more.
        opened = _read(files.record, files.shape) or _read(files.record, files.shape)
        if opened is None or any(_is_readable(reader, preparation, name) for _, name, _ in opened.quarantined):
            cache = _build(reader, preparation, names, files, root, max_unreadable)
        else:
            cache = opened.cache(0)
            with suppress(OSError):
                os.utime(files.record)
    _require_few_unreadable(cache.quarantined, len(names), root, max_unreadable)
    return cache


def _prefix() -> str:
    return f"images-{FORMAT_VERSION}-{PREPROCESSING_VERSION}-"


def _read(record: Path, shape: tuple[int, ...] | None = None) -> _Opened | None:
    """What a record describes, or None if record or array is missing or damaged."""
    try:
        return _opened(json.loads(record.read_text(encoding="utf-8")), record.parent, shape)
    except (OSError, ValueError, TypeError, KeyError, EOFError):
        return None


def _opened(record: Mapping[str, Any], folder: Path, shape: tuple[int, ...] | None) -> _Opened:
    quarantined = tuple((int(row), str(name), str(reason)) for row, name, reason in record["quarantined"])
    kinds = [((int(h), int(w), int(c)), tuple(map(str, rules))) for h, w, c, rules in record["kinds"]]
    contents, kind, digests = list(record["contents"]), list(record["kind"]), tuple(record.get("digests", ()))
    array = folder / Path(record["array"]).name
    with NPY_HEADERS:
        images = np.load(array, mmap_mode="r", allow_pickle=False)
    whole = images.dtype == np.uint8 and images.flags.c_contiguous and images.shape == (shape or images.shape)
    if not whole or array.stat().st_size != images.offset + images.nbytes:
        raise ValueError(f"{array} is not the array that was written")
    lengths = {len(images), len(contents), len(kind), len(digests or kind)}
    if len(lengths) > 1 or not -1 <= min(kind) <= max(kind) < max(len(kinds), 1):
        raise ValueError(f"the record of {array} is damaged")
    return _Opened(images, quarantined, contents, kinds, kind, digests)


def _build(
    reader: ImageReader,
    preparation: Preparation,
    names: Sequence[str],
    files: _CacheFiles,
    root: Path,
    max_unreadable: float,
) -> DecodedCache:
    array = files.new_array()
    try:
        if not files.folder.exists():
            files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Only what was there before: an array that appears meanwhile is about to be named by another process's record.
        stale = files.arrays()
        known = _known(files.folder, preparation)
        _require_space(files)
        with replacing(array, private=True) as stream, kept_blocks():
            np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": files.shape})
            contents, decoded = _decode(reader, preparation, names, known, stream)
            _require_few_unreadable(contents["quarantined"], len(names), root, max_unreadable)
        record = {"array": array.name, **contents}
        opened = _opened(record, files.folder, files.shape)
        stale |= _named_array(files)
        write_json(files.record, record, private=True)
    except OSError as error:
        _remove([array])
        raise ConfigurationError(
            f"{files.folder}: the image cache cannot be written ({error.strerror or error}); free some space "
            "there or choose another folder"
        ) from error
    _remove(stale)
    _sweep(files)
    return opened.cache(decoded)


def _require_space(files: _CacheFiles) -> None:
    """Refuse an array that would fill the disk, before any image is decoded."""
    needed, free = math.prod(files.shape), shutil.disk_usage(files.folder).free
    if needed + LEAST_FREE > free:
        raise ConfigurationError(
            f"{files.folder}: {files.shape[0]} decoded images of {files.shape[1]} pixels a side take {needed >> 20} MiB, "
            f"and {free >> 20} MiB are free, of which {LEAST_FREE >> 20} are kept: lower problem.image_size, or free some "
            "space there"
        )


def _known(folder: Path, preparation: Preparation) -> Records:
    """By content, the record of an earlier build that has prepared it in the same way, and when that changed."""
    known: Records = {}
    for record in sorted(folder.glob(f"{_prefix()}{preparation.key}-*.json")):
        with suppress(OSError, ValueError, TypeError, KeyError):
            state = (record, record.stat().st_mtime_ns)
            known |= dict.fromkeys(_contents(*state), state)
    return known


@lru_cache(maxsize=MOST_RECORDS)
def _contents(record: Path, changed: int) -> tuple[str, ...]:
    """The contents that a record lists: of a thousand sites each asks for the records of those before it."""
    return tuple(json.loads(record.read_text(encoding="utf-8"))["contents"])


@lru_cache(maxsize=OPEN_RECORDS)
def _squares(record: Path, changed: int) -> dict[str, Square]:
    opened = _read(record)
    return dict(opened.squares()) if opened else {}


def _decode(
    reader: ImageReader, preparation: Preparation, names: Sequence[str], known: Records, stream: BinaryIO
) -> tuple[dict[str, Any], int]:
    """Write all squares; return the record without the array's name, and how many images were decoded."""

    def prepare(name: str) -> tuple[str, Square, bool] | DataError:
        try:
            image = reader.encoded(name)
            content = preparation.content(image)
            earlier = _squares(*known[content]).get(content) if content in known else None
            return content, earlier or preparation.square(image), earlier is None
        except DataError as error:
            return error

    # Written from front to back rather than through a writable map: a full disk is then an error, not a crash.
    quarantined: list[Quarantined] = []
    rows: list[tuple[str, int, str]] = []
    decoded = 0
    kinds: dict[tuple[Shape, tuple[str, ...]], int] = {}
    for row, (name, result) in enumerate(zip(names, in_order(prepare, names), strict=True)):
        if isinstance(result, DataError):
            quarantined.append((row, name, str(result)))
            stream.write(bytes(preparation.size**2 * preparation.channels))
            rows.append(("", -1, ""))
            continue
        content, square, new = result
        stream.write(square.pixels.tobytes())
        [digest] = image_digests(square.pixels[None])
        rows.append((content, kinds.setdefault((square.shape, square.rules), len(kinds)), digest))
        decoded += new
    contents, kind, digests = map(list, zip(*rows, strict=True))
    listed = [[*shape, list(rules)] for shape, rules in kinds]
    known_of = {"contents": contents, "kinds": listed, "kind": kind, "digests": digests}
    return {"quarantined": quarantined, **known_of}, decoded


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


def _sweep(files: _CacheFiles) -> None:
    """Remove caches of earlier versions, and those unused for longest as far as a folder takes too much."""
    with suppress(OSError), os.scandir(files.folder) as entries:
        states = {files.folder / entry.name: entry.stat() for entry in entries if ANY_VERSION.fullmatch(entry.name)}
        own = {path: state for path, state in states.items() if path.name.startswith(_prefix())}
        _remove(states.keys() - own.keys())
        sizes = {path: state.st_size for path, state in own.items() if path.suffix == ".npy"}
        total = sum(sizes.values())
        for used, record in sorted((state.st_mtime, path) for path, state in own.items() if path.suffix == ".json"):
            if total <= FOLDER_BYTES or used > time.time() - KEPT_SECONDS or record == files.record:
                continue
            arrays = [path for path in sizes if path.name.startswith(f"{record.stem}.")]
            total -= sum(sizes[path] for path in arrays)
            _remove([record, *arrays])


def _is_readable(reader: ImageReader, preparation: Preparation, name: str) -> bool:
    try:
        preparation.square(reader.encoded(name))
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
