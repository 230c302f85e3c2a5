"""Images of a folder, archive or array file, read by name.

A site points to a folder, a zip archive, an npz file (MedMNIST, or JPEG bytes in one array) or an idx file (MNIST
format: LeCun et al., http://yann.lecun.com/exdb/mnist); the rest of the program asks for images by name.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import threading
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Self

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import reraised_as
from grandrounds.data.images.decoding import Pixels
from grandrounds.data.images.files.encoded import ArrayRow, EncodedFile, EncodedImage
from grandrounds.data.images.files.opening import DICOM_SUFFIXES
from grandrounds.data.images.files.reading import AS_IN_FILES, Reading
from grandrounds.errors import DataError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".pgm", *DICOM_SUFFIXES)
IDX_IMAGES = b"\0\0\x08\x03"
"""How an idx file of unsigned bytes in three dimensions begins."""
SHARED_ARCHIVES = 4
"""The sites of a simulation usually have one archive of images in common, whose list of names takes long to read."""
ZIP_UTF8 = 0x800
"""The flag of a zip archive's member whose name is stated to be UTF-8."""


class ImageReader(ABC):
    """Images of one folder or file by name; a context manager."""

    def __init__(self, root: Path, reading: Reading = AS_IN_FILES) -> None:
        self._root = root
        self._reading = reading

    def encoded(self, name: str) -> EncodedImage:
        """One image, not yet decoded; may be called by several threads.

        Raises:
            DataError: naming the image and the cause, if it is missing.
        """
        return EncodedFile(self.read_bytes(name), name, self._reading)

    def read(self, name: str) -> Pixels:
        """Decode one image: ``(H, W)`` grey or ``(H, W, 3)`` RGB, values 0 to 255.

        Raises:
            DataError: naming the image and the cause, if it is missing or damaged.
        """
        return np.array(self.encoded(name).picture().image)

    def read_bytes(self, name: str) -> bytes:
        """The file of one image as it is.

        Raises:
            DataError: naming the image, if it is missing, or is not a file of its own but pixels in an array.
        """
        with self.stream(name) as stream:
            return stream.read()

    def stream(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """The file of one image, open for reading.

        Raises:
            DataError: as :meth:`read_bytes`.
        """
        raise DataError(f"{name} is not a file but pixels in an array, of which there are no bytes")

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all images that are there, in a fixed order."""

    @abstractmethod
    def fingerprint(self, names: Sequence[str] | None = None) -> str:
        """A hash that changes when the images do, made without reading them.

        It does not depend on where the images are. ``names`` limits it to these images where each is a file of its
        own, so that other files in the folder do not count.
        """

    def close(self) -> None:
        """Release what is the reader's own."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def open_images(root: Path, reading: Reading = AS_IN_FILES) -> ImageReader:
    """Open the images at ``root``: a folder, or a file ending in .zip, .npz, .gz or anything else in idx format.

    Names are paths relative to a folder or inside an archive (``benign/a.png``), ``<array>/<index>`` in an npz file and
    ``<index>`` in an idx file.

    If ``reading`` has windows, every image must be a CT slice in a DICOM file; it gets a channel for each window.

    Raises:
        DataError: if nothing is there, the file is damaged or in none of these formats, or there are windows and it
            holds pixels instead of files.
    """
    if root.is_dir():
        return _FolderReader(root, reading)
    if not root.is_file():
        raise DataError(f"{root} does not exist; expected a folder of images, a .zip, an .npz or an idx file")
    if root.suffix == ".zip":
        return _ZipReader(root, reading)
    if reading.windows:
        raise DataError(f"{root} holds no DICOM files, which windows are for; take windows out of its description")
    if root.suffix == ".npz":
        return _NpzReader(root, reading)
    return _IdxReader(root)


class _FolderReader(ImageReader):
    """A folder of image files, with or without sub-folders."""

    @contextmanager
    def stream(self, name: str) -> Iterator[IO[bytes]]:
        path = self._path(name)
        try:
            with path.open("rb") as stream:
                yield stream
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from error

    def names(self) -> list[str]:
        files = (Path(folder, file) for folder, _, names in os.walk(self._root) for file in names)
        return sorted(_visible_images(path.relative_to(self._root).as_posix() for path in files))

    def fingerprint(self, names: Sequence[str] | None = None) -> str:
        return _digest(self._state(name) for name in (self.names() if names is None else names))

    def _state(self, name: str) -> tuple[str, ...]:
        try:
            stat = self._path(name).stat()
        except (OSError, DataError):
            return (name, "unreadable")
        return (name, str(stat.st_size), str(stat.st_mtime_ns))

    def _path(self, name: str) -> Path:
        parts = PurePosixPath(name)
        inside = name and not parts.is_absolute() and ".." not in parts.parts
        if not inside or not (self._root / name).resolve().is_relative_to(self._root.resolve()):
            raise DataError(f"image name {name!r} leads out of {self._root}; names must be relative paths inside it")
        return self._root / name


def open_archive(root: Path) -> zipfile.ZipFile:
    """A zip archive with its names as they were packed, and with the format's slashes where Windows has packed others.

    Info-ZIP and macOS store UTF-8 and do not say so, where the format then means code page 437. That text in it reads as
    UTF-8 throughout does not happen by chance.

    Raises:
        DataError: if it is damaged or cannot be read.
    """
    with reraised_as(DataError, OSError, zipfile.BadZipFile, where=f"{root} cannot be opened"):
        archive = zipfile.ZipFile(root)
        unsaid = [member.orig_filename for member in archive.infolist() if not member.flag_bits & ZIP_UTF8]
        if all(map(str.isascii, unsaid)) or not all(map(_is_utf8, unsaid)):
            return _with_slashes(archive)
        archive.close()
        return _with_slashes(zipfile.ZipFile(root, metadata_encoding="utf-8"))


def _with_slashes(archive: zipfile.ZipFile) -> zipfile.ZipFile:
    if not any("/" in member.filename for member in archive.infolist()):
        for member in archive.infolist():
            member.filename = member.filename.replace("\\", "/")
        archive.NameToInfo = {member.filename: member for member in archive.infolist()}
    return archive


def _is_utf8(name: str) -> bool:
    try:
        name.encode("cp437").decode("utf-8")
    except UnicodeError:
        return False
    return True


@lru_cache(maxsize=SHARED_ARCHIVES)
def _shared_archive(root: Path, state: tuple[int, ...], process: int) -> zipfile.ZipFile:
    """An archive in one state, opened once for all readers of a process; the last few stay open."""
    return open_archive(root)


@lru_cache(maxsize=SHARED_ARCHIVES)
def _fingerprint(archive: zipfile.ZipFile) -> str:
    return _digest((item.filename, str(item.file_size), str(item.CRC)) for item in archive.infolist())


class _ArchiveReader(ImageReader):
    """What zip and npz files share: an npz file is a zip archive of arrays."""

    def __init__(self, root: Path, reading: Reading) -> None:
        super().__init__(root, reading)
        stat = root.stat()
        # Not from before a fork: processes would move each other's place in the file.
        self._archive = _shared_archive(root, (stat.st_ino, stat.st_size, stat.st_ctime_ns), os.getpid())

    def fingerprint(self, names: Sequence[str] | None = None) -> str:
        return _fingerprint(self._archive)

    @contextmanager
    def _member(self, member: str) -> Iterator[IO[bytes]]:
        try:
            with self._archive.open(member) as stream:
                yield stream
        except KeyError:
            raise DataError(f"{self._root} holds no {member!r}") from None
        except Exception as error:  # zipfile and its decompressors raise many kinds on damaged or encrypted members
            raise DataError(f"{member} in {self._root} cannot be read: {error}") from error


class _ZipReader(_ArchiveReader):
    """A zip archive of image files."""

    def stream(self, name: str) -> AbstractContextManager[IO[bytes]]:
        return self._member(name)

    def names(self) -> list[str]:
        return sorted(_visible_images(self._archive.namelist()))


NPY_HEADERS = threading.Lock()
"""Held while NumPy reads an array's header, which Python before 3.12 cannot parse in two threads (python/cpython#106905)."""


class _NpzReader(_ArchiveReader):
    """Arrays of images in an npz file: pixels, or JPEG bytes end to end with their offsets.

    An array that is asked for is kept in memory, because an npz file cannot be read in parts.
    """

    def __init__(self, root: Path, reading: Reading) -> None:
        super().__init__(root, reading)
        self._members = {item.removesuffix(".npy") for item in self._archive.namelist() if item.endswith(".npy")}
        self._arrays: dict[str, NDArray[np.generic]] = {}
        self._headers: dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]] = {}

    def encoded(self, name: str) -> EncodedImage:
        array, _, index = name.rpartition("/")
        if f"{array}_jpeg" in self._members:
            starts, ends = self._bounds(array)
            row = _row(index, len(starts), name, self._root)
            return EncodedFile(self._array(f"{array}_jpeg")[starts[row] : ends[row]].tobytes(), name, self._reading)
        if array not in self._members or not self._holds_images(array):
            raise DataError(f"{self._root} holds no image {name!r}; expected <array>/<index>, e.g. train_images/0")
        images = self._array(array)
        return ArrayRow(images[_row(index, len(images), name, self._root)], name, self._reading)

    def names(self) -> list[str]:
        counts = {array: self._header(array)[0][0] for array in self._members if self._holds_images(array)}
        streams = [array.removesuffix("_jpeg") for array in self._members if array.endswith("_jpeg")]
        counts |= {split: len(self._bounds(split)[0]) for split in streams}
        return [f"{array}/{index}" for array, count in sorted(counts.items()) for index in range(count)]

    def _holds_images(self, array: str) -> bool:
        shape, dtype = self._header(array)
        return dtype in (np.uint8, np.uint16) and (len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3)))

    def _header(self, array: str) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
        with NPY_HEADERS:
            if array not in self._headers:
                with self._member(f"{array}.npy") as stream:
                    version = np.lib.format.read_magic(stream)
                    read = (
                        np.lib.format.read_array_header_1_0
                        if version == (1, 0)
                        else np.lib.format.read_array_header_2_0
                    )
                    shape, _, dtype = read(stream)
                self._headers[array] = shape, dtype
        return self._headers[array]

    def _array(self, array: str) -> NDArray[np.generic]:
        with NPY_HEADERS:
            if array not in self._arrays:
                with self._member(f"{array}.npy") as stream:
                    self._arrays[array] = np.lib.format.read_array(stream, allow_pickle=False)
        return self._arrays[array]

    def _bounds(self, split: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First byte of each JPEG and the first one after it; offsets may or may not end with the total."""
        offsets = self._array(f"{split}_offsets").astype(np.int64)
        total = self._header(f"{split}_jpeg")[0][0]
        edges = offsets if len(offsets) and offsets[-1] == total else np.append(offsets, total)
        if edges[0] < 0 or (np.diff(edges) < 0).any():
            raise DataError(f"{self._root}: {split}_offsets must rise from 0 to {total}, the size of {split}_jpeg")
        return edges[:-1], edges[1:]


class _IdxReader(ImageReader):
    """Images in an idx file, plain or compressed with gzip: the format of MNIST and Fashion-MNIST."""

    def encoded(self, name: str) -> EncodedImage:
        return ArrayRow(self._images[_row(name, len(self._images), name, self._root)], name)

    def names(self) -> list[str]:
        return [str(index) for index in range(len(self._images))]

    def fingerprint(self, names: Sequence[str] | None = None) -> str:
        stat = self._root.stat()
        return _digest([("idx", str(stat.st_size), str(stat.st_mtime_ns))])

    @cached_property
    def _images(self) -> Pixels:
        # gzip and zlib raise many kinds on damaged data.
        with reraised_as(DataError, Exception, where=f"{self._root} cannot be read"):
            data = self._root.read_bytes()
            data = gzip.decompress(data) if self._root.suffix == ".gz" else data
        if len(data) < 16 or not data.startswith(IDX_IMAGES):
            raise DataError(f"{self._root} is not an idx file of images (unsigned bytes in three dimensions)")
        shape = [int(size) for size in np.frombuffer(data, ">u4", count=3, offset=4)]
        if len(data) - 16 != math.prod(shape):
            raise DataError(f"{self._root} is damaged: its header states {shape}, it contains {len(data) - 16} bytes")
        return np.frombuffer(data, np.uint8, offset=16).reshape(shape)


def _visible_images(names: Iterable[str]) -> list[str]:
    """Names with an image's suffix, without hidden files and what macOS adds to archives."""
    return [
        name
        for name in names
        if name.lower().endswith(IMAGE_SUFFIXES)
        and not any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(name).parts)
    ]


def _row(text: str, count: int, name: str, root: Path) -> int:
    # One spelling per image: "007" and "7" must not be two names of one.
    if not text.isdecimal() or str(int(text)) != text or int(text) >= count:
        raise DataError(f"{root} holds no image {name!r}; expected an index from 0 to {count - 1}")
    return int(text)


def _digest(states: Iterable[tuple[str, ...]]) -> str:
    digest = hashlib.sha256()
    for state in states:
        digest.update("\x1f".join((*state, "\n")).encode())
    return digest.hexdigest()
