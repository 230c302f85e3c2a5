"""What a site makes of a model's predictions: exact scores and counts by class, and what of them may leave.

Scores with intervals are those of :class:`~grandrounds.evaluation.record.EvalRecord`, which readers make of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from grandrounds.evaluation.counts import SiteCounts, suppress_counts
from grandrounds.evaluation.metrics import OF_CLASSES
from grandrounds.protocol.task import Task

UNITS = ("image", "lesion", "patient")
"""What a case is. A site reports its position here as the metric ``unit``."""
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
        """Without counts of fewer than ``minimum`` cases, and without what would give them away.

        Beside a table in which a class is hidden, no exact score of single classes is left.
        """
        return self._hiding(tuple(suppress_counts(one, minimum) for one in self._tables))

    @property
    def _tables(self) -> tuple[SiteCounts, ...]:
        return self.counts

    def _hiding(self, counts: tuple[SiteCounts, ...]) -> Self:
        return replace(self, counts=counts, exact=beside_counts(self.exact, counts))


def beside_counts(exact: Mapping[str, float], counts: Sequence[SiteCounts]) -> dict[str, float]:
    """The exact scores that may leave beside counts: those of single classes only where no class is hidden.

    The number of images, the accuracy and scores that counts do not determine stay: suppression takes them to be known.
    """
    hides = any(one.hidden.any() for one in counts)
    return {name: value for name, value in exact.items() if not (hides and name in OF_CLASSES)}
