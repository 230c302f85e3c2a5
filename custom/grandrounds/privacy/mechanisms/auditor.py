"""Whether what a data set has released determines a count that was hidden, over all answers together.

A table hides small counts, but a total, a score or another table may give them back: ``240 - 162 - 53 - 24 = 1``. What is
released are linear equations and bounds of whole numbers that are not negative: the images of each class in each part, and
in a table the correct and missed ones. For every hidden number integer programming looks for three different values that
agree with all of them (M. Fischetti and J. J. Salazar, "Solving the cell suppression problem on tabular data with linear
constraints", Management Science 47, 2001). Scores that are not linear in counts (balanced accuracy, F1) never leave beside
hidden counts, and are not modelled; nor is that a patient may have several images.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

CONSISTENT_VALUES = 3
"""How many values a hidden count must be able to have."""
MOST_IMAGES = 10**7
INTEGRAL = 1e-6
AUDIT_SECONDS = 5.0


class Undecided(Exception):
    """It cannot be told, for instance because the time is over: whatever is asked for must be withheld."""


class Contradiction(Undecided):
    """No numbers agree with what is released."""


@dataclass(frozen=True)
class Sum:
    """The images in some cells together, from ``low`` to ``high``; both are the same where the number is exact."""

    cells: tuple[str, ...]
    low: int
    high: int


@dataclass(frozen=True)
class HiddenTable:
    """What a table of correct, missed and false predictions hides.

    Attributes:
        classes: whose correct and missed images are hidden, each as the cells that its images are in.
        correct: all correct images of these classes together; None where no accuracy is released.
        false: the number of classes whose false predictions are hidden.
        wrong: their false predictions together; None where no accuracy is released.
    """

    classes: tuple[tuple[str, ...], ...]
    correct: int | None = None
    false: int = 0
    wrong: int | None = None


@dataclass(frozen=True)
class Released:
    """What is known of a data set. A cell is a class in a part, such as ``val/nevus``.

    Attributes:
        cells: the images in cells that were shown.
        sums: of cells.
        tables: that hide something.
    """

    cells: Mapping[str, int] = field(default_factory=dict)
    sums: tuple[Sum, ...] = ()
    tables: tuple[HiddenTable, ...] = ()

    def __add__(self, other: Released) -> Released:
        """Both together; what is in both counts once."""
        return Released(
            {**self.cells, **other.cells},
            tuple(dict.fromkeys((*self.sums, *other.sums))),
            tuple(dict.fromkeys((*self.tables, *other.tables))),
        )

    def moved(self, by: int) -> Released:
        """The same with sums that are larger by so much.

        Example:
            >>> Released(sums=(Sum(("a", "b"), 5, 14),)).moved(10).sums
            (Sum(cells=('a', 'b'), low=15, high=24),)
        """
        sums = tuple(Sum(one.cells, one.low + by, one.high + by) for one in self.sums)
        return Released(self.cells, sums, self.tables)


def gives_away(before: Released, new: Released, deadline: float | None = None) -> bool:
    """Whether a hidden count has fewer than three consistent values once ``new`` is released beside ``before``.

    Tables of earlier answers are looked at again where the new ones say more about the classes' images. ``deadline`` is a
    time of the process's CPU clock, by default in ``AUDIT_SECONDS``: how busy the machine is decides nothing.

    Raises:
        Undecided: if that cannot be told in time.
        Contradiction: if there is no consistent value at all.

    Example:
        >>> cells = ("labelled/a", "labelled/b", "labelled/c")
        >>> shown = Released({"labelled/a": 162, "labelled/b": 77})
        >>> gives_away(shown, Released(sums=(Sum(cells, 240, 240),)))
        True
        >>> gives_away(shown, Released(sums=(Sum(cells, 235, 245),)))
        False
    """
    deadline = time.process_time() + AUDIT_SECONDS if deadline is None else deadline
    known = before + new
    system = _System(known, deadline)
    more = dict(known.cells) != dict(before.cells) or set(known.sums) != set(before.sums)
    tables = known.tables if more else tuple(one for one in new.tables if one not in before.tables)
    if any(_false_given_away(one) for one in tables):
        return True
    if more and any(system.fixes(cell) for cell in system.hidden):
        return True
    return any(_System(known, deadline, one).gives_counts_away() for one in tables)


def _false_given_away(table: HiddenTable) -> bool:
    """The false predictions of the hidden classes add up to a known number, and are not negative."""
    if table.wrong is None or not table.false:
        return False
    return table.false < 2 or table.wrong < CONSISTENT_VALUES - 1


class _System:
    """Whole numbers that agree with what is released: the images of each cell, and the correct ones of one table.

    Of the other tables it matters only that their correct images are no more than the images of their classes.
    """

    def __init__(self, known: Released, deadline: float, table: HiddenTable | None = None) -> None:
        inside = [total.cells for total in known.sums]
        inside += [
            cells for one in (known.tables if table is None else (*known.tables, table)) for cells in one.classes
        ]
        named = [*known.cells, *(cell for cells in inside for cell in cells)]
        self._cells = {cell: number for number, cell in enumerate(dict.fromkeys(named))}
        self._table = table
        self._deadline = deadline
        self.hidden = [cell for cell in self._cells if cell not in known.cells]
        self._count = len(self._cells) + (len(table.classes) if table else 0)
        self._rows: list[tuple[np.ndarray, float, float]] = []
        for cell, value in known.cells.items():
            self._add([cell], value, value)
        for total in known.sums:
            self._add(total.cells, total.low, total.high)
        for other in known.tables:
            if other.correct is not None:
                self._add([cell for cells in other.classes for cell in cells], other.correct, np.inf)
        if table is not None:
            for place, cells in enumerate(table.classes):
                row = self._missed(place, cells)
                self._rows.append((row, 0, np.inf))
            if table.correct is not None:
                row = np.zeros(self._count)
                row[len(self._cells) :] = 1
                self._rows.append((row, table.correct, table.correct))

    def fixes(self, cell: str) -> bool:
        """Whether the images in a cell have too few consistent values."""
        row = np.zeros(self._count)
        row[self._cells[cell]] = 1
        return self._has_few_values(row)

    def gives_counts_away(self) -> bool:
        """Whether the correct or missed images of a hidden class of the table have too few consistent values."""
        assert self._table is not None
        for place, cells in enumerate(self._table.classes):
            correct = np.zeros(self._count)
            correct[len(self._cells) + place] = 1
            if self._has_few_values(correct) or self._has_few_values(self._missed(place, cells)):
                return True
        return False

    def _missed(self, place: int, cells: Iterable[str]) -> np.ndarray:
        row = np.zeros(self._count)
        row[[self._cells[cell] for cell in cells]] = 1
        row[len(self._cells) + place] = -1
        return row

    def _add(self, cells: Iterable[str], low: float, high: float) -> None:
        row = np.zeros(self._count)
        row[[self._cells[cell] for cell in cells]] = 1
        self._rows.append((row, low, high))

    def _has_few_values(self, row: np.ndarray) -> bool:
        low = self._least(row, -np.inf, np.inf)
        high = self._least(-row, -np.inf, np.inf)
        if low is None or high is None:
            raise Contradiction("what was released contradicts itself")
        if -high - low < CONSISTENT_VALUES - 1:
            return True
        return self._least(row, low + 1, -high - 1) is None

    def _least(self, row: np.ndarray, low: float, high: float) -> int | None:
        """The least value of a linear form between two bounds; None if there is none."""
        from scipy.optimize import Bounds, LinearConstraint, milp  # here: only a table with hidden counts needs it

        left = self._deadline - time.process_time()
        if left <= 0:
            raise Undecided("the time is over")
        rows = [*self._rows, (row, low, high)]
        matrix, lows, highs = (np.array(part) for part in zip(*rows, strict=True))
        found = milp(
            row,
            integrality=np.ones(self._count),
            bounds=Bounds(0, MOST_IMAGES),
            constraints=LinearConstraint(matrix, lows, highs),
            options={"time_limit": left},
        )
        if found.status == 2:
            return None
        if found.status != 0 or abs(found.fun - round(found.fun)) > INTEGRAL:
            raise Undecided(str(found.message))
        least: int = round(found.fun)
        return least
