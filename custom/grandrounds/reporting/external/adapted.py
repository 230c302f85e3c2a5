"""What a model that was adapted to a place is worth there: for the place itself, and as it may leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grandrounds.evaluation.clinical.results import Adapted
from grandrounds.evaluation.score import ScoreSheet
from grandrounds.plain import to_plain
from grandrounds.reporting.run import ReadRun
from grandrounds.reporting.scores import scores_of


@dataclass(frozen=True, eq=False)
class AdaptedPlace:
    """What an adaptation did at a place; for the place itself.

    Attributes:
        how: in words.
        images: whose labels were used.
        cases: that they are of.
        by_class: what was fitted, by name and class.
        before: the other images as a run's test, with the model as it is.
        after: the same with the adapted one.
    """

    how: str
    images: int
    cases: int
    by_class: Mapping[str, Mapping[str, float]]
    before: ReadRun
    after: ReadRun

    def plain(self) -> dict[str, Any]:
        """As plain values, with the scores of each class before and after."""
        sheets = {name: scores_of(run, 1).pooled for name, run in (("before", self.before), ("after", self.after))}
        scores = {name: to_plain({"scores": one.scores, "classes": one.classes}) for name, one in sheets.items() if one}
        return {"how": self.how, "images": self.images, "by_class": dict(self.by_class), **scores}

    def shown(self, minimum: int, hidden: Sequence[bool]) -> Adapted:
        """As it may leave: counts by class of the rest would give away those of the few labels that were used.

        Args:
            minimum: the smallest count that may be shown.
            hidden: classes whose counts are hidden everywhere.
        """
        before, after = (self._sheet(run, minimum, hidden) for run in (self.before, self.after))
        if not 0 < self.cases < minimum:
            return Adapted(self.how, self.images, before, after)
        return Adapted(self.how, None, *(replace(sheet, images=None, cases=None) for sheet in (before, after)))

    @staticmethod
    def _sheet(run: ReadRun, minimum: int, hidden: Sequence[bool]) -> ScoreSheet:
        found = scores_of(run, minimum, hidden).pooled
        assert found is not None
        scores = {name: score if score.few else score._replace(cases=None) for name, score in found.scores.items()}
        confidence = {name: value for name, value in found.confidence.items() if name == "ece"}
        return replace(found, scores=scores, classes={}, references={}, shares={}, confidence=confidence)
