"""What a site makes of a model's predictions: exact scores and counts by class, and what of them may leave.

Scores with intervals are those of :class:`~grandrounds.evaluation.record.EvalRecord`, which readers make of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from grandrounds.evaluation.counts import UNITS, SiteCounts, has_small_counts
from grandrounds.evaluation.metrics import OF_CLASSES
from grandrounds.protocol.task import Task

UNIT, NUMBER = "unit", "n"


@dataclass(frozen=True, eq=False)
class SiteRecord:
    """One model on the images of a site.

    Attributes:
        task: of the labels.
        names: the vocabulary.
        images: how many images of known label there are.
        exact: scores as the site computed them.
        counts: of the predictions, of each site.
        unit: what a case is.
    """

    task: Task
    names: tuple[str, ...]
    images: int
    exact: Mapping[str, float] = field(default_factory=dict)
    counts: tuple[SiteCounts, ...] = ()
    unit: str = UNITS[0]

    def suppressed(self, minimum: int) -> Self:
        """What may leave a site: without the counts if one of them is of 1 to ``minimum - 1`` cases.

        Where the counts stay, exact scores of single classes stay, too.
        """
        if not any(has_small_counts(table, minimum) for table in self._tables):
            return self
        exact = {name: value for name, value in self.exact.items() if name not in OF_CLASSES}
        return replace(self, counts=(), exact=exact)

    @property
    def _tables(self) -> tuple[SiteCounts, ...]:
        return self.counts
