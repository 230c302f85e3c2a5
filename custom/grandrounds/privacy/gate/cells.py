"""What the numbers of an answer are of: the images of a part with a label, whatever kind of task asks.

A class is named by its canonical text, as labels are matched. Where no image of a part has several findings, a finding is
a class like any other, those without it are the images of the other classes, and all kinds of tasks share their cells.
Where images have several, each finding has cells of its own, for images with it and without it; how they follow from cells
of another kind of task is not known, so only one kind is ever told of such a part. So it is with plug-ins' kinds that are
neither classes nor findings. Curves count patients; where each patient has one image these are the images.
"""

from __future__ import annotations

from grandrounds.data.keys import canonical
from grandrounds.evaluation.counts import counts_shape
from grandrounds.privacy.gate.datasets import PartFacts
from grandrounds.privacy.gate.kinds import Expected
from grandrounds.privacy.mechanisms.auditor import MOST_IMAGES, Released, Sum
from grandrounds.protocol.task_multi import UNKNOWN_MARK
from grandrounds.protocol.tasks import FINDINGS

OF_KIND, PATIENT_CELLS = " of ", " patients"
"""In the place of a cell, after the name of the part; the kind of task follows the first."""


class PartCells:
    """The cells of a part: ``labelled``, ``val`` or ``test``.

    Attributes:
        names: the vocabulary, canonical.
        apart: whether the kind of task has cells of its own.
        every: the cells of all images, unless the kind has cells of its own.
        one_image: whether each patient has one image.
        images: how many images of each class the manifest has.
    """

    def __init__(self, part: str, expected: Expected) -> None:
        facts = expected.parts.get(part, PartFacts())
        self.names = tuple(map(canonical, expected.names)) or tuple(map(str, range(expected.classes)))
        several = any(len(FINDINGS.mentioned_in(label)) > 1 or label.startswith(UNKNOWN_MARK) for label in facts.labels)
        questions, rows, _ = counts_shape(expected.task.answers(expected.classes))
        one_each = rows == 2 and questions == expected.classes and not several
        self.apart = not (one_each or (questions == 1 and rows == expected.classes))
        self.one_image = facts.one_image
        self.images = dict.fromkeys(self.names, 0)
        for label, images in facts.labels.items():
            for name in set(map(canonical, expected.task.names_in(label))) & self.images.keys():
                self.images[name] += images
        self._place = f"{part}{OF_KIND}{expected.task.name}" if self.apart else part
        self._one_label = facts.one_label
        self._certain = not any(UNKNOWN_MARK in label for label in facts.labels)
        labels = dict.fromkeys((*self.names, *sorted(map(canonical, facts.labels))))
        self.every = () if self.apart else tuple(f"{self._place}/{label}" for label in labels)

    def having(self, name: str) -> tuple[str, ...]:
        """The images of a class."""
        return (f"{self._place}/{name}",)

    def lacking(self, name: str) -> tuple[str, ...]:
        """The images that are not of a class."""
        if self.apart:
            return (f"{self._place}/{name}=0",)
        return tuple(cell for cell in self.every if cell not in self.having(name))

    def classes(self, question: int, questions: int, rows: int) -> list[tuple[str, ...]]:
        """The images of each row of a table."""
        if questions == 1:
            return [self.having(name) for name in self.names]
        if rows == 2:
            return [self.lacking(self.names[question]), self.having(self.names[question])]
        return [(f"{self._place}/{self.names[question]}={row}",) for row in range(rows)]

    def number(self, images: int) -> Released:
        """What the number of all images says."""
        if not self.apart:
            return exactly(self.every, images)
        least = images if self._certain else 0
        return Released(
            sums=tuple(Sum((*self.having(name), *self.lacking(name)), least, images) for name in self.names)
        )

    def cases(self, name: str, positive: int, negative: int) -> Released:
        """What the numbers of patients with images of a class, and with others, say."""
        if self.one_image:
            return exactly(self.having(name), positive) + exactly(self.lacking(name), negative)
        images = Released(
            sums=(Sum(self.having(name), positive, MOST_IMAGES), Sum(self.lacking(name), negative, MOST_IMAGES))
        )
        return images + self.patients(self.having(name), positive, 0) + self.patients(self.lacking(name), negative, 0)

    def patients(self, cells: tuple[str, ...], some: int, others: int) -> Released:
        """What two numbers of patients say of those with images in some cells; a patient may be in both."""
        if self.one_image or not cells:
            return Released()
        place = f"{self._place}{PATIENT_CELLS}"
        own = tuple(f"{place}{cell.removeprefix(self._place)}" for cell in cells)
        least, most = max(some, others), some + others
        # A patient of two classes is in two cells.
        if len(own) > 1 and not self._one_label:
            return Released(sums=(Sum(own, least, MOST_IMAGES),))
        return exactly(own, least) if least == most else Released(sums=(Sum(own, least, most),))


def exactly(cells: tuple[str, ...], number: int) -> Released:
    """What a number of images in some cells says.

    Example:
        >>> exactly(("val/a",), 3).cells, exactly(("val/a", "val/b"), 0).cells
        ({'val/a': 3}, {'val/a': 0, 'val/b': 0})
    """
    if len(cells) == 1 or number == 0:
        return Released(dict.fromkeys(cells, number))
    return Released(sums=(Sum(cells, number, number),))


def of_two_kinds(said: Released) -> bool:
    """Whether something is said of cells of a kind of task and of others, in one part."""
    tables = [cells for table in said.tables for cells in table.classes]
    named = [*said.cells, *(cell for cells in (*(one.cells for one in said.sums), *tables) for cell in cells)]
    places = {cell.partition("/")[0].removesuffix(PATIENT_CELLS) for cell in named}
    return len({place.partition(OF_KIND)[0] for place in places}) < len(places)
