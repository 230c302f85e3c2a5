"""What is in a folder or zip archive of images: what each file is, by its bytes and not by its name.

Nothing is decoded but small pictures that may be masks, and nothing is left out without a reason.
"""

from __future__ import annotations

import io
import os
import re
import stat
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np

from grandrounds.data.belonging import foreign
from grandrounds.data.images.files.opening import DOCUMENTS, RASTERS, is_dicom, undecoded_format
from grandrounds.data.images.files.raster import Raster
from grandrounds.data.images.readers import open_archive
from grandrounds.errors import DataError
from grandrounds.files import printable

MAX_MEMBERS = 1_000_000
MAX_MEMBER_BYTES = 2**30
MAX_EXPANSION = 200
"""How many times its own size an archive may expand to, where that is more than ``MAX_MEMBER_BYTES``."""

HIDDEN_FILES, OTHER, DAMAGED, FRAMES = "hidden or system files", "no images", "unreadable", "of several frames"
MASKS, LINKS, LARGE = "masks", "symbolic links out of the folder", "over the limit of 178,956,970 pixels"

_SYSTEM = frozenset({"thumbs.db", "desktop.ini", "ehthumbs.db", "dicomdir", "icon\r"})
_SYSTEM_FOLDERS = frozenset(
    {"__macosx", "$recycle.bin", "recycler", "system volume information", "lost+found", "@eadir", "@tmp", "@recycle"}
    | {"@recently-snapshot", "#recycle", "#snapshot", "network trash folder", "temporary items", "__pycache__"}
    | {"~snapshot", "@sharebin", "recycled", "found.000", "thevolumesettingsfolder", "thumbnails"}
)
"""What operating systems and network drives leave in folders; those whose name begins with a dot are hidden, too."""
_IMAGE_SUFFIX = re.compile(
    r"\.(png|jpe?g|jpe|jfif|jp2|j2k|tiff?|bmp|dib|gif|webp|p[bgpn]m|avif|hei[cf]|jxl|dcm|dicom|ima)", re.IGNORECASE
)
"""What is called so and cannot be read is a damaged image, and not another kind of file."""
_HEADER = ["Rows", "Columns", "NumberOfFrames", "Modality", "ImageType"]
_MASK_LEVELS = 8
_MASK_WORD = r"masks?|segm?|segmentations?|ground[ _-]?truth|gt|annotations?|contours?|labels?"
_MASK_AFTER = re.compile(rf"(.+?)[ _.-]+(?:{_MASK_WORD})(?:[ _.-]*[0-9]+)?", re.IGNORECASE)
_MASK_BEFORE = re.compile(rf"(?:{_MASK_WORD})[ _.-]+(.+)", re.IGNORECASE)
_MASK_FOLDER = re.compile(r"masks|segmentations?|ground[ _-]?truths?|annotations?", re.IGNORECASE)


@dataclass(frozen=True)
class Seen:
    """A file that is an image, as its header says.

    Attributes:
        format: ``DICOM``, or Pillow's name.
        width: in pixels.
        height: in pixels.
        frames: in the file, without previews.
        reason: why it cannot be used; empty if it can.
        modality: of a DICOM file.
        kind: the values of its ImageType, with slashes.
    """

    format: str
    width: int = 0
    height: int = 0
    frames: int = 1
    reason: str = ""
    modality: str = ""
    kind: str = ""


class ImageFiles(ABC):
    """A folder or archive; names are relative paths with slashes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @abstractmethod
    def entries(self) -> Iterator[tuple[str, str]]:
        """Every file with the reason why it cannot be an image, or nothing."""

    @abstractmethod
    def open(self, name: str) -> IO[bytes]:
        """A file by its name; it can be sought in.

        Raises:
            OSError: if it is not there.
        """

    @abstractmethod
    def empty_folders(self) -> list[str]:
        """The folders that hold nothing, but for those of systems."""

    def look(self, name: str) -> Seen:
        """What a file is; one that cannot be read has the reason."""
        try:
            with self.open(name) as stream:
                return _look(stream, name)
        except Exception as error:  # decoders raise almost anything on damaged bytes
            large = type(error).__name__ == "DecompressionBombError"
            called_image = _IMAGE_SUFFIX.fullmatch(PurePosixPath(name).suffix)
            undecoded = "" if large else self._undecoded(name)
            return Seen("", reason=LARGE if large else undecoded or (DAMAGED if called_image else OTHER))

    def _undecoded(self, name: str) -> str:
        with suppress(Exception), self.open(name) as stream:
            return undecoded_format(stream.read(32))
        return ""


class Folder(ImageFiles):
    """A folder with all that is below it."""

    def entries(self) -> Iterator[tuple[str, str]]:
        """Links to folders count as one file; what is no regular file is no image."""

        def refuse(error: OSError) -> None:
            raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error

        for folder, folders, files in os.walk(self.root, onerror=refuse):
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            for name in (*files, *links):
                path = os.path.join(folder, name)
                yield Path(path).relative_to(self.root).as_posix(), self._reason(path)

    def open(self, name: str) -> IO[bytes]:
        """See :meth:`ImageFiles.open`."""
        return (self.root / name).open("rb")

    def empty_folders(self) -> list[str]:
        """See :meth:`ImageFiles.empty_folders`."""
        found = (
            Path(folder).relative_to(self.root) for folder, below, files in os.walk(self.root) if not below + files
        )
        return [path.as_posix() for path in found if path.parts and not is_hidden(path.as_posix())]

    def look(self, name: str) -> Seen:
        """See :meth:`ImageFiles.look`; a link out of the folder is not followed."""
        reason = self._reason(os.path.join(self.root, name))
        return Seen("", reason=reason) if reason else super().look(name)

    def _reason(self, path: str) -> str:
        resolved = os.path.realpath(path)
        if not Path(resolved).is_relative_to(os.path.realpath(self.root)):
            return LINKS
        try:
            return "" if stat.S_ISREG(os.stat(path).st_mode) else OTHER
        except OSError:
            return DAMAGED


class Archive(ImageFiles):
    """A zip archive within bounds.

    Raises:
        DataError: if it is damaged or encrypted, expands beyond the bounds, or a name in it leads out of it.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._archive = open_archive(root)
        self._members = [member for member in self._archive.infolist() if not member.is_dir()]
        self._check()

    def _check(self) -> None:
        unpack = f"; check it, unpack it into a folder and import that: unzip {self.root} -d FOLDER"
        if len(self._members) > MAX_MEMBERS:
            raise DataError(f"{self.root} has {len(self._members)} files, over the limit of {MAX_MEMBERS}{unpack}")
        total = sum(member.file_size for member in self._members)
        if total > max(MAX_MEMBER_BYTES, MAX_EXPANSION * self.root.stat().st_size):
            raise DataError(
                f"{self.root} expands to {total >> 20} MiB, over the limit of {MAX_EXPANSION} times its size{unpack}"
            )
        for member in self._members:
            parts = PurePosixPath(member.filename.replace("\\", "/")).parts
            if ".." in parts or member.filename.startswith(("/", "\\")) or ":" in parts[0]:
                raise DataError(f"{self.root} holds {printable(member.filename)}, which leads out of it; pack it again")
            if member.flag_bits & 1:
                raise DataError(f"{self.root} is encrypted ({printable(member.filename)}){unpack}")
            if member.file_size > MAX_MEMBER_BYTES:
                raise DataError(
                    f"{self.root}: {printable(member.filename)} has {member.file_size >> 20} MiB, over the limit of "
                    f"{MAX_MEMBER_BYTES >> 20} MiB{unpack}"
                )

    def empty_folders(self) -> list[str]:
        """See :meth:`ImageFiles.empty_folders`."""
        inside = {str(folder) for member in self._members for folder in PurePosixPath(member.filename).parents}
        named = (member.filename.rstrip("/") for member in self._archive.infolist() if member.is_dir())
        return [name for name in named if name not in inside and not is_hidden(name)]

    def entries(self) -> Iterator[tuple[str, str]]:
        """A name that occurs twice is one file: readers see the last."""
        for name in dict.fromkeys(member.filename for member in self._members):
            link = stat.S_ISLNK(self._archive.getinfo(name).external_attr >> 16)
            yield name, LINKS if link else ""

    def open(self, name: str) -> IO[bytes]:
        """See :meth:`ImageFiles.open`."""
        try:
            return io.BytesIO(self._archive.read(name))
        except KeyError as error:
            raise FileNotFoundError(name) from error


def place_at(root: Path) -> ImageFiles | None:
    """The folder or zip archive there; None for arrays of pixels.

    Raises:
        DataError: if there is nothing, or an archive of another kind.
    """
    if root.is_dir():
        return Folder(root)
    if not root.is_file():
        raise DataError(f"{root} does not exist; name a folder of images or a .zip")
    if re.search(r"\.(tar|tgz|tbz2?|txz|7z|rar)(\.\w+)?$", root.name, re.IGNORECASE):
        raise DataError(f"{root} is no .zip; unpack it into a folder and import that: tar -xf {root} -C FOLDER")
    if zipfile.is_zipfile(root) and root.suffix.casefold() != ".npz":
        if root.suffix != ".zip":
            raise DataError(f"{root} is a zip archive; if images are in it, mv {root} {root.with_suffix('.zip')}")
        return Archive(root)
    if root.suffix.casefold() == ".zip":
        raise DataError(f"{root} is no .zip that can be read, or one without its end; copy or download it again")
    return None


def look_at(place: ImageFiles) -> tuple[dict[str, Seen], dict[str, str]]:
    """The images of a place that can be used, in the order of their names, and all other files with the reason.

    Raises:
        DataError: if the name of an image is not UTF-8.
    """
    images: dict[str, Seen] = {}
    left: dict[str, str] = {}
    for name, reason in sorted(place.entries()):
        picture = None if is_hidden(name) or reason else place.look(name)
        if picture is None or picture.reason:
            left[name] = HIDDEN_FILES if is_hidden(name) else reason or (picture.reason if picture else OTHER)
        elif picture.frames > 1:
            left[name] = FRAMES
        else:
            images[name] = picture
    require_text_names(place.root, images)
    left |= dict.fromkeys(masks_among(place, images), MASKS)
    left |= foreign(images, list(left))
    return {name: picture for name, picture in images.items() if name not in left}, left


def require_text_names(root: Path, names: Iterable[str]) -> None:
    """Refuse names that are not UTF-8: no manifest can hold them.

    Raises:
        DataError: naming the first, and what to type.
    """
    bad = [name for name in names if printable(name) != name]
    if bad:
        raise DataError(
            f"{printable(str(root))}: the names of {len(bad)} files are not UTF-8, first {printable(bad[0])}; rename them: "
            f"convmv -f cp1252 -t utf-8 -r --notest {printable(str(root))}"
        )


def is_hidden(name: str) -> bool:
    """Whether a file is one of a system, or in a folder of one."""
    parts = PurePosixPath(name).parts
    of_system = any(part.startswith(".") or part.casefold() in _SYSTEM_FOLDERS for part in parts)
    return of_system or parts[-1].casefold() in _SYSTEM or parts[-1].startswith("~$")


def _look(stream: IO[bytes], name: str) -> Seen:
    head = stream.read(4096)
    stream.seek(0)
    if is_dicom(head, ""):
        return _dicom(stream)
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(stream) as image:
            kind, size = str(image.format), image.size
            if kind in DOCUMENTS:
                return Seen(kind, reason=OTHER)
            frames = RASTERS.get(kind, Raster)(image, b"", name).frames  # none is decoded
        if not _complete(stream, kind):
            stream.seek(0)
            Image.open(stream).load()
    return Seen(kind, *size, frames)


def _complete(stream: IO[bytes], kind: str) -> bool:
    """Whether the last bytes are those of a whole file; of formats without such an end it is assumed."""
    ends: Mapping[str, bytes] = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND"}
    if kind not in ends:
        return kind not in ("WEBP", "GIF", "JPEG2000", "BMP", "PPM")
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 4096))
    return ends[kind] in stream.read()


def _dicom(stream: IO[bytes]) -> Seen:
    from pydicom import dcmread

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        header = dcmread(stream, stop_before_pixels=True, specific_tags=_HEADER, force=True)
    if not header.get("Rows") or not header.get("Columns"):
        return Seen("DICOM", reason=OTHER)  # a report, a presentation state, a directory
    stated = header.get("ImageType") or ()
    kind = "/".join([stated] if isinstance(stated, str) else stated).upper()
    frames = int(header.get("NumberOfFrames") or 1)
    return Seen(
        "DICOM", int(header.Columns), int(header.Rows), frames, "", str(header.get("Modality") or "").upper(), kind
    )


def masks_among(place: ImageFiles, images: Mapping[str, Seen]) -> Iterator[str]:
    """Images that are masks of others: by a word in their name or folder, or as a picture of few levels beside another."""
    of_stem: set[str] = set()
    beside: dict[tuple[PurePosixPath, str], list[str]] = defaultdict(list)
    for name in images:
        path = PurePosixPath(name)
        stem = path.stem.casefold()
        beside[path.parent, stem].append(name)
        if not _of_masks(path):
            of_stem.add(stem)
    for name, picture in images.items():
        path = PurePosixPath(name)
        stem = path.stem.casefold()
        match = _MASK_AFTER.fullmatch(stem) or _MASK_BEFORE.fullmatch(stem)
        bases = ([match[1]] if match else []) + ([stem] if _of_masks(path) else [])
        copies = [other for other in beside[path.parent, stem] if other != name]
        if not of_stem.isdisjoint(bases) or _flat_copy(place, name, picture, copies, images):
            yield name


def _of_masks(path: PurePosixPath) -> bool:
    return any(_MASK_FOLDER.fullmatch(part) for part in path.parts[:-1])


def _flat_copy(place: ImageFiles, name: str, picture: Seen, beside: Sequence[str], images: Mapping[str, Seen]) -> bool:
    """Whether a picture has few levels, as of background, cell and nucleus, and one of the same name and size has more."""
    size = (picture.width, picture.height)
    same = [other for other in beside if (images[other].width, images[other].height) == size]
    return (
        bool(same)
        and _levels(place, name) <= _MASK_LEVELS
        and any(_levels(place, other) > _MASK_LEVELS for other in same)
    )


def _levels(place: ImageFiles, name: str) -> int:
    from PIL import Image

    try:
        with place.open(name) as stream, Image.open(stream) as image:
            # Pillow would clip what has more than eight bits.
            return int(np.unique(np.asarray(image if image.mode[0] in "IF" else image.convert("L"))).size)
    except Exception:  # decoders raise almost anything; what cannot be decoded is no mask
        return 256
