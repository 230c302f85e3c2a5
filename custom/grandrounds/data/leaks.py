"""Pictures and patients that sites on one machine have in common, and pictures whose labels contradict each other.

Where the sites of a simulation share a picture or a patient, a model is tested on what it has seen, and scores of all sites
together are too high. Between real hospitals nothing of this is compared: a server that got digests of pictures or patients
could test guesses against them.

Pictures that were saved again with loss, or resized, look the same although their pixels differ. Every picture is reduced to
16 by 16 means of grey. Saved again as JPEG at quality 30, pictures of skin and blood cells differ from themselves by less
than one grey level on average, and noise of 16 by 16 pixels at quality 75 by 8; of 10,015 pictures of HAM10000 29 pairs are
as near to each other as is asked here, 28 of them of one lesion. Turned or mirrored copies are not found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.fitness import TWO_LABELS, Findings
from grandrounds.data.site import SiteData

NAMED_PAIRS = 3
SIDE, MEANS_A_SIDE = 16, 4
ALIKE_UP_TO, ALIKE_FROM = 9.0, 0.975
"""Largest mean difference in grey levels and smallest correlation of two pictures that look the same."""
MEANS_NEAR = 6.0
"""Largest difference of their 4 by 4 means: what is farther apart is not compared in detail."""
FLAT = 4.0
"""Standard deviation in grey levels below which a picture shows too little to be compared."""
MAX_CANDIDATES = 500_000
NUMBERS_AT_A_TIME = 1 << 22
"""Of comparisons, which are held in memory."""


def thumbnails(images: NDArray[np.uint8], rows: Sequence[int]) -> NDArray[np.uint8]:
    """Means of grey of some rows of images of shape ``(n, height, width, channels)``, shape ``(rows, 256)``."""
    from PIL import Image

    thumbs = np.empty((len(rows), SIDE * SIDE), np.uint8)
    for row, image in enumerate(images[number] for number in rows):
        picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).convert("L")
        thumbs[row] = np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BOX)).ravel()
    return thumbs


def near_pairs(thumbs: NDArray[np.uint8]) -> NDArray[np.int64] | None:
    """The pairs of rows that look the same, shape ``(pairs, 2)``; None where too many candidates would have to be compared.

    Example:
        >>> one = np.arange(256, dtype=np.uint8)
        >>> near_pairs(np.stack([one, one[::-1], one // 2 * 2])).tolist()
        [[0, 2]]
    """
    rows = np.flatnonzero(thumbs.std(axis=1) >= FLAT)
    shown = thumbs[rows].astype(np.float32)
    step = SIDE // MEANS_A_SIDE
    coarse = shown.reshape(-1, MEANS_A_SIDE, step, MEANS_A_SIDE, step).mean(axis=(2, 4)).reshape(-1, MEANS_A_SIDE**2)
    pairs = _within(coarse, MEANS_NEAR)
    if pairs is None:
        return None
    alike = [_alike(shown[some[:, 0]], shown[some[:, 1]]) for some in _chunks(pairs, SIDE * SIDE)]
    near = np.sort(rows[pairs[np.concatenate([*alike, np.zeros(0, np.bool_)])]], axis=1)
    return near[np.lexsort((near[:, 1], near[:, 0]))].astype(np.int64)


def _within(points: NDArray[np.float32], radius: float) -> NDArray[np.int64] | None:
    """The pairs of rows whose coordinates all differ by at most the radius; None if there are too many.

    Rows are sorted into cells by the two most telling coordinates, and compared with those of the cells around. A tree
    of SciPy takes quadratic time with 16 coordinates.
    """
    if not len(points):
        return np.zeros((0, 2), np.int64)
    telling = _telling(points)
    cells = np.floor(points[:, telling[:2]] / radius).astype(np.int64)
    width = int(np.ptp(cells[:, 1])) + 3
    codes = (cells[:, 0] - cells[:, 0].min()) * width + cells[:, 1] - cells[:, 1].min() + 1
    order = np.argsort(codes, kind="stable")
    codes, columns = codes[order], np.ascontiguousarray(points[order].T)
    pairs, number = [np.zeros((0, 2), np.int64)], 0
    for code in np.unique(codes):
        begin, end, next_end = np.searchsorted(codes, (code, code + 1, code + 2))
        below = np.searchsorted(codes, (code + width - 1, code + width + 2))
        for first, last in ((begin, next_end), below):
            for some in _chunks(np.arange(begin, end), last - first):
                left, right = np.nonzero(_close(columns[telling[2]], some[:, None], slice(first, last), radius))
                left, right = some[left], right + first
                for column in columns[telling]:
                    kept = _close(column, left, right, radius) & (left < right)
                    left, right = left[kept], right[kept]
                pairs.append(order[np.stack([left, right], axis=1)])
                number += len(left)
                if number > MAX_CANDIDATES:
                    return None
    return np.concatenate(pairs)


def _telling(points: NDArray[np.float32]) -> NDArray[np.int64]:
    """The coordinates, those first that vary most where the ones before are known."""
    rest, order = points - points.mean(axis=0), list[int]()
    for _ in range(points.shape[1]):
        spread = (rest**2).mean(axis=0)
        spread[order] = -1
        order.append(int(spread.argmax()))
        chosen = rest[:, order[-1]]
        rest = rest - np.outer(chosen, chosen @ rest / max(float(chosen @ chosen), 1e-6))
    return np.array(order)


def _close(column: NDArray[np.float32], left: Any, right: Any, radius: float) -> NDArray[np.bool_]:
    return np.asarray(np.abs(column[left] - column[right]) <= radius)


def _chunks(rows: NDArray[np.int64], numbers: int) -> Iterator[NDArray[np.int64]]:
    """Parts of ``rows`` whose comparisons, with ``numbers`` each, fit into memory."""
    size = max(NUMBERS_AT_A_TIME // max(int(numbers), 1), 1)
    return (rows[begin : begin + size] for begin in range(0, len(rows), size))


def _alike(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Whether pairs of pictures look the same, row by row."""
    near = np.abs(left - right).mean(axis=1) <= ALIKE_UP_TO
    first, second = (rows - rows.mean(axis=1, dtype=np.float64, keepdims=True) for rows in (left, right))
    products = (first * second).sum(axis=1) / np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
    return np.asarray(near & (products >= ALIKE_FROM))


class Sharing(NamedTuple):
    """What the sites of a partition share on purpose: ``patients``, or the images of one set of ``tests``."""

    patients: bool = False
    tests: bool = False


NOTHING_SHARED = Sharing()


class PlacedImage(NamedTuple):
    """One picture of a site: its row there, name, split, patient (empty if unknown) and lesion or patient."""

    site: str
    row: int
    name: str
    split: str
    patient: str
    group: str

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"{self.site}: {self.name} ({self.split})"


@dataclass(frozen=True)
class Looked:
    """The pictures of a site that can be compared, and what is compared of them, in the same order.

    Attributes:
        pictures: without unreadable ones and those of one colour.
        digests: of the decoded pixels.
        thumbs: means of grey, see :func:`~grandrounds.data.leaks.thumbnails`.
        labels: texts, empty where nothing is known.
        known: labels as the task has them.
        flat: the rows of images of one colour, which identify nothing.
    """

    pictures: tuple[PlacedImage, ...]
    digests: tuple[str, ...]
    thumbs: NDArray[np.uint8]
    labels: tuple[str, ...]
    known: NDArray[np.int64]
    flat: tuple[int, ...]

    def entries(self) -> list[tuple[PlacedImage, str, NDArray[np.uint8]]]:
        """Each picture with its digest and thumbnail."""
        return list(zip(self.pictures, self.digests, self.thumbs, strict=True))


def look(data: SiteData, site: str) -> Looked:
    """What is compared of a site's pictures."""
    digests = data.digests
    unreadable = set(data.cache.unreadable)
    rows = [row for row, digest in enumerate(digests) if digest and row not in unreadable]
    flat = tuple(row for row, digest in enumerate(digests) if not digest and row not in unreadable)
    patients = data.patients or [""] * len(data.names)
    pictures = tuple(
        PlacedImage(site, row, data.names[row], str(data.split[row]), patients[row], data.groups[row]) for row in rows
    )
    labels = tuple(data.task.label_cell(data.labels[row], data.classes) for row in rows)
    return Looked(
        pictures, tuple(digests[row] for row in rows), thumbnails(data.images, rows), labels, data.labels[rows], flat
    )


def contradictions(sites: Iterable[Looked]) -> Findings:
    """Equal pictures at two sites whose labels exclude each other."""
    by_digest: dict[str, list[tuple[PlacedImage, str, NDArray[np.int64]]]] = defaultdict(list)
    for site in sites:
        for picture, digest, label, known in zip(site.pictures, site.digests, site.labels, site.known, strict=True):
            by_digest[digest].append((picture, label, known))
    several = [same for same in by_digest.values() if len({picture.site for picture, _, _ in same}) > 1]
    pairs = [pair for same in several for pair in _contradicting(same)]
    if pairs:
        shown = "; ".join(
            f"{first.place} is {label} and {second.place} is {other}"
            for (first, label), (second, other) in pairs[:NAMED_PAIRS]
        )
        message = f"one picture has two labels: {shown}{_more(len(pairs))}; correct one, or take both out"
        yield "failure", TWO_LABELS, message


def shared_between(sites: Mapping[str, Looked], sharing: Sharing = NOTHING_SHARED) -> Findings:
    """Pictures and patients that several sites have; ``sharing`` is what they have on purpose."""
    common = _common_tests(sites.values()) if sharing.tests else set()
    by_digest, by_patient = defaultdict(list), defaultdict(list)
    for looked in sites.values():
        for picture, digest in zip(looked.pictures, looked.digests, strict=True):
            place = picture._replace(site="every site") if (picture.name, digest) in common else picture
            by_digest[digest].append(place)
            if place.patient:
                by_patient[place.patient].append(place)
    check = "shared pictures"
    pictures = list(_at_several(by_digest.values()))
    remedy = "give each picture to one site, or add --allow-overlap (allow_overlap=True)"
    if pictures:
        yield "failure", check, f"{len(pictures)} pictures are at two sites: {_pairs(pictures)}; {remedy}"
    else:
        yield "ok", check, "no picture is at two sites"
    yield from _shared_patients(list(_at_several(by_patient.values())), sharing.patients)
    yield from near_copies([picture for site in sites.values() for picture in _without(site, common)])


def near_copies(pictures: Sequence[tuple[PlacedImage, str, NDArray[np.uint8]]], within: bool = False) -> Findings:
    """Pictures at two sites, or ``within`` one site in two splits, that look the same and are not equal.

    Args:
        pictures: each with its digest and thumbnail.
        within: whether splits are compared, of pictures of different patients.
    """
    if not pictures:
        return
    check = "near copies"
    where = "in two splits" if within else "at two sites"
    pairs = near_pairs(np.stack([thumb for _, _, thumb in pictures]))
    if pairs is None:
        yield "warning", check, f"too many pictures look alike to say which of them are copies {where}"
        return
    alike = []
    for row, its_row in pairs:
        (first, digest, _), (second, its, _) = pictures[row], pictures[its_row]
        apart = first.split != second.split and first.group != second.group if within else first.site != second.site
        if apart and digest != its:
            alike.append((first, second))
    if alike:
        yield (
            "warning",
            check,
            f"{len(alike)} pictures {where} look the same: {_pairs(alike)}; look whether they are copies",
        )
    else:
        yield "ok", check, f"no two pictures {where} look the same"


def _shared_patients(pairs: Sequence[tuple[PlacedImage, PlacedImage]], on_purpose: bool) -> Findings:
    check = "shared patients"
    if not pairs:
        yield "ok", check, "no patient is at two sites"
        return
    shown = "; ".join(f"{first.patient!r} of {first.place} and {second.place}" for first, second in pairs[:NAMED_PAIRS])
    message = f"{len(pairs)} patients are at two sites: {shown}{_more(len(pairs))}"
    if on_purpose:
        yield "warning", check, f"{message}; the partition was made so"
    else:
        yield (
            "failure",
            check,
            f"{message}; give all images of one to one site, or add --allow-overlap (allow_overlap=True)",
        )


def _common_tests(sites: Collection[Looked]) -> set[tuple[str, str]]:
    """Name and digest of the test images that every site has."""
    tests = [
        {(picture.name, digest) for picture, digest, _ in site.entries() if picture.split == "test"} for site in sites
    ]
    return set.intersection(*tests)


def _without(site: Looked, common: Collection[tuple[str, str]]) -> list[tuple[PlacedImage, str, NDArray[np.uint8]]]:
    return [entry for entry in site.entries() if (entry[0].name, entry[1]) not in common]


def _at_several(groups: Iterable[Sequence[PlacedImage]]) -> Iterator[tuple[PlacedImage, PlacedImage]]:
    """Of each group that is at several sites two pictures; in two splits if there are such."""
    for group in groups:
        places = list({(picture.site, picture.split): picture for picture in reversed(group)}.values())[::-1]
        if len({picture.site for picture in places}) > 1:
            together = len({picture.split for picture in places}) == 1
            # One of the first places is in such a pair: that of two sites and, if there are several splits, two of these.
            yield next(
                (first, second)
                for first, second in combinations(places, 2)
                if first.site != second.site and (together or first.split != second.split)
            )


def _contradicting(
    same: Sequence[tuple[PlacedImage, str, NDArray[np.int64]]],
) -> Iterator[tuple[tuple[PlacedImage, str], tuple[PlacedImage, str]]]:
    """The first pair of equal pictures whose known labels differ."""
    kinds = {(entry[0].site, entry[2].tobytes()): entry for entry in reversed(same)}
    known = {label: entry[2] for (_, label), entry in kinds.items()}
    excluding = {
        (first, second)
        for first, second in permutations(known, 2)
        if np.any((known[first] != known[second]) & (known[first] >= 0) & (known[second] >= 0))
    }
    if not excluding:
        return
    for entry, other in combinations(list(kinds)[::-1], 2):
        if (entry[1], other[1]) in excluding and entry[0] != other[0]:
            yield kinds[entry][:2], kinds[other][:2]
            return


def _pairs(pairs: Sequence[tuple[PlacedImage, PlacedImage]]) -> str:
    return "; ".join(f"{first.place} and {second.place}" for first, second in pairs[:NAMED_PAIRS]) + _more(len(pairs))


def _more(count: int) -> str:
    return f" and {count - NAMED_PAIRS} more" if count > NAMED_PAIRS else ""
