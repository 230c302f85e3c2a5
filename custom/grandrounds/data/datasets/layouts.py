"""What the folders between a source and its images mean: split, site, class or patient; by evidence, or by a question."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, product
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from grandrounds.data.keys import canonical
from grandrounds.data.words import name_parts, says_nothing, split_of, word_key
from grandrounds.data.words import words as usual_words
from grandrounds.errors import ConfigurationError, DataError, SeveralReadings
from grandrounds.ordering import natural_sorted

UNLABELLED = re.compile(r"unlabell?ed(?:[ _-]?(?:images?|data|set))?", re.IGNORECASE)
"""Folders of images whose class is not known."""
MANY = 8
"""So many folders that hold the same few ones may be patients, not sites."""
_SHOWN, _WAYS, _GRADES = 3, 3, 12
_SITE = re.compile(r"(site|hospital|clinic|klinik|cent(er|re)|institut|scanner|device|client|cohort)", re.IGNORECASE)
_IDENTIFIER = re.compile(
    r"(?:p|pt|pat|patient|paziente|case|fall|subj|subject|sub|id|st|study|se|series|slide|lesion)?[ ._-]*\d\S*"
    r"|.*\d{3}.*|(?=.*\d)[0-9a-f]{8,}",
    re.IGNORECASE,
)
_GRADE = re.compile(r"\d{1,2}")


@dataclass(frozen=True)
class Folders:
    """What the folders of images are.

    Attributes:
        layout: a word for each level, as of the option ``layout``.
        owners: of each image the folder of each word.
        splits: of each image; empty without one.
        notes: what was assumed, a phrase each.
    """

    layout: str
    owners: list[dict[str, str]]
    splits: list[str]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Level:
    """The folders at one depth.

    Attributes:
        names: in natural order.
        repeated: whether most of the names are below several folders.
    """

    names: tuple[str, ...]
    repeated: bool

    @property
    def several(self) -> bool:
        """Whether there is more than one name."""
        return len(self.names) > 1

    @property
    def numbered(self) -> bool:
        """Whether they are called as patients and series are; up to a dozen grades are not."""
        if len(self.names) <= _GRADES and all(_GRADE.fullmatch(name) for name in self.names):
            return False
        found = sum(bool(_IDENTIFIER.fullmatch(name)) and not _SITE.match(name) for name in self.names)
        return found >= 0.8 * len(self.names)

    @property
    def sites(self) -> bool:
        """Whether they are called as sites are."""
        return all(_SITE.match(name) for name in self.names)

    @property
    def says_nothing(self) -> bool:
        """Whether the only name is a word such as images."""
        return not self.several and all(map(says_nothing, name_parts(self.names[0])))


def read_layout(root: Path, names: Sequence[str], wanted: str, label_map: Sequence[str] = ()) -> Folders:
    """What the folders of these images are.

    Folders ``train``, ``val`` or ``test``, however they are called in full, may be anywhere; folders that all images are
    below mean nothing. A layout that is ``wanted`` says the rest; with ``auto`` it must be clear, once folders have the
    names of ``label_map``, ``OLD=NEW``.

    Raises:
        SeveralReadings: if the folders can be read in several ways; the ways are named.
        DataError: if an image is at another depth than the others.
    """
    paths = [PurePosixPath(name).parts[:-1] for name in names]
    words = wanted.split("/")
    literal = wanted != "auto" and {len(path) for path in paths} == {len(words)}
    places = [(path, "") for path in paths] if literal else _without_splits(root, paths)
    above, inside = _unwrapped([path for path, _ in places], len(words))
    known = [path for path in inside if not _is_unlabelled(path)] or inside
    layout = _require_depth(root, names, inside, wanted)
    notes = [f"all images are below {above!r}, which is taken for no site (--layout site/class if it is one)"] * bool(
        above
    )
    if wanted == "auto":
        layout, note = _evident(root, levels_of(_renamed(known, label_map)))
        notes += [note] * bool(note)
    keys = layout.split("/")
    owners = [dict(zip(keys, path, strict=False)) for path in inside]
    for own, path in zip(owners, inside, strict=True):
        own["class"] = "" if _is_unlabelled(path) else own["class"]
    splits = [split_of(own.get("split", ""))[0] or split for own, (_, split) in zip(owners, places, strict=True)]
    return Folders(layout, owners, splits, tuple(notes))


def _renamed(paths: Sequence[Sequence[str]], label_map: Sequence[str]) -> list[list[str]]:
    """The folders with the names of a label map."""
    new = {canonical(old): name for old, _, name in (entry.partition("=") for entry in label_map) if name}
    return [[new.get(canonical(name), name) for name in path] for path in paths]


def levels_of(paths: Sequence[Sequence[str]]) -> list[Level]:
    """The levels of folders that are all equally deep."""
    levels = []
    for depth in range(len(paths[0])):
        above: dict[str, set[Sequence[str]]] = defaultdict(set)
        for path in paths:
            above[canonical(path[depth])].add(tuple(path[:depth]))
        repeated = sum(len(parents) > 1 for parents in above.values())
        levels.append(Level(tuple(natural_sorted(above)), 2 * repeated >= len(above)))
    return levels


def readings(levels: Sequence[Level]) -> list[str]:
    """The layouts that fit, the likeliest first."""
    free = [place for place, level in enumerate(levels) if level.several and not level.sites]
    people = [place for place in free if levels[place].numbered or len(levels[place].names) >= MANY]
    classes = [place for place in free if not levels[place].numbered] or free
    ways = (islice(_ways(levels, place, people), _WAYS) for place in classes)
    return list(dict.fromkeys(chain.from_iterable(ways)))


def _ways(levels: Sequence[Level], place: int, people: Sequence[int]) -> Iterator[str]:
    """The layouts whose classes are at one depth; ``people`` are the depths that may be patients."""
    patient = next((depth for depth in people if depth != place), None)
    repeated = levels[place].repeated

    def words(depth: int) -> list[str]:
        """What the folders at a depth may be, the likeliest first."""
        if depth == place:
            return ["class"]
        if not levels[depth].several:
            return ["*"]
        if levels[depth].sites:
            return ["site"]
        if depth == patient:
            return ["patient", "site", "*"] if depth < place and repeated else ["patient", "*"]
        if depth > place or depth in people:
            return ["*"]
        return ["site", "*"] if repeated else ["*", "site"]

    for way in product(*map(words, range(len(levels)))):
        if way.count("site") < 2:
            yield "/".join(way)


def _evident(root: Path, levels: Sequence[Level]) -> tuple[str, str]:
    """The only layout that fits, and what is to be said of it; two levels may be sites, and below them their classes."""
    telling = [place for place, level in enumerate(levels) if not level.says_nothing] or [len(levels) - 1]
    first, last = levels[telling[0]], levels[telling[-1]]
    if len(telling) == 1 and not (first.numbered and len(first.names) > _GRADES):
        return _layout({telling[0]: "class"}, len(levels)), ""
    sites, classes = (telling[-1], telling[0]) if last.sites else (telling[0], telling[-1])
    few = not levels[sites].numbered and len(levels[sites].names) < MANY and not levels[classes].numbered
    few &= word_key("".join(sorted(map(str.casefold, levels[sites].names)))) not in usual_words("pieces")  # two sides
    few &= not all(parts and {*parts} <= usual_words("pieces") for parts in map(name_parts, levels[sites].names))
    if len(telling) != 2 or not few or not last.repeated or not last.several:
        raise SeveralReadings(_question(root, levels, readings(levels)))
    layout = _layout({sites: "site", classes: "class"}, len(levels))
    words = "sites, the second for classes" if sites < classes else "classes, the second for sites"
    other = layout.replace("site", "*") if sites > classes else "class/*"
    return layout, f"the first folders are taken for {words} (--layout {other!r} if the first are the classes alone)"


def _layout(words: Mapping[int, str], depth: int) -> str:
    return "/".join(words.get(place, "*") for place in range(depth))


def _question(root: Path, levels: Sequence[Level], ways: Sequence[str]) -> str:
    lines = [f"{root}: it is not clear what its folders are:"]
    for depth, level in enumerate(levels):
        shown = " ".join(f"{name}/" for name in level.names[:_SHOWN])
        more = f" ... ({len(level.names)} names{', the same below several folders' if level.repeated else ''})"
        lines.append(f"{'  ' * (depth + 1)}{shown}{more if len(level.names) > _SHOWN or level.repeated else ''}")
    lines.append("add one of these options, or list the images in a table with the columns image, label and patient:")
    for way in ways:
        counted = [
            f"{len(level.names)} {_PLURAL[word]}"
            for word, level in zip(way.split("/"), levels, strict=True)
            if word != "*"
        ]
        lines.append(f"  --layout {way if '*' not in way else repr(way)}  ({', '.join(counted)})")
    return "\n".join(lines)


_PLURAL: Mapping[str, str] = MappingProxyType(
    {"class": "classes", "site": "sites", "patient": "patients", "split": "splits"}
)


def _require_depth(root: Path, names: Sequence[str], folders: Sequence[Sequence[str]], wanted: str) -> str:
    """The wanted layout, if all images with a label are as deep as it is, or with ``auto`` equally deep."""
    depths = Counter(len(path) for path in folders if wanted != "auto" or not _is_unlabelled(path))
    usual = depths.most_common(1)[0][0] if depths else 1
    depth = usual if wanted == "auto" else len(wanted.split("/"))
    for name, path in zip(names, folders, strict=True):
        if not _is_unlabelled(path) and (len(path) != depth or not depth):
            expected = "CLASS/image, SITE/CLASS/image or CLASS/PATIENT/image" if wanted == "auto" else f"{wanted}/image"
            remedy = "list the images in a table with the columns image, label and patient"
            if len(depths) == 1 and usual:
                ways = [repr(way) for way in readings(levels_of(folders))]
                remedy = (
                    f"say what the folders are by --layout {' or '.join(ways)}; others are site, patient, split or *"
                )
            raise DataError(f"{root}: {name} is not where an image is expected: {expected}; {remedy}")
    return wanted


def _is_unlabelled(path: Sequence[str]) -> bool:
    return any(UNLABELLED.fullmatch(folder) for folder in path)


def _without_splits(root: Path, paths: Sequence[tuple[str, ...]]) -> list[tuple[tuple[str, ...], str]]:
    """The folders of each image without those that are called after a split, and the split, the innermost one.

    What says more than a split is one where each folder of its depth says so, and they differ.
    """
    named = _split_folders(paths)
    places = []
    for path in paths:
        found = [named[folder] for folder in path if folder in named]
        places.append((tuple(folder for folder in path if folder not in named), found[-1] if found else ""))
    without = [path for path, split in places if not split and not _is_unlabelled(path)]
    if named and without:
        raise ConfigurationError(
            f"{root}: {len(without)} images, as those in {'/'.join(without[0]) or '.'}, are in no folder of a split, and "
            f"others are in {', '.join(sorted(named))}; move them, or say what the folders are: --layout '*/class'"
        )
    return places


def _split_folders(paths: Sequence[tuple[str, ...]]) -> dict[str, str]:
    """The folders that are called after a split, with it."""
    splits = {folder: split_of(folder) for path in paths for folder in path}
    named = {folder: split for folder, (split, alone) in splits.items() if split and alone}
    for depth in range(min(map(len, paths))):
        there = {path[depth]: splits[path[depth]][0] for path in paths}
        if len({*there.values()}) > 1 and all(there.values()):
            named |= there
    return named


def splits_of_folders(names: Sequence[str]) -> tuple[str, ...]:
    """The split of each image by its folders; none if an image has none, or all have the same."""
    paths = [PurePosixPath(name).parts[:-1] for name in names]
    named = _split_folders(paths) if paths else {}
    splits = tuple(next((named[folder] for folder in path[::-1] if folder in named), "") for path in paths)
    return splits if all(splits) and len({*splits}) > 1 else ()


def _unwrapped(paths: Sequence[tuple[str, ...]], levels: int) -> tuple[str, list[tuple[str, ...]]]:
    """The folder that all images are below, and the folders of each image without it."""
    above = PurePosixPath(os.path.commonpath(["/".join(path) for path in paths])).parts
    above = above[: max(min(map(len, paths)) - levels, 0)]
    return "/".join(above), [path[len(above) :] for path in paths]
