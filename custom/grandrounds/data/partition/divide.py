"""Schemes that divide one data set between simulated hospitals.

Every function returns the records of ``site-1`` to ``site-N``. All but ``assign_round_robin`` keep the images
of a patient or lesion at one site. The server's images are drawn before, by ``draw_server``; splits are drawn afterwards,
but before ``assign_round_robin``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_at_least
from grandrounds.data.manifest import Record
from grandrounds.data.partition.groups import (
    TooFewImages,
    divide_groups,
    divide_into_counts,
    majority,
    shares_to_counts,
    whole_groups,
)
from grandrounds.errors import DataError
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.names import SERVER

Sites = dict[str, tuple[Record, ...]]

EXTERNAL = "external"
"""The one site of scheme ``external``."""

DIRICHLET_DRAWS = 1000
DIRICHLET_MIN_IMAGES = 10
SCALINGS = 1000
SCALING_PRECISION = 1e-9


def site_names(sites: int) -> list[str]:
    """``site-1`` to ``site-N``.

    Raises:
        ValueError: if ``sites`` is below one.
    """
    require_at_least(sites, 1, "sites")
    return [f"site-{number}" for number in range(1, sites + 1)]


def iid(records: Sequence[Record], sites: int, generator: np.random.Generator) -> Sites:
    """Divide records at random into sites of equal size.

    Raises:
        DataError: if there are fewer groups than sites.
    """
    names = site_names(sites)
    return _require_no_empty_site(divide_groups(records, dict.fromkeys(names, 1 / sites), generator))


def assign_round_robin(records: Sequence[Record], sites: int, generator: np.random.Generator) -> Sites:
    """Divide records whose splits are assigned at random, image by image, into sites of equal size.

    A patient's images may be at several sites, as in the FedIRM paper (Liu et al., MICCAI 2021), but stay in their split.
    Every site gets an equal number, within one, of each split's images, and of the labelled ones in training.

    Raises:
        DataError: if there are fewer records than sites.

    Example:
        >>> four = [Record(str(i), split=split) for i, split in enumerate(("train", "train", "test", "test"))]
        >>> [[record.split for record in own] for own in assign_round_robin(four, 2, np.random.default_rng(0)).values()]
        [['train', 'test'], ['train', 'test']]
    """
    names = site_names(sites)
    shuffled = generator.permutation(len(records)).tolist()
    # Sorting is stable: each part stays shuffled, and the parts follow each other.
    shuffled.sort(key=lambda index: (records[index].split, records[index].labelled))
    divided = {
        name: tuple(records[index] for index in sorted(shuffled[first::sites])) for first, name in enumerate(names)
    }
    return _require_no_empty_site(divided)


def by_source(records: Sequence[Record], sites: int, generator: np.random.Generator) -> Sites:
    """Give every source (device, hospital) sites of its own, in proportion to its images.

    Each source gets at least one site, the rest by largest remainders; the sites of a source are consecutive, the
    sources in natural order, and its images are divided at random into sites of equal size. A group that spans sources
    goes with most of its images.

    Raises:
        DataError: if there are fewer sites than sources, or a source has fewer groups than sites.
    """
    names = site_names(sites)
    sources = _by_majority(records, [record.source for record in records])
    if sites < len(sources):
        listed = ", ".join(repr(source) for source in sources)
        raise DataError(f"{sites} sites cannot hold {len(sources)} sources ({listed}); ask for at least {len(sources)}")
    shares = shares_to_counts([len(part) for part in sources.values()], sites, minimum=1)
    divided: Sites = {}
    for part, share in zip(sources.values(), shares, strict=True):
        own = names[len(divided) : len(divided) + share]
        divided |= divide_groups(part, dict.fromkeys(own, 1 / share), generator)
    return _require_no_empty_site(divided)


def dirichlet(records: Sequence[Record], sites: int, alpha: float, generator: np.random.Generator) -> Sites:
    r"""Divide each class between the sites in proportions drawn from a Dirichlet distribution.

    .. math:: q_c \sim \mathrm{Dir}(\alpha \mathbf{1}_N), \quad n_{ci} \approx q_{ci} n_c

    The smaller :math:`\alpha`, the more the sites differ in their classes (Hsu et al., "Measuring the effects of
    non-identical data distribution for federated visual classification", 2019). Proportions are drawn anew until every
    site is due ten images. A group counts as of the class that most of its images have.

    Raises:
        DataError: if no draw gives every site its ten images.
    """
    names = site_names(sites)
    classes = _by_majority(records, [record.label for record in records])
    wanted = _dirichlet_counts([len(part) for part in classes.values()], sites, alpha, generator)
    divided: dict[str, list[Record]] = {name: [] for name in names}
    for part, counts in zip(classes.values(), wanted, strict=True):
        for name, members in divide_into_counts(part, dict(zip(names, counts, strict=True)), generator).items():
            divided[name].extend(members)
    place = {record: index for index, record in enumerate(records)}
    in_order = {name: tuple(sorted(members, key=place.__getitem__)) for name, members in divided.items()}
    return _require_no_empty_site(in_order)


def equal_dirichlet(records: Sequence[Record], sites: int, alpha: float, generator: np.random.Generator) -> Sites:
    """Divide a data set between sites of equal size, to one image, with Dirichlet-distributed classes.

    Each record must have a label and a patient or lesion of its own: groups of several images could not be divided exactly.
    The first sites get one image more where the number does not divide.

    Raises:
        DataError: if there are fewer records than sites, a record has no label, or two are of one patient or lesion.
    """
    names = site_names(sites)
    _require_divisible(records, sites)
    labels = natural_sorted({record.label for record in records})
    members = {name: [i for i, r in enumerate(records) if r.label == name] for name in labels}
    sizes = [len(part) for part in members.values()]
    counts = equal_dirichlet_counts(sizes, sites, alpha, generator)
    chosen: list[list[int]] = [[] for _ in names]
    for part, row in zip(members.values(), counts, strict=True):
        shuffled = generator.permutation(part)
        for own, piece in zip(chosen, np.split(shuffled, np.cumsum(row)[:-1]), strict=True):
            own.extend(piece.tolist())
    return {name: tuple(records[i] for i in sorted(own)) for name, own in zip(names, chosen, strict=True)}


def draw_server(
    records: Sequence[Record], images: int, generator: np.random.Generator
) -> tuple[tuple[Record, ...], tuple[Record, ...]]:
    """Draw images for the server's own validation at random over the whole data set.

    Groups stay whole, and groups without any label are not drawn: nothing could be scored on them.

    Returns:
        The server's records, in split ``val``, and the others, both in their order.

    Raises:
        DataError: if that leaves no labelled image for the sites.
    """
    groups = [members for members in whole_groups(records) if any(records[index].label for index in members)]
    pool = [records[index] for index in sorted(index for members in groups for index in members)]
    if images >= len(pool):
        raise DataError(f"the server cannot have {images} of {len(pool)} images with a label; lower server_images")
    drawn = divide_into_counts(pool, {SERVER: images}, generator)[SERVER]
    taken = set(drawn)
    own = tuple(replace(record, split="val", labelled=True) for record in drawn)
    return own, tuple(record for record in records if record not in taken)


def _dirichlet_counts(
    sizes: Sequence[int], sites: int, alpha: float, generator: np.random.Generator
) -> list[list[int]]:
    for _ in range(DIRICHLET_DRAWS):
        shares = generator.dirichlet(np.full(sites, alpha), size=len(sizes))
        counts = [shares_to_counts(row.tolist(), size) for row, size in zip(shares, sizes, strict=True)]
        if min(map(sum, zip(*counts, strict=True))) >= DIRICHLET_MIN_IMAGES:
            return counts
    raise DataError(
        f"no division of {sum(sizes)} images between {sites} sites with alpha {alpha} gives every site "
        f"{DIRICHLET_MIN_IMAGES} images; raise alpha or ask for fewer sites"
    )


def _by_majority(records: Sequence[Record], values: Sequence[str]) -> Sites:
    """Records by the value that most images of their group have; values in natural order, records in theirs."""
    chosen = [""] * len(records)
    for members in whole_groups(records):
        value = majority(values[index] for index in members)
        for index in members:
            chosen[index] = value
    return {
        value: tuple(record for record, own in zip(records, chosen, strict=True) if own == value)
        for value in natural_sorted(set(chosen))
    }


def _require_no_empty_site(sites: Mapping[str, tuple[Record, ...]]) -> Sites:
    for name, records in sites.items():
        if not records:
            raise TooFewImages(f"{name} would get no image: there are fewer groups than sites; ask for fewer sites")
    return dict(sites)


def equal_dirichlet_counts(
    class_sizes: Sequence[int], sites: int, alpha: float, generator: np.random.Generator
) -> NDArray[np.int64]:
    r"""Number of images of each class at each site.

    .. math:: M_{cp} = n_c q_{cp}, \quad q_c \sim \mathrm{Dir}(\alpha \mathbf{1}_P), \quad
        \sum_p N_{cp} = n_c, \quad \sum_c N_{cp} = n / P

    where :math:`N` is :math:`M` scaled to both margins (Sinkhorn, 1967), rounded down, and filled up in the order of what
    was cut off; :math:`n_c` are the ``class_sizes`` and :math:`P` the ``sites``.

    Returns:
        Shape ``(classes, sites)``; both margins are exact. Columns differ by one where the number of images does not divide.

    Example:
        >>> equal_dirichlet_counts([10, 6], 2, 1e6, np.random.Generator(np.random.Philox(1)))  # nearly equal shares
        array([[5, 5],
               [3, 3]])
    """
    rows = np.asarray(class_sizes, dtype=np.int64)
    columns = np.full(sites, rows.sum() // sites) + (np.arange(sites) < rows.sum() % sites)
    shares = generator.dirichlet(np.full(sites, alpha), size=len(rows))
    return _rounded(_scaled(shares * rows[:, None], rows, columns), rows, columns)


def _scaled(matrix: NDArray[np.float64], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Scale rows and columns in turn until both sums fit; then down, so that no sum is above its margin."""
    for _ in range(SCALINGS):
        matrix = matrix * _ratio(rows, matrix.sum(axis=1))[:, None]
        sums = matrix.sum(axis=0)
        if np.allclose(sums, columns, rtol=SCALING_PRECISION, atol=SCALING_PRECISION):
            break
        matrix = matrix * _ratio(columns, sums)
    # Where a draw has zeros the margins may be out of reach; what is cut off here is handed out again.
    matrix = matrix * np.minimum(1, _ratio(rows, matrix.sum(axis=1)))[:, None]
    return matrix * np.minimum(1, _ratio(columns, matrix.sum(axis=0)))


def _ratio(wanted: NDArray[np.int64], sums: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(wanted, sums, out=np.zeros_like(sums), where=sums > 0)


def _rounded(matrix: NDArray[np.float64], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Integers near a matrix whose sums are not above the margins, which they meet."""
    counts = np.floor(matrix).astype(np.int64)
    row_rest, column_rest = rows - counts.sum(axis=1), columns - counts.sum(axis=0)
    order = np.argsort(-(matrix - counts), axis=None, kind="stable")
    cells = [divmod(int(cell), len(columns)) for cell in order]
    # First one unit each, the largest fraction first; then whatever is left wherever there is room.
    for most in (1, int(rows.sum())):
        for row, column in cells:
            unit = min(most, int(row_rest[row]), int(column_rest[column]))
            counts[row, column] += unit
            row_rest[row] -= unit
            column_rest[column] -= unit
    return counts


def _require_divisible(records: Sequence[Record], sites: int) -> None:
    if len(records) < sites:
        raise DataError(f"{len(records)} images cannot be divided between {sites} sites; ask for fewer sites")
    for record in records:
        if not record.label:
            raise DataError(f"image {record.image!r} has no label; the division by classes needs one of every image")
    for group in whole_groups(records):
        if len(group) > 1:
            first, second = (records[index].image for index in group[:2])
            raise DataError(
                f"images {first!r} and {second!r} are of one patient or lesion, which sites of exactly equal size would "
                "divide; use the dirichlet scheme"
            )
