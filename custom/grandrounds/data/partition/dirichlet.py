"""Sites of equal size whose classes differ.

MDH-FL (arXiv 2308.00155, section 4) gives four sites the same number of images and Dirichlet-distributed classes. Drawing
the shares of each class (``partition.dirichlet``) makes sites of very different sizes; here the draw is scaled to both
margins (Sinkhorn, "Diagonal equivalence to matrices with prescribed row and column sums", 1967) and rounded to integers that
meet them exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.grouping import whole_groups
from grandrounds.data.manifest import Record
from grandrounds.data.partition.divide import Sites, site_names
from grandrounds.errors import DataError
from grandrounds.ordering import natural_sorted

SCALINGS = 1000
PRECISION = 1e-9


def equal_dirichlet(records: Sequence[Record], sites: int, alpha: float, generator: np.random.Generator) -> Sites:
    """Divide a data set between sites of equal size, to one image, with Dirichlet-distributed classes.

    Args:
        records: the whole data set, each record with a label and of a patient or lesion of its own: groups of several
            images could not be divided exactly.
        sites: how many sites; the first get one image more where the number does not divide.
        alpha: concentration, above zero.
        generator: where the randomness comes from.

    Returns:
        The records of ``site-1`` to ``site-N``, each in the order of ``records``.

    Raises:
        DataError: if there are fewer records than sites, a record has no label, or two are of one patient or lesion.
        ValueError: if ``alpha`` is not positive.
    """
    names = site_names(sites)
    _require_divisible(records, sites)
    members = {name: [i for i, r in enumerate(records) if r.label == name] for name in _labels(records)}
    sizes = [len(part) for part in members.values()]
    counts = equal_dirichlet_counts(sizes, sites, alpha, generator)
    chosen: list[list[int]] = [[] for _ in names]
    for part, row in zip(members.values(), counts, strict=True):
        shuffled = generator.permutation(part)
        for own, piece in zip(chosen, np.split(shuffled, np.cumsum(row)[:-1]), strict=True):
            own.extend(piece.tolist())
    return {name: tuple(records[i] for i in sorted(own)) for name, own in zip(names, chosen, strict=True)}


def equal_dirichlet_counts(
    class_sizes: Sequence[int], sites: int, alpha: float, generator: np.random.Generator
) -> NDArray[np.int64]:
    r"""How many images of each class each site gets.

    .. math:: M_{cp} = n_c q_{cp}, \quad q_c \sim \mathrm{Dir}(\alpha \mathbf{1}_P), \quad
        \sum_p N_{cp} = n_c, \quad \sum_c N_{cp} = n / P

    where :math:`N` is :math:`M` scaled to the margins by rows and columns in turn, rounded down, and filled up in the order
    of what was cut off.

    Args:
        class_sizes: :math:`n_c`, images of each class.
        sites: :math:`P`, at least one.
        alpha: concentration, above zero.
        generator: where the randomness comes from.

    Returns:
        Shape ``(classes, sites)``; both margins are exact. Columns differ by one where the number of images does not divide.

    Raises:
        ValueError: if ``alpha`` is not positive, ``sites`` is below one, or a size is negative.

    Example:
        >>> equal_dirichlet_counts([10, 6], 2, 1e6, np.random.Generator(np.random.Philox(1)))  # nearly equal shares
        array([[5, 5],
               [3, 3]])
    """
    if not alpha > 0:
        raise ValueError(f"alpha must be positive, got {alpha}")
    if sites < 1 or min(class_sizes, default=0) < 0:
        raise ValueError(f"expected at least 1 site and no negative sizes, got {sites} and {list(class_sizes)}")
    rows = np.asarray(class_sizes, dtype=np.int64)
    columns = np.full(sites, rows.sum() // sites) + (np.arange(sites) < rows.sum() % sites)
    shares = generator.dirichlet(np.full(sites, alpha), size=len(rows))
    return _rounded(_scaled(shares * rows[:, None], rows, columns), rows, columns)


def _scaled(matrix: NDArray[np.float64], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Scale rows and columns in turn until both sums fit; then down, so that no sum is above its margin."""
    for _ in range(SCALINGS):
        matrix = matrix * _ratio(rows, matrix.sum(axis=1))[:, None]
        sums = matrix.sum(axis=0)
        if np.allclose(sums, columns, rtol=PRECISION, atol=PRECISION):
            break
        matrix = matrix * _ratio(columns, sums)
    # Where a draw has zeros the margins may be out of reach; what is cut off here is handed out again.
    matrix = matrix * np.minimum(1, _ratio(rows, matrix.sum(axis=1)))[:, None]
    scaled: NDArray[np.float64] = matrix * np.minimum(1, _ratio(columns, matrix.sum(axis=0)))
    return scaled


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


def _labels(records: Sequence[Record]) -> list[str]:
    return natural_sorted({record.label for record in records})


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
