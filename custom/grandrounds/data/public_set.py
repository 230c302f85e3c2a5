"""One set of public images, the same at every site.

In MDH-FL (arXiv 2308.00155) row i of one site's soft labels and row i of another's are about the same image, and nothing in
the rows would tell if they were not. So every site makes a list of its public images: name, hash of the file's bytes, hash
of the image as it was decoded and resized. The second differs between versions of a JPEG library too.
"""

from __future__ import annotations

import csv
import hashlib
import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.cache import open_cache
from grandrounds.data.csv_table import read_table
from grandrounds.data.readers import open_images
from grandrounds.errors import DataError
from grandrounds.files import replacing

COLUMNS = ("image", "content", "pixels")


@dataclass(frozen=True, slots=True)
class PublicImage:
    """One image; its number in the set is that of its row of soft labels.

    Attributes:
        image: its name under the root of the set.
        content: SHA-256 of the file's bytes; of the array for images that are no files of their own.
        pixels: SHA-256 of the decoded and resized image.
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
        return hashlib.sha256(_as_csv(self)).hexdigest()


def open_public_set(
    root: Path, image_size: int, channels: int, cache_dir: Path, names: Sequence[str] | None = None
) -> tuple[PublicSet, NDArray[np.uint8]]:
    """Decode the public images, once for all runs, and make their list.

    Args:
        root: folder, zip, npz or idx file.
        image_size: height and width after resizing, in pixels.
        channels: 1 or 3.
        cache_dir: folder for the decoded images.
        names: which images; None is all that are there.

    Returns:
        The list, and the images in its order, shape ``(images, image_size, image_size, channels)``, read-only.

    Raises:
        DataError: if there is no image, an image cannot be read, or a name occurs twice.
        ConfigurationError: if ``cache_dir`` cannot be written.
    """
    if names is None:
        with open_images(root) as reader:
            names = reader.names()
    ordered = sorted(names)
    for earlier, later in pairwise(ordered):
        if earlier == later:
            raise DataError(f"{root}: public image {later!r} is named twice; name each image once")
    # A row that cannot be computed would be missing in every sum, so no image may be unreadable.
    images = open_cache(ordered, root, image_size, channels, cache_dir, max_unreadable=0.0).images
    contents = _content_digests(root, ordered)
    entries = (
        PublicImage(name, content, hashlib.sha256(pixels.tobytes()).hexdigest())
        for name, content, pixels in zip(ordered, contents, images, strict=True)
    )
    return PublicSet(tuple(entries)), images


def first_difference(here: PublicSet, there: PublicSet) -> str | None:
    """Say what differs first between two public sets.

    Args:
        here: the set of this site.
        there: the set it should be.

    Returns:
        A sentence that names the first differing image; None if the sets are equal.

    Example:
        >>> first_difference(PublicSet((PublicImage("a", "1", "1"),)), PublicSet((PublicImage("a", "2", "2"),)))
        "public image 'a' (number 1): the file has another content"
    """
    for number, (ours, theirs) in enumerate(zip(here.images, there.images, strict=False), 1):
        if ours.image < theirs.image:
            return f"public image {ours.image!r} (number {number}) does not belong to the set"
        if ours.image > theirs.image:
            return f"public image {theirs.image!r} (number {number}) is missing"
        where = f"public image {ours.image!r} (number {number})"
        if ours.content != theirs.content:
            return f"{where}: the file has another content"
        if ours.pixels != theirs.pixels:
            return f"{where}: the file is the same but was decoded or resized differently; compare Pillow's versions"
    return _difference_in_number(here.images, there.images)


def require_equal_sets(here: PublicSet, there: PublicSet, site: str) -> None:
    """Raise ``DataError`` unless a site's public set is what it should be; the first differing image is named."""
    difference = first_difference(here, there)
    if difference:
        raise DataError(f"{site}: {difference}; copy the public set again, all sites need the same")


def write_public_set(public: PublicSet, path: Path) -> None:
    """Write the list as CSV; the same list always gives the same bytes, whose SHA-256 is its digest."""
    with replacing(path) as stream:
        stream.write(_as_csv(public))


def read_public_set(path: Path) -> PublicSet:
    """Read a list.

    Raises:
        DataError: if the file is no table with these columns, or the names are not in order or not distinct.
    """
    images: list[PublicImage] = []
    for line, row in read_table(path, COLUMNS):
        if images and row["image"] <= images[-1].image:
            raise DataError(
                f"{path} line {line}: public image {row['image']!r} must not come after {images[-1].image!r}; "
                "names are sorted and distinct"
            )
        images.append(PublicImage(row["image"], row["content"], row["pixels"]))
    return PublicSet(tuple(images))


def _difference_in_number(here: Sequence[PublicImage], there: Sequence[PublicImage]) -> str | None:
    common = min(len(here), len(there))
    if len(here) > common:
        return f"public image {here[common].image!r} (number {common + 1}) does not belong to the set"
    if len(there) > common:
        return f"public image {there[common].image!r} (number {common + 1}) is missing"
    return None


def _as_csv(public: PublicSet) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((image.image, image.content, image.pixels) for image in public.images)
    return text.getvalue().encode()


def _content_digests(root: Path, names: Sequence[str]) -> Iterator[str]:
    """SHA-256 of what is stored under each name."""
    if root.is_dir():
        yield from (hashlib.sha256((root / name).read_bytes()).hexdigest() for name in names)
    elif root.suffix == ".zip":
        with zipfile.ZipFile(root) as archive:
            yield from (hashlib.sha256(archive.read(name)).hexdigest() for name in names)
    else:
        with open_images(root) as reader:
            for name in names:
                pixels = reader.read(name)
                yield hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()
