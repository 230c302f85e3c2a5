"""The rows of a run's table of scores, as the terminal prints them and the API returns them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from grandrounds.evaluation.score import Score, ScoreSheet, no_score
from grandrounds.reporting.run import Run
from grandrounds.reporting.scores import ALWAYS_AT_SITES, RunScores, scores_of

NAMES: Mapping[str, str] = {"common": "selected", "own": "own"}
"""How tables call the models of a summary."""


class Row(NamedTuple):
    """A row: a site, ``mean``, ``pooled`` or a reference; images; accuracy of always predicting the most frequent class.

    ``scores`` are by the task's names of scores; each is one over all classes and sites, or over the part that it names.
    """

    name: str
    images: int | None
    majority: float | None
    scores: Mapping[str, Score]


def table_rows(run: Run) -> list[Row]:
    """The rows for one model of a run: sites, their mean, all images together, and references."""
    scores, names = scores_of(run), run.task.scores
    rows = [_row(site, record, names) for site, record in scores.sites.items()]
    rows += [Row(site, 0, None, {}) for site, record in run.tests.sites.items() if not record.images]
    rows.append(Row("mean", None, _mean_majority(scores), _means(scores, names)))
    if scores.pooled:
        rows.append(_row("pooled", scores.pooled, names))
        for name, found in scores.pooled.references.items():
            known = {key: Score(found[key], found[key], found[key], None) for key in names if key in found}
            rows.append(Row(name, None, None, known))
    return rows


def _row(name: str, sheet: ScoreSheet, names: tuple[str, ...]) -> Row:
    return Row(name, sheet.images, sheet.always.get("accuracy"), {key: sheet.best(key) for key in names})


def _means(scores: RunScores, names: tuple[str, ...]) -> dict[str, Score]:
    return {name: scores.best_mean(name) or no_score("no site has it") for name in names}


def _mean_majority(scores: RunScores) -> float | None:
    return scores.mean_references.get(ALWAYS_AT_SITES, {}).get("accuracy")
