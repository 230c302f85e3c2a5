"""One set of public images, the same at every site.

In MDH-FL (arXiv 2308.00155) row i of all sites' soft labels belongs to the same image, and a mismatch could not be detected
in the rows. So every site lists its public images: name, hash of the file's bytes, hash of the decoded and resized image.
The second hash also differs between versions of a JPEG library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import reraised_as
from grandrounds.csv_files import csv_bytes, write_csv
from grandrounds.data.images.cache import open_cache
from grandrounds.data.images.readers import open_images
from grandrounds.errors import DataError

PUBLIC_SET_COLUMNS = ("image", "content", "pixels")
LIST_SUFFIX = ".sha256.csv"


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


def _content_digests(root: Path, names: Sequence[str]) -> Iterator[str]:
    """SHA-256 of what is stored under each name."""
    of_files = root.is_dir() or root.suffix == ".zip"
    with open_images(root) as reader:
        for name in names:
            with reraised_as(DataError, DataError, where=f"{root}: public image {name!r} cannot be read"):
                stored = reader.read_bytes(name) if of_files else _array_bytes(reader.read(name))
            yield hashlib.sha256(stored).hexdigest()


def _array_bytes(pixels: NDArray[np.uint8]) -> bytes:
    return repr(pixels.shape).encode() + pixels.tobytes()
