"""Pictures and patients that sites on one machine have in common, and pictures whose labels contradict each other.

Where the sites of a simulation share a picture or a patient, a model is tested on what it has seen, and scores of all sites
together are too high. Between real hospitals nothing of this is compared: a server that got digests of pictures or patients
could test guesses against them.

Copies whose pixels differ, because they were turned, cropped, made brighter or saved again, are found by
:mod:`~grandrounds.data.leaks`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, permutations
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.fitness import TWO_LABELS, Findings
from grandrounds.data.shortcuts import kinds_of
from grandrounds.data.site import SiteData
from grandrounds.files import replacing

SIDE, COARSE = 32, 16
FLAT = 4.0
"""Standard deviation in grey levels below which a picture shows too little to be compared."""
TURNS, COARSELY_FROM, ALIKE_FROM = 2, 0.75, 0.9
"""Ways to turn that are tried, and smallest correlations of middle frequencies at 16 and 32 means a side."""
COLOURS_UP_TO, DARKEST, BRIGHTEST = 3.0, 0.72, 1.4
"""Largest mean difference in levels after one brightness is fitted, and what this may be."""
LARGEST_CROP, SLACK = 0.075, 0.016
"""Of an edge; one picture lies within the other, but for the slack, as two photographs of one thing seldom do."""
DIMENSIONS, RADIUS = 32, 3.0
"""Discriminants that are compared, and the squared distance of candidates in each, where a crop's is one."""
MAX_CANDIDATES = 500_000
FEW = 150
COSINES = 8
CROPS = ((0.04, 0.04, 0.04, 0.04), (0.05, 0, 0, 0.05), (0, 0.05, 0.05, 0.05), (0.05, 0, 0.03, 0))
GAINS = (0.8, 1.2, 0.9, 1.1)
LEARNED_FROM = 600
AT_A_TIME = 1024
Floats = NDArray[np.float32]
Number = TypeVar("Number", bound=np.generic)


def thumbnails(images: NDArray[np.uint8], rows: Sequence[int]) -> NDArray[np.uint8]:
    """Means of colours of some rows of images of shape ``(n, height, width, channels)``, shape ``(rows, 32, 32, 3)``."""
    from PIL import Image

    thumbs = np.empty((len(rows), SIDE, SIDE, 3), np.uint8)
    for row, image in enumerate(images[number] for number in rows):
        picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
        small = np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BOX))
        thumbs[row] = small[..., None] if small.ndim == 2 else small
    return thumbs


def near_pairs(thumbs: NDArray[np.uint8]) -> NDArray[np.int64] | None:
    """The pairs of rows that are copies, shape ``(pairs, 2)``; None where too many candidates would have to be compared."""
    rows = np.flatnonzero(_grey(thumbs).std(axis=(1, 2)) >= FLAT)
    shown = thumbs[rows]
    pairs = _candidates(shown)
    if pairs is None:
        return None
    near = np.sort(rows[pairs[_are_copies(shown, pairs)]], axis=1)
    return near[np.lexsort((near[:, 1], near[:, 0]))].astype(np.int64)


def _grey(thumbs: NDArray[np.number]) -> Floats:
    red, green, blue = (thumbs[..., channel].astype(np.float32) for channel in range(3))
    return np.asarray(0.299 * red + 0.587 * green + 0.114 * blue)


def _standardised(grey: Floats) -> Floats:
    centred = grey - grey.mean((1, 2), keepdims=True)
    return np.asarray(centred / (centred.std((1, 2), keepdims=True) + 1e-3), np.float32)


def _numbers(thumbs: NDArray[np.number]) -> Floats:
    """What turning and mirroring leave as it is, shape ``(n, numbers)``."""
    grey = _standardised(_grey(thumbs))
    cosines = (_cosines() @ grey @ _cosines().T) / SIDE
    upper = np.triu_indices(COSINES, 1)
    odd = (upper[0] % 2 + upper[1] % 2) > 0
    mirrored = np.stack([cosines[:, upper[0], upper[1]], cosines[:, upper[1], upper[0]]])
    mirrored = np.sort(np.where(odd, np.abs(mirrored), mirrored), axis=0)
    own = np.diagonal(cosines, axis1=1, axis2=2)[:, 1:]
    own = np.where(np.arange(1, COSINES) % 2, np.abs(own), own)
    waves = np.log1p(np.abs(np.fft.rfft2(grey * _window()))).reshape(len(grey), -1).astype(np.float32)
    orbits = np.sort((waves @ _sectors()).reshape(len(grey), -1, 4), axis=2).reshape(len(grey), -1) / 10
    cells = np.sort(thumbs[:, 1::4, 1::4].reshape(len(grey), -1, 3), axis=1)
    levels = np.log(np.maximum(cells[:, (6, 32)], 1)).swapaxes(0, 1)
    ratios = np.concatenate([level[:, (0, 2)] - level[:, 1:2] for level in levels], axis=1)
    return np.concatenate([*mirrored, own, orbits, ratios], axis=1).astype(np.float32)


@cache
def _cosines() -> Floats:
    waves = np.cos(np.pi * (np.arange(SIDE) + 0.5) * np.arange(COSINES)[:, None] / SIDE) * np.sqrt(2 / SIDE)
    waves[0] /= np.sqrt(2)
    return np.asarray(waves, np.float32)


@cache
def _window() -> Floats:
    side = np.hanning(SIDE + 2)[1:-1]
    return np.sqrt(np.outer(side, side)).astype(np.float32)


@cache
def _sectors() -> Floats:
    """Means over rings and sectors of Fourier terms; the four sectors that turning and mirroring exchange lie together."""
    y, x = np.fft.fftfreq(SIDE)[:, None] * SIDE, np.arange(SIDE // 2 + 1)[None]
    rings = np.digitize(np.hypot(y, x), (1.5, 2.1, 2.9, 4, 5.6, 7.8, 11, 16))
    angles = ((np.degrees(np.arctan2(y, x)) + 90) // 15 % 12).astype(int)
    sectors = [
        ((rings == ring) & (angles == angle)).ravel()
        for ring in range(1, 8)
        for first in range(3)
        for angle in (first, first + 6, 11 - first, 5 - first)
    ]
    return np.stack([sector / max(sector.sum(), 1) for sector in sectors], axis=1).astype(np.float32)


def _cropped(thumbs: Floats, edges: Sequence[float]) -> Floats:
    rows, columns = (_stretch(*(SIDE * edge for edge in some)) for some in (edges[:2], edges[2:]))
    return np.asarray(np.einsum("ui,nijc,vj->nuvc", rows, thumbs, columns, optimize=True))


def _stretch(first: float, last: float) -> Floats:
    """The matrix that stretches a row without its ends to its whole length, linearly."""
    places = np.clip(first + (np.arange(SIDE) + 0.5) * (SIDE - first - last) / SIDE - 0.5, 0, SIDE - 1)
    return np.asarray(np.maximum(0, 1 - np.abs(places[:, None] - np.arange(SIDE))), np.float32)


def _discriminants(thumbs: NDArray[np.uint8]) -> Floats:
    """Coordinates in which a crop or another brightness moves a picture by about one."""
    numbers = _numbers(thumbs)
    some = slice(None, None, max(len(thumbs) // LEARNED_FROM, 1))
    few = thumbs[some].astype(np.float32)
    altered = [np.clip(_cropped(few, edges) * gain, 0, 255) for edges, gain in zip(CROPS, GAINS, strict=True)]
    moved = np.concatenate([_numbers(images) - numbers[some] for images in altered])
    within = moved.T @ moved / len(moved)
    within += np.eye(len(within)) * np.trace(within) / len(within) * 0.05
    between = np.cov(numbers.T) + np.eye(len(within)) * 1e-6
    outer = np.linalg.inv(np.linalg.cholesky(within))
    _, axes = np.linalg.eigh(outer @ between @ outer.T)
    return np.asarray((numbers - numbers.mean(0)) @ (outer.T @ axes[:, -DIMENSIONS:]), np.float32)


def _candidates(thumbs: NDArray[np.uint8]) -> NDArray[np.int64] | None:
    """Pairs that may be copies; of few pictures all."""
    if len(thumbs) <= FEW:
        return np.stack(np.triu_indices(len(thumbs), 1), axis=1).astype(np.int64)
    points = _discriminants(thumbs)
    squares = (points**2).sum(1, keepdims=True)
    first = np.concatenate([-2 * points, squares, np.ones_like(squares)], axis=1)
    second = np.concatenate([points, np.ones_like(squares), squares], axis=1)
    pairs, number = [np.zeros((0, 2), np.int64)], 0
    for start in range(0, len(points), AT_A_TIME):
        # The product is the squared distance.
        near = np.argwhere(first[start : start + AT_A_TIME] @ second[start:].T < RADIUS * DIMENSIONS)
        pairs.append(near[near[:, 0] < near[:, 1]] + start)
        number += len(pairs[-1])
        if number > MAX_CANDIDATES:
            return None
    return np.concatenate(pairs)


def _turned(images: NDArray[Number], way: int) -> NDArray[Number]:
    """One of the eight ways to turn and mirror squares, shape ``(n, side, side, ...)``."""
    return np.ascontiguousarray(np.rot90(images if way < 4 else images[:, :, ::-1], way % 4, (1, 2)))


def _blurred(images: Floats, times: int) -> Floats:
    for axis in (1, 2) * times:
        moved = np.moveaxis(images, axis, 0)
        images = np.moveaxis(
            (2 * moved + np.concatenate([moved[:1], moved[:-1]]) + np.concatenate([moved[1:], moved[-1:]])) / 4, 0, axis
        )
    return images


def _smaller(images: NDArray[np.number], side: int) -> Floats:
    step = images.shape[1] // side
    cells = images.reshape(len(images), side, step, side, step, *images.shape[3:])
    return np.asarray(cells.mean((2, 4), dtype=np.float32))


def _are_copies(thumbs: NDArray[np.uint8], pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether pairs of pictures are copies, row by row."""
    shown, pairs = np.unique(pairs, return_inverse=True)
    thumbs, pairs = thumbs[shown], pairs.reshape(-1, 2)
    fine = _standardised(_grey(thumbs))
    coarse, low = _smaller(fine, COARSE), _smaller(fine, 8)
    middle = (coarse - _blurred(coarse, 3), _blurred(fine, 1) - _blurred(fine, 5))
    alike = [np.einsum("nij,nij->n", low[pairs[:, 0]], _turned(low, way)[pairs[:, 1]]) for way in range(8)]
    copies = np.zeros(len(pairs), np.bool_)
    for ways in np.argsort(alike, axis=0)[-TURNS:]:
        for way in range(8):
            rows = np.flatnonzero((ways == way) & ~copies)
            for start in range(0, len(rows), AT_A_TIME):
                some = rows[start : start + AT_A_TIME]
                motion = np.zeros((len(some), 4), np.float32)
                for images, least in zip(middle, (COARSELY_FROM, ALIKE_FROM), strict=True):
                    if not len(some):
                        break
                    left, right = pairs[some].T
                    motion, seen = _laid(images[left], _turned(images[right], way), motion * (2, 1, 2, 1))
                    some, motion = some[seen >= least], motion[seen >= least]
                left, right = pairs[some].T
                same = _same_colours(thumbs[left], _turned(thumbs[right], way), motion)
                copies[some] = same & _is_crop(motion)
    return copies


def _laid(still: Floats, moving: Floats, motion: Floats) -> tuple[Floats, Floats]:
    """Fit shift and scale of ``moving``, shape ``(n, 4)`` of columns and rows, and how it then correlates with ``still``."""
    side = still.shape[1]
    places = np.arange(side, dtype=np.float32) - (side - 1) / 2
    inner = (slice(None), slice(2, -2), slice(2, -2))
    laid = _moved(moving, motion) if motion.any() else moving
    down, across = np.gradient(laid, axis=(1, 2))
    terms = [laid, np.ones_like(laid), across, across * places, down, down * places[:, None]]
    model = np.stack([term[inner].reshape(len(still), -1) for term in terms], axis=1)
    normal = model @ model.transpose(0, 2, 1) + np.eye(6, dtype=np.float32) * 1e-2
    fitted = np.linalg.solve(normal, model @ still[inner].reshape(len(still), -1, 1))[..., 0]
    gain = np.maximum(fitted[:, :1], 0.2)
    motion = motion + np.clip(fitted[:, 2:] / gain, -2, 2)
    motion[:, 1::2] = np.clip(motion[:, 1::2], -0.15, 0.15)
    laid = _moved(moving, motion)
    return motion, _correlation(still[inner].reshape(len(still), -1), laid[inner].reshape(len(still), -1))


def _correlation(left: Floats, right: Floats) -> Floats:
    left, right = (rows - rows.mean(1, keepdims=True) for rows in (left, right))
    return np.asarray((left * right).sum(1) / np.sqrt((left**2).sum(1) * (right**2).sum(1) + 1e-6))


def _moved(images: Floats, motion: Floats) -> Floats:
    """Squares, shape ``(n, side, side, ...)``, shifted and scaled about their centre, linearly."""
    side = images.shape[1]
    middle = (side - 1) / 2
    for axis, (shift, scale) in ((2, (0, 1)), (1, (2, 3))):
        places = middle + (1 + motion[:, scale, None]) * (np.arange(side) - middle) + motion[:, shift, None]
        places = np.clip(places, 0, side - 1)
        first = np.minimum(places.astype(np.int64), side - 2)
        shape = [len(images), *(side if dimension == axis else 1 for dimension in range(1, images.ndim))]
        weight, before = (places - first).astype(np.float32).reshape(shape), first.reshape(shape)
        start = np.take_along_axis(images, before, axis)
        images = start + (np.take_along_axis(images, before + 1, axis) - start) * weight
    return images


def _is_crop(motion: Floats) -> NDArray[np.bool_]:
    """Whether one picture lies within the other."""
    shift, half = motion[:, ::2] / SIDE, motion[:, 1::2] / 2
    edges = np.concatenate([shift - half, -shift - half], axis=1)
    within = np.minimum(edges.max(1), -edges.min(1))
    return np.asarray((np.abs(edges).max(1) <= LARGEST_CROP) & (within <= SLACK))


def _same_colours(left: NDArray[np.uint8], right: NDArray[np.uint8], motion: Floats) -> NDArray[np.bool_]:
    """Whether pairs have the same colours but for one brightness, which may have cut off the brightest."""
    inner = (slice(None), slice(1, -1), slice(1, -1))
    first = _smaller(left, COARSE)[inner]
    second = _smaller(_moved(right.astype(np.float32), motion), COARSE)[inner]
    inside = (first < 245) & (second < 245)
    gain = (first * second * inside).sum((1, 2, 3)) / np.maximum((second**2 * inside).sum((1, 2, 3)), 1)
    by = np.clip(gain, 0.1, None)[:, None, None, None]
    apart = np.minimum(np.abs(first - np.minimum(second * by, 255)), np.abs(np.minimum(first / by, 255) - second))
    return np.asarray((apart.mean((1, 2, 3)) <= COLOURS_UP_TO) & (gain >= DARKEST) & (gain <= BRIGHTEST))


PICTURES = "pictures.npz"
"""In the workspace of a simulation, and not with its results: what its images are known by, with small copies of them."""
NAMED_PAIRS = 3


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
        thumbs: means of colours, see :func:`~grandrounds.data.leaks.thumbnails`.
        labels: texts, empty where nothing is known.
        known: labels as the task has them.
        flat: the rows of images of one colour, which identify nothing.
        kinds: of each picture what :func:`~grandrounds.data.shortcuts.kinds_of` names, by kind.
        reading: the windows that the site's entry states.
    """

    pictures: tuple[PlacedImage, ...]
    digests: tuple[str, ...]
    thumbs: NDArray[np.uint8]
    labels: tuple[str, ...]
    known: NDArray[np.int64]
    flat: tuple[int, ...]
    kinds: Mapping[str, Sequence[str]] = field(default_factory=dict)
    reading: str = ""

    def entries(self) -> list[tuple[PlacedImage, str, NDArray[np.uint8]]]:
        """Each picture with its digest and thumbnail."""
        return list(zip(self.pictures, self.digests, self.thumbs, strict=True))


def look(data: SiteData, site: str, reading: str = "") -> Looked:
    """What is compared of a site's pictures; ``reading`` is which windows its entry states."""
    digests = data.digests
    unreadable = set(data.cache.unreadable)
    rows = [row for row, digest in enumerate(digests) if digest and row not in unreadable]
    flat = tuple(row for row, digest in enumerate(digests) if not digest and row not in unreadable)
    patients = data.patients or [""] * len(data.names)
    pictures = tuple(
        PlacedImage(site, row, data.names[row], str(data.split[row]), patients[row], data.groups[row]) for row in rows
    )
    labels = tuple(data.task.label_cell(data.labels[row], data.classes) for row in rows)
    thumbs, kinds = thumbnails(data.images, rows), kinds_of(data)
    kinds = {kind: [values[row] for row in rows] for kind, values in kinds.items()}
    shown = tuple(digests[row] for row in rows)
    return Looked(pictures, shown, thumbs, labels, data.labels[rows], flat, kinds, reading)


def changed_pictures(path: Path, sites: Mapping[str, Looked]) -> int:
    """Pictures of sites that are not, pixel by pixel, among those that :func:`keep_pictures` has written."""
    with np.load(path) as kept:
        before = {site: Counter(kept[f"digests/{site}"].tolist()) for site in sites if f"digests/{site}" in kept}
    return sum((Counter(sites[site].digests) - known).total() for site, known in before.items())


def keep_pictures(path: Path, sites: Mapping[str, Looked]) -> None:
    """Write the digests and thumbnails of the sites' pictures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digests = {f"digests/{site}": np.array(looked.digests, "U32") for site, looked in sites.items()}
    thumbs = {f"thumbs/{site}": looked.thumbs for site, looked in sites.items()}
    with replacing(path) as stream:
        np.savez_compressed(stream, **digests, **thumbs)  # type: ignore[arg-type]


def copies_of_kept(path: Path, images: NDArray[np.uint8]) -> int:
    """How many images look like pictures that :func:`keep_pictures` has written."""
    with np.load(path) as kept:
        known = [kept[name] for name in kept.files if name.startswith("thumbs/")]
    count = sum(map(len, known))
    pairs = near_pairs(np.concatenate([*known, thumbnails(images, range(len(images)))]))
    if pairs is None:
        return 0
    return len(np.unique(pairs[(pairs[:, 0] < count) & (pairs[:, 1] >= count), 1]))


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
    said = f"{len(pictures)} pictures are at two sites: {_pairs(pictures)}; {remedy}"
    yield ("failure", check, said) if pictures else ("ok", check, "no picture is at two sites")
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
    said = f"{len(alike)} pictures {where} look the same: {_pairs(alike)}; look whether they are copies"
    yield ("warning", check, said) if alike else ("ok", check, f"no two pictures {where} look the same")


def _shared_patients(pairs: Sequence[tuple[PlacedImage, PlacedImage]], on_purpose: bool) -> Findings:
    check = "shared patients"
    if not pairs:
        yield "ok", check, "no patient is at two sites"
        return
    shown = "; ".join(f"{first.patient!r} of {first.place} and {second.place}" for first, second in pairs[:NAMED_PAIRS])
    message = f"{len(pairs)} patients are at two sites: {shown}{_more(len(pairs))}"
    remedy = "give all images of one to one site, or add --allow-overlap (allow_overlap=True)"
    if on_purpose:
        yield "warning", check, f"{message}; the partition was made so"
    else:
        yield "failure", check, f"{message}; {remedy}"


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
