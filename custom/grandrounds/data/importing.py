"""The import of images of one's own: every file or row is used, or left out for a reason, and the account adds up."""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from grandrounds.data.image_files import (
    DAMAGED,
    FRAMES,
    OTHER,
    ImageFiles,
    Seen,
    masks_among,
    place_at,
    require_text_names,
)
from grandrounds.data.images.readers import open_images
from grandrounds.errors import DataError
from grandrounds.files import printable

NOT_THERE, UNWANTED = "missing", "left out by label_map"
_DRIVE = re.compile(r"[A-Za-z]:|https?:/|//[^/]+/[^/]+")
_WRITTEN_NUMBER = re.compile(r"(0|[1-9]\d*)(?:\.0)?(\.[a-z]\w*)?")
"""A whole number as spreadsheets write it, 7 or 7.0, which may have been 007; perhaps with a suffix."""
_PADDED = re.compile(r"0+(0|[1-9]\d*)(\.[a-z]\w*)?")
_SEARCHED = 20_000
"""Files that are looked at to propose a folder for the images of a table."""
_NAMED = 3


@dataclass(frozen=True)
class Import:
    """What was found at a source of images, and what became of it.

    Attributes:
        things: what was counted: ``files`` of a folder, or ``rows`` of a table.
        used: the images by name; what is known of arrays of pixels is their name alone.
        left_out: other files or rows by name, with the reason.
        notes: what was assumed in reading, one phrase each.
    """

    things: str
    used: Mapping[str, Seen]
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def found(self) -> int:
        """The number of files or rows."""
        return len(self.used) + len(self.left_out)

    @property
    def reasons(self) -> dict[str, int]:
        """The number of files or rows left out, by reason, the commonest first."""
        return dict(Counter(self.left_out.values()).most_common())

    def without(self, names: Iterable[str], reason: str) -> Import:
        """The same import with some of its images left out."""
        out = dict.fromkeys(names, reason)
        used = {name: picture for name, picture in self.used.items() if name not in out}
        return replace(self, used=used, left_out={**self.left_out, **out})

    def facts(self) -> dict[str, Any]:
        """The account for ``partition.json``, with the first names of what a person should look at."""
        seen = [picture for picture in self.used.values() if picture.width]
        formats = Counter(picture.format for picture in seen)
        sizes = sorted(((picture.width, picture.height) for picture in seen), key=lambda size: size[0] * size[1])
        content: dict[str, Any] = {"things": self.things, "found": self.found, "used": len(self.used)}
        content["left_out"] = self.reasons
        if sizes:
            content |= {"formats": dict(formats.most_common()), "sizes": [list(sizes[0]), list(sizes[-1])]}
        more = {"notes": list(self.notes), "named": self.named()}
        return {"import": content | {name: lines for name, lines in more.items() if lines}}

    def named(self) -> list[str]:
        """The first names that were left out for each reason that a person should look at."""
        lines = []
        for reason in self.reasons:
            if reason not in (NOT_THERE, DAMAGED, FRAMES) and not reason.startswith("over"):
                continue
            names = [printable(name) for name, own in self.left_out.items() if own == reason]
            lines.append(f"{reason}: {', '.join(names[:_NAMED])}{' ...' if len(names) > _NAMED else ''}")
        return lines


def account(content: Mapping[str, Any]) -> str:
    """The account of ``partition.json`` as a sentence.

    Example:
        >>> account({"things": "files", "found": 12, "used": 9, "left_out": {"masks": 2, "unreadable": 1}})
        '12 files found = 9 used + 3 left out (2 masks, 1 unreadable)'
    """
    reasons = ", ".join(f"{count} {reason}" for reason, count in content["left_out"].items())
    left = content["found"] - content["used"]
    return f"{content['found']} {content['things']} found = {content['used']} used + {left} left out" + (
        f" ({reasons})" if reasons else ""
    )


def shared_root(names: Sequence[str], root: Path) -> Path:
    """The folder above all images of a table if their names are absolute paths of this machine, else ``root``."""
    if names and all(name.startswith("/") and os.path.isfile(name) for name in names):
        return Path(os.path.commonpath([os.path.dirname(name) for name in names]))
    return root


class Names:
    """Finds the images that a table names, as it may write them, below a folder or in an archive.

    Backslashes, drives and absolute paths of another machine, letter case, composed and decomposed accents, a missing
    suffix, and of numbers the leading zeros that spreadsheets drop, do not matter where one file alone fits.
    """

    def __init__(self, place: ImageFiles) -> None:
        self._place = place

    def find(self, text: str) -> list[str]:
        """The files that a name may mean; the first alone where it is written as the file is."""
        plain = _DRIVE.sub("", text.replace("\\", "/"), count=1) if "\\" in text or _DRIVE.match(text) else text
        parts = PurePosixPath(os.path.normpath(plain)).parts
        if ".." in parts:
            raise DataError(f"{printable(text)} leads out of {self._place.root}; names must be paths inside it")
        inside = self._inside(plain, parts)
        if inside and self._is_there(inside):
            return [inside]
        return self._similar(parts, absolute=plain != text or plain.startswith("/"))

    def _inside(self, plain: str, parts: tuple[str, ...]) -> str:
        if not plain.startswith("/"):
            return "/".join(parts)
        root = os.path.abspath(self._place.root)
        return os.path.relpath(plain, root) if plain.startswith(f"{root}/") else ""

    def _is_there(self, name: str) -> bool:
        return (
            os.path.lexists(self._place.root / name)
            if self._place.root.is_dir()
            else name in self._by_end.get(_folded_parts(name), ())
        )

    @cached_property
    def _by_end(self) -> Mapping[tuple[str, ...], list[str]]:
        """All files by each end of their path, with and without their suffix, folded."""
        names_by_end: dict[tuple[str, ...], list[str]] = {}
        for name, _ in sorted(self._place.entries()):
            *folders, last = _folded_parts(name)
            for own in dict.fromkeys((last, PurePosixPath(last).stem)):
                for first in range(len(folders) + 1):
                    names_by_end.setdefault((*folders[first:], own), []).append(name)
        return names_by_end

    @cached_property
    def _by_number(self) -> Mapping[tuple[str, ...], list[str]]:
        """Those that are called by a number with zeros before it, without these."""
        names_by_number: dict[tuple[str, ...], list[str]] = {}
        for (*folders, last), names in self._by_end.items():
            if match := _PADDED.fullmatch(last):
                names_by_number.setdefault((*folders, f"{match[1]}{match[2] or ''}"), []).extend(names)
        return names_by_number

    def _similar(self, parts: tuple[str, ...], absolute: bool) -> list[str]:
        """The files whose path ends like this one, of an absolute one with as few of its folders as need be."""
        *folders, last = wanted = _folded_parts("/".join(part for part in parts if part != "/"))
        number = _WRITTEN_NUMBER.fullmatch(last)
        ways = [(self._by_end, wanted)]
        ways += [(self._by_number, (*folders, f"{number[1]}{number[2] or ''}"))] if number else []
        for files, written in ways:
            for first in range(len(written) if absolute else 1):
                fitting = files.get(written[first:], [])
                whole = [name for name in fitting if name.count("/") == len(written[first:]) - 1]
                if fitting:
                    return whole if len(whole) == 1 else fitting
        return []


def _folded_parts(name: str) -> tuple[str, ...]:
    return PurePosixPath(unicodedata.normalize("NFC", name).casefold()).parts


@dataclass(frozen=True)
class Listed:
    """The images of a table, found and looked at.

    Attributes:
        files: the file of each usable row, by the row's line.
        account: what became of the rows.
    """

    files: Mapping[int, str]
    account: Import


def look_up(source: str, root: Path, rows: Sequence[tuple[int, str]], skip: bool, notes: Sequence[str] = ()) -> Listed:
    """Find and look at every image that a table lists, before anything is written.

    Args:
        source: the table, for errors.
        root: folder or archive of the images.
        rows: line and name of each image.
        skip: leave out rows whose image cannot be used, instead of refusing them.
        notes: what was assumed in reading the table.

    Raises:
        DataError: if an image is missing, is several files, cannot be read or has several frames, without ``skip``; or if
            none is left. Line, name and what to type are named.
    """
    place = place_at(root)
    if place is None:
        return _in_arrays(source, root, rows, notes)
    names = Names(place)
    files: dict[int, str] = {}
    bad: list[tuple[int, str, str]] = []
    used: dict[str, Seen] = {}
    masks: set[str] = set()
    for line, text in rows:
        seen = {name: place.look(name) for name in names.find(text)}
        candidates, beside = _candidates(place, seen)
        masks |= beside
        _require_one_file(candidates, root, f"{source} line {line}: {printable(text)}")
        picture = seen[candidates[0]] if candidates else Seen("", reason=NOT_THERE)
        reason = picture.reason or (FRAMES if picture.frames > 1 else "")
        if reason:
            bad.append((line, text, f"{reason} ({picture.frames} frames)" if reason == FRAMES else reason))
        else:
            files[line] = candidates[0]
            used[candidates[0]] = picture
    if bad and (not skip or not files):
        raise DataError(_refusal(source, root, bad, len(rows)))
    require_text_names(root, files.values())
    left = {f"line {line}: {text}": reason.partition(" (")[0] for line, text, reason in bad}
    renamed = sum(files[line] != text for line, text in rows if line in files)
    more = [*notes]
    if renamed:
        more.append(f"{renamed} names are written otherwise than the files'")
    if masks:
        more.append(f"{len(masks)} images beside others of their name are masks, first {min(masks)}")
    return Listed(files, Import("rows", used, left, tuple(more)))


def _candidates(place: ImageFiles, seen: Mapping[str, Seen]) -> tuple[list[str], set[str]]:
    """The files that a table's image may be, and the masks beside it.

    Beside an image there may also be a file of the same name about it, such as its JSON or text.
    """
    images = [name for name, picture in seen.items() if picture.reason != OTHER] or [*seen]
    if len(images) < 2:
        return images, set()
    masks = set(masks_among(place, {name: seen[name] for name in images}))
    return [name for name in images if name not in masks], masks


def _require_one_file(candidates: Sequence[str], root: Path, where: str) -> None:
    if len(candidates) < 2:
        return
    first, second = candidates[:2]
    above = [shlex.quote(str(root / PurePosixPath(name).parent)) for name in (first, second)]
    roots = f"name the folder by --root {above[0]} or --root {above[1]}, or "
    remedy = f"{roots if above[0] != above[1] and root.is_dir() else ''}write one"
    raise DataError(f"{where} may be {printable(first)} or {printable(second)}; {remedy}")


def _in_arrays(source: str, root: Path, rows: Sequence[tuple[int, str]], notes: Sequence[str]) -> Listed:
    """The images of a table that are pixels in a file of arrays."""
    with open_images(root) as reader:
        there = set(reader.names())
    bad = [(line, text, NOT_THERE) for line, text in rows if text not in there]
    if bad:
        raise DataError(_refusal(source, root, bad, len(rows)))
    return Listed(dict(rows), Import("rows", {name: Seen("array") for _, name in rows}, notes=tuple(notes)))


def _refusal(source: str, root: Path, bad: Sequence[tuple[int, str, str]], count: int) -> str:
    line, text, reason = bad[0]
    reasons = Counter(reason.partition(" (")[0] for *_, reason in bad)
    listed = ", ".join(f"{number} {word}" for word, number in reasons.most_common())
    start = f"{source}: of {count} images {listed}; first line {line}: {printable(text)}, {reason}"
    remedy = "add --skip-unusable to leave these rows out" if len(bad) < count else "correct the table"
    if reason == NOT_THERE:
        elsewhere = _proposed_root(root, text)
        if elsewhere and Path(elsewhere) != root.absolute():
            return f"{start}, not below {root}; add --root '{elsewhere}'"
        return f"{start}, not below {root}; name the folder of the images by --root, or {remedy}"
    if reason.startswith(FRAMES):
        return f"{start}; export each frame as a file of its own, or {remedy}"
    return f"{start}; {remedy}"


def _proposed_root(root: Path, text: str) -> str:
    """A folder near the root below which the image is."""
    name = PurePosixPath(text.replace("\\", "/"))
    for path in _nearby(root.absolute().parent):
        if path.name.casefold() == name.name.casefold():
            depth = next((n for n in range(len(name.parts), 0, -1) if path.parts[-n:] == name.parts[-n:]), 1)
            return str(Path(*path.parts[:-depth]))
    return ""


def _nearby(folder: Path) -> Iterator[Path]:
    count = 0
    for above, folders, files in os.walk(folder):
        folders[:] = sorted(subfolder for subfolder in folders if not subfolder.startswith("."))
        for name in files:
            count += 1
            if count > _SEARCHED:
                return
            yield Path(above) / name
