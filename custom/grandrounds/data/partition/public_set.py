"""One set of public images, the same at every site.

In MDH-FL (arXiv 2308.00155) row i of all sites' soft labels belongs to the same image, and a mismatch could not be detected
in the rows. So every site lists its public images: name, hash of the file's bytes, hash of the decoded and resized image.
The second hash also differs between versions of a JPEG library.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.csv_files import csv_bytes, write_csv
from grandrounds.data.images.cache import open_cache
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import read_table
from grandrounds.errors import DataError

PUBLIC_SET_COLUMNS = ("image", "content", "pixels")
LIST_SUFFIX = ".sha256.csv"
FINGERPRINT = 8
"""Bytes of each hash that are sent: 2^64 values distinguish files that are not forged."""


class PublicImage(NamedTuple):
    """One image; its number in the set is that of its row of soft labels.

    Attributes:
        image: its name under the root of the set.
        content: SHA-256 of the file's bytes; of the array for images that are not files of their own.
        pixels: SHA-256 of the decoded and resized image; empty in a list that was made without decoding.
    """

    image: str
    content: str
    pixels: str


@dataclass(frozen=True)
class PublicSet:
    """The identity of a public set: its images in canonical order, which is that of their names."""

    images: tuple[PublicImage, ...]

    @property
    def digest(self) -> str:
        """SHA-256 over all of it, in hexadecimal: equal if and only if the sets are."""
        return hashlib.sha256(csv_bytes(PUBLIC_SET_COLUMNS, self.images)).hexdigest()


def list_path(manifest: Path) -> Path:
    """Where the list of a public set is, beside its manifest.

    Example:
        >>> list_path(Path("site-1/public.csv")).as_posix()
        'site-1/public.sha256.csv'
    """
    return manifest.with_suffix(LIST_SUFFIX)


def open_public_set(
    root: Path, image_size: int, channels: int, cache_dir: Path, names: Sequence[str] | None = None
) -> tuple[PublicSet, NDArray[np.uint8]]:
    """Decode the public images, once for all runs, and make their list; all images of ``root`` if there are no ``names``.

    Returns:
        The list, and the images in its order, shape ``(images, image_size, image_size, channels)``, read-only.

    Raises:
        DataError: if there is no image, an image cannot be read, or a name occurs twice.
        ConfigurationError: if ``cache_dir`` cannot be written.
    """
    ordered = _ordered(root, names)
    # A row that cannot be computed would be missing in every sum, so no image may be unreadable.
    images = open_cache(ordered, root, image_size, channels, cache_dir, max_unreadable=0.0).images
    return list_public_set(root, ordered, images), images


def list_public_set(
    root: Path, names: Sequence[str] | None = None, images: NDArray[np.uint8] | None = None
) -> PublicSet:
    """Make the list of a public set, of all images of ``root`` if there are no ``names``.

    ``images``, decoded and resized in the order of the sorted names, add the hashes ``pixels``.

    Raises:
        DataError: if there is no image, a file cannot be read, or a name occurs twice.
    """
    ordered = _ordered(root, names)
    if images is not None and len(images) != len(ordered):
        raise DataError(f"{root}: {len(ordered)} public images are named, {len(images)} were decoded")
    contents = _content_digests(root, ordered)
    pixels = (
        [""] * len(ordered) if images is None else [hashlib.sha256(image.tobytes()).hexdigest() for image in images]
    )
    return PublicSet(tuple(PublicImage(*entry) for entry in zip(ordered, contents, pixels, strict=True)))


def write_public_set(public: PublicSet, path: Path) -> None:
    """Write the list as CSV; the SHA-256 of the file's bytes is the set's digest."""
    write_csv(path, PUBLIC_SET_COLUMNS, public.images)


def read_public_set(path: Path) -> PublicSet:
    """Read a list.

    Raises:
        DataError: if the file is not a table with these columns, or the names are not in order or not distinct.
    """
    images: list[PublicImage] = []
    for line, row in read_table(path, PUBLIC_SET_COLUMNS):
        if images and row["image"] <= images[-1].image:
            raise DataError(
                f"{path} line {line}: public image {row['image']!r} must not come after {images[-1].image!r}; "
                "names are sorted and distinct"
            )
        images.append(PublicImage(row["image"], row["content"], row["pixels"]))
    return PublicSet(tuple(images))


def _ordered(root: Path, names: Sequence[str] | None) -> list[str]:
    if names is None:
        with open_images(root) as reader:
            names = reader.names()
    ordered = sorted(names)
    if not ordered:
        raise DataError(f"{root}: there is no public image")
    for earlier, later in pairwise(ordered):
        if earlier == later:
            raise DataError(f"{root}: public image {later!r} is named twice; name each image once")
    return ordered


def _contents(root: Path, names: Sequence[str]) -> Iterator[bytes]:
    name = ""
    try:
        if root.is_dir():
            for name in names:
                yield (root / name).read_bytes()
            return
        with zipfile.ZipFile(root) as archive:
            for name in names:
                yield archive.read(name)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{root}: public image {name!r} cannot be read: {error}") from error


def _content_digests(root: Path, names: Sequence[str]) -> Iterator[str]:
    """SHA-256 of what is stored under each name."""
    if root.is_dir() or root.suffix == ".zip":
        yield from (hashlib.sha256(data).hexdigest() for data in _contents(root, names))
    else:
        with open_images(root) as reader:
            for name in names:
                pixels = reader.read(name)
                yield hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()


def fingerprints(public: PublicSet) -> NDArray[np.uint8]:
    """The set in sixteen bytes for each image, for another party to compare.

    Returns:
        Shape ``(images, 16)``: eight bytes of the hash over name and content, eight of that of the decoded image.
    """
    named = b"".join(_short(f"{image.image}\n{image.content}") for image in public.images)
    decoded = b"".join(_short(image.pixels) for image in public.images)
    halves = [np.frombuffer(half, np.uint8).reshape(len(public.images), FINGERPRINT) for half in (named, decoded)]
    return np.concatenate(halves, axis=1)


def first_unlike(here: PublicSet, there: NDArray[np.uint8]) -> str | None:
    """Say which image is the first that differs from another party's set.

    Returns:
        A sentence that names the image as it is called here; None if the sets are equal.

    Raises:
        DataError: if ``there`` is not an array of fingerprints.
    """
    if there.ndim != 2 or there.shape[1] != 2 * FINGERPRINT or there.dtype != np.uint8:
        raise DataError(f"fingerprints must be uint8 (images, {2 * FINGERPRINT}), got {there.dtype} {there.shape}")
    own = fingerprints(here)
    common = min(len(own), len(there))
    unlike = np.flatnonzero((own[:common] != there[:common]).any(axis=1))
    if len(unlike):
        number = int(unlike[0])
        file = (own[number, :FINGERPRINT] != there[number, :FINGERPRINT]).any()
        what = "has another name or content" if file else "is the same file, decoded or resized differently"
        return f"public image {here.images[number].image!r} (number {number + 1}) {what} elsewhere"
    if len(own) == len(there):
        return None
    return f"there are {len(own)} public images here and {len(there)} elsewhere; the first {common} are the same"


def _short(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:FINGERPRINT]
