"""The import of images of one's own: every file or row is used, or left out for a reason, and the account adds up."""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, takewhile
from pathlib import Path, PurePosixPath
from typing import Any

from grandrounds.data.conventions import ERRORS, FOOTERS
from grandrounds.data.image_files import (
    DAMAGED,
    FRAMES,
    OTHER,
    Folder,
    ImageFiles,
    Seen,
    is_hidden,
    masks_among,
    place_at,
    require_text_names,
)
from grandrounds.data.images.readers import open_images
from grandrounds.data.words import says_nothing
from grandrounds.errors import DataError
from grandrounds.files import printable

NOT_THERE, ELSEWHERE, UNWANTED = "missing", "in another folder", "left out by label_map"
NAMELESS, SHARED = "without an image's name", "one file for names in several folders"
_DRIVE = re.compile(r"[A-Za-z]:|https?:/|//[^/]+/[^/]+")
_WRITTEN_NUMBER = re.compile(r"(0|[1-9]\d*)(?:\.0)?(\.[a-z]\w*)?")
"""A whole number as spreadsheets write it, 7 or 7.0, which may have been 007; perhaps with a suffix."""
_PADDED = re.compile(r"0+(0|[1-9]\d*)(\.[a-z]\w*)?")
_IDENTIFIER = re.compile(r"[0-9]+(\.[0-9]+){3,}")
_SEARCHED = 20_000
"""Files that are looked at to propose a folder for the images of a table."""
_NAMED = 3
NAMED_REASONS = frozenset({NOT_THERE, ELSEWHERE, NAMELESS, SHARED, DAMAGED, FRAMES, FOOTERS, ERRORS})
"""Reasons whose first files or rows a person should look at."""


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
        for reason in [own for own in self.reasons if own in NAMED_REASONS or own.startswith("over")]:
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


def root_of(names: Sequence[str], beside: Path) -> tuple[Path, str]:
    """The folder of a table's images where none is given, and what is to be said of it.

    It is the one above all of them if their names are absolute paths of this machine, else the table's own or, if no
    image is below that, the only one near it that has them all.

    Args:
        names: of the images.
        beside: the table's folder.
    """
    if names and all(name.startswith("/") and os.path.isfile(name) for name in names):
        return Path(os.path.commonpath([os.path.dirname(name) for name in names])), ""
    wanted = [*dict.fromkeys(filter(None, names))]
    if wanted and not _found_below(beside, wanted[:_NAMED]):
        all_of = [root for root, count in _roots_near(beside, wanted, wanted).items() if count == len(wanted)]
        if len(all_of) == 1:
            return all_of[0], f"the images are below {all_of[0]} (--root for another folder)"
    return beside, ""


class Names:
    """Finds the images that a table names, as it may write them, below a folder or in an archive.

    A name and a file are compared by as many parts of their paths as both have, the name of the folder or archive itself
    among them, unless ``any_folder`` says that folders are called otherwise. Backslashes, drives and absolute paths of
    another machine, letter case, composed and decomposed accents, a missing suffix, and of numbers the leading zeros that
    spreadsheets drop, do not matter where one file alone fits.
    """

    def __init__(self, place: ImageFiles, any_folder: bool = False) -> None:
        self._place, self._any_folder = place, any_folder
        self._above = Path(os.path.abspath(place.root)).name.casefold()

    def find(self, text: str) -> list[str]:
        """The files that a name may mean; the first alone where it is written as the file is."""
        plain = _DRIVE.sub("", text.replace("\\", "/"), count=1) if "\\" in text or _DRIVE.match(text) else text
        parts = PurePosixPath(os.path.normpath(plain)).parts
        if ".." in parts:
            raise DataError(f"{printable(text)} leads out of {self._place.root}; names must be paths inside it")
        inside = self._inside(plain, parts)
        if inside and self._is_there(inside):
            return [inside]
        return self._similar(parts)

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
    def _visible(self) -> list[str]:
        return [name for name, _ in sorted(self._place.entries()) if not is_hidden(name)]

    @cached_property
    def _by_end(self) -> Mapping[tuple[str, ...], list[str]]:
        """All files by each end of their path, with and without their suffix, folded."""
        names_by_end: dict[tuple[str, ...], list[str]] = {}
        for name in self._visible:
            *folders, last = _folded_parts(name)
            for own in dict.fromkeys(_last_names(last)):
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

    def _similar(self, parts: tuple[str, ...]) -> list[str]:
        """The files whose path ends like this one, by as many parts as both have."""
        *folders, last = wanted = _folded_parts("/".join(part for part in parts if part != "/"))
        number = _WRITTEN_NUMBER.fullmatch(last)
        ways = [(self._by_end, wanted)]
        ways += [(self._by_number, (*folders, f"{number[1]}{number[2] or ''}"))] if number else []
        for files, written in ways:
            for first in range(len(written)):
                fitting = files.get(written[first:], [])
                whole = [name for name in fitting if name.count("/") == len(written[first:]) - 1]
                if not self._any_folder and len(written) - 1 == first > 0 and _differ(written[first - 1], self._above):
                    continue
                if whole or (fitting and (self._any_folder or not first)):
                    return whole if len(whole) == 1 else fitting
        return self._by_series.get(folders[-1], []) if folders else []

    @cached_property
    def _by_series(self) -> Mapping[str, list[str]]:
        """The files of each folder that is called by an identifier of DICOM: only such a folder is the same everywhere."""
        files: dict[str, list[str]] = {}
        for name in self._visible:
            folder = PurePosixPath(name).parent.name
            if _IDENTIFIER.fullmatch(folder):
                files.setdefault(folder, []).append(name)
        return files

    def elsewhere(self, text: str) -> list[str]:
        """Files of that name whose folders differ from those that are written."""
        return self._by_end.get((_last_names(text)[0],), [])


def _differ(folder: str, other: str) -> bool:
    """Whether the names of two folders say different things; ``images`` or a single letter say nothing."""
    one, two = _words(folder), _words(other)
    return not (one <= two or two <= one)


def _words(folder: str) -> set[str]:
    """The words of a folder's name that say something, and the letters and digits beside them."""
    parts = {*re.split(r"[\W_]+", folder)} - {""}
    words = {part for part in parts if not says_nothing(part)}
    return words | {part for part in parts if words and len(part) == 1}


def _last_names(name: str) -> tuple[str, str]:
    """The last part of a path, folded, with and without its suffix."""
    *_, last = _folded_parts(name.replace("\\", "/")) or ("",)
    return last, PurePosixPath(last).stem


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


def look_up(
    source: str,
    root: Path,
    rows: Sequence[tuple[int, str]],
    skip: bool,
    notes: Sequence[str] = (),
    any_folder: bool = False,
) -> Listed:
    """Find and look at every image that a table lists, before anything is written.

    Args:
        source: the table, for errors.
        root: folder or archive of the images.
        rows: line and name of each image.
        skip: leave out rows whose image cannot be used, instead of refusing them.
        notes: what was assumed in reading the table.
        any_folder: whether images are those of the table though their folders have other names.

    Raises:
        DataError: if an image is missing, is several files, cannot be read or has several frames, without ``skip``; or if
            none is left. Line, name and what to type are named.
    """
    place = place_at(root)
    if place is None:
        return _in_arrays(source, root, rows, notes)
    names = Names(place, any_folder)
    files: dict[int, str] = {}
    owners: dict[str, str] = {}
    bad: list[tuple[int, str, str]] = []
    used: dict[str, Seen] = {}
    masks: set[str] = set()
    texts = [text for _, text in rows]
    for line, text in rows:
        seen = {name: place.look(name) for name in (names.find(text) if text else ())}
        candidates, beside = _candidates(place, seen)
        masks |= beside
        _require_one_file(candidates, root, f"{source} line {line}, column image", text, texts)
        why = NAMELESS if not text else ELSEWHERE if not candidates and names.elsewhere(text) else NOT_THERE
        picture = seen[candidates[0]] if candidates else Seen("", reason=why)
        reason = picture.reason or (FRAMES if picture.frames > 1 else "")
        if candidates and not reason and not _alike(owners.setdefault(candidates[0], text), text):
            reason = SHARED
        if reason:
            bad.append((line, text, f"{reason} ({picture.frames} frames)" if reason == FRAMES else reason))
        else:
            files[line] = candidates[0]
            used[candidates[0]] = picture
    if bad and (not skip or not files):
        raise DataError(_refusal(source, root, bad, texts, names))
    require_text_names(root, files.values())
    left = {f"line {line}: {text}": reason.partition(" (")[0] for line, text, reason in bad}
    renamed = [(text, files[line]) for line, text in rows if line in files and files[line] != text]
    more = [*notes]
    if renamed:
        written, file = map(printable, renamed[0])
        more.append(f"{len(renamed)} names are written otherwise than the files', such as {written} -> {file}")
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


def _alike(name: str, other: str) -> bool:
    """Whether two names of one file have the same folders, as far as both have some."""
    if name == other:
        return True
    one, two = (_folded_parts(os.path.normpath(text.replace("\\", "/"))) for text in (name, other))
    return all(part == own for part, own in zip(one[-2::-1], two[-2::-1], strict=False))


def _require_one_file(candidates: Sequence[str], root: Path, where: str, text: str, texts: Sequence[str]) -> None:
    if len(candidates) < 2:
        return
    shown = candidates[:_NAMED]
    folders = dict.fromkeys(_above(root / name, text) for name in shown)
    apart = root.is_dir() and len(folders) == len(shown)
    roots = [folder for folder in folders if apart and _found_below(folder, texts) == len(texts)]
    option = f"name the folder by {' or '.join(map(_root_option, roots))}, or " if roots else ""
    files = " or ".join(map(printable, shown))
    raise DataError(f"{where}: {printable(text)} may be {files}; {option}write one of them in this line")


def _above(file: Path, text: str) -> Path:
    """The folder below which a file has the name that a table writes, by as many parts of the path as both have."""
    own, written = (_folded_parts(path.replace("\\", "/").lstrip("/")) for path in (str(file), text))
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(own[-2::-1], written[-2::-1], strict=False))
    return file.parents[len(list(alike))]


def _root_option(folder: Path) -> str:
    text = str(folder)
    return f"--root {shlex.quote(text)}" if "'" in text else f"--root '{text}'"


def _found_below(root: Path, texts: Iterable[str]) -> int:
    """How many of the names are one file each below a folder."""
    place = place_at(root)
    names = None if place is None else Names(place)
    return sum(names is not None and len(names.find(text)) == 1 for text in texts)


def _in_arrays(source: str, root: Path, rows: Sequence[tuple[int, str]], notes: Sequence[str]) -> Listed:
    """The images of a table that are pixels in a file of arrays."""
    with open_images(root) as reader:
        there = set(reader.names())
    bad = [(line, text, NOT_THERE) for line, text in rows if text not in there]
    if bad:
        raise DataError(_refusal(source, root, bad, [text for _, text in rows]))
    return Listed(dict(rows), Import("rows", {name: Seen("array") for _, name in rows}, notes=tuple(notes)))


def _refusal(
    source: str, root: Path, bad: Sequence[tuple[int, str, str]], texts: Sequence[str], names: Names | None = None
) -> str:
    line, text, reason = bad[0]
    reasons = Counter(reason.partition(" (")[0] for *_, reason in bad)
    listed = ", ".join(f"{number} {word}" for word, number in reasons.most_common())
    start = f"{source}: of {len(texts)} images {listed}; first line {line}: {printable(text) or 'empty'}, {reason}"
    remedy = "add --skip-unusable to leave these rows out" if len(bad) < len(texts) else "correct the table"
    if reason == ELSEWHERE and names is not None:
        pairs = [(text, f"{root.name}/{names.elsewhere(text)[0]}") for _, text, reason in bad if reason == ELSEWHERE]
        shown = ", ".join(f"{printable(written)} -> {printable(file)}" for written, file in pairs[:_NAMED])
        start += f"; files of these names are in folders called otherwise: {shown}"
        remedy = f"add --merge image (merge=['image']) if they are the same images, or {remedy}"
    if reason in (NOT_THERE, ELSEWHERE):
        elsewhere = _proposed_root(root, texts, {text for _, text, _ in bad})
        return f"{start}; not below {root}; {elsewhere or 'name the folder of the images by --root'}, or {remedy}"
    if reason.startswith(FRAMES):
        return f"{start}; export each frame as a file of its own, or {remedy}"
    return f"{start}; {remedy}"


def _proposed_root(root: Path, texts: Sequence[str], bad: Collection[str]) -> str:
    """The options that name a folder near the root below which all images are, or most; nothing if there is none."""
    usable = _roots_near(root, texts, bad)
    best = [folder for folder, count in usable.items() if count == max(usable.values()) and folder != root.absolute()]
    if not best:
        return ""
    count = usable[best[0]]
    more = "" if count == len(texts) else f" --skip-unusable for {count} of {len(texts)}"
    return f"add {' or '.join(_root_option(folder) + more for folder in best)}"


def _roots_near(root: Path, texts: Sequence[str], wanted: Collection[str]) -> dict[Path, int]:
    """Folders near the root with the number of images that are below them, if any.

    Args:
        root: folder beside which they are looked for.
        texts: the names of all images.
        wanted: those whose files are looked for.
    """
    near = _Nearby(root.absolute().parent)
    names = Names(near)
    found = Counter(folder for text in wanted for folder in _most_alike(near.root, names.find(text), text))
    likely = [folder for folder, _ in found.most_common(_NAMED)]
    above = [Path(os.path.commonpath(likely))] if len(likely) > 1 else []
    counts = {folder: _found_below(folder, texts) for folder in (*likely, *above)}
    return {folder: count for folder, count in counts.items() if count}


def _most_alike(root: Path, files: Iterable[str], text: str) -> list[Path]:
    """What is above those files whose folders are called as in the name that a table writes, of most folders."""
    above = {root / file: _above(root / file, text) for file in files}
    alike = {file: len(file.parts) - len(folder.parts) for file, folder in above.items()}
    return [above[file] for file in above if alike[file] == max(alike.values())]


class _Nearby(Folder):
    """A folder of which a part alone is looked at, without what is hidden."""

    def entries(self) -> Iterator[tuple[str, str]]:
        """See :meth:`ImageFiles.entries`."""
        for path in islice(_nearby(self.root), _SEARCHED):
            yield path.relative_to(self.root).as_posix(), ""


def _nearby(folder: Path) -> Iterator[Path]:
    for above, folders, files in os.walk(folder):
        folders[:] = sorted(subfolder for subfolder in folders if not subfolder.startswith("."))
        yield from (Path(above) / name for name in files)
