"""All scores of a place as plain values, for the place itself: no count is hidden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.evaluation.bootstrap import joined
from grandrounds.evaluation.grouping import Grouping, grouped_cases
from grandrounds.evaluation.record import EvalRecord
from grandrounds.evaluation.score import Score, ScoreSheet
from grandrounds.reporting.run import ReadRun
from grandrounds.reporting.scores import mean_over_sites, scores_of

if TYPE_CHECKING:
    from grandrounds.reporting.external.adaptation import AdaptedPlace
    from grandrounds.reporting.external.prediction import Place
    from grandrounds.reporting.external.preparation import Labels


def plain_scores(tested: ReadRun, place: Place, labels: Labels, adapted: AdaptedPlace | None = None) -> dict[str, Any]:
    """The scores of a place.

    Args:
        tested: the place as a run.
        place: what was predicted.
        labels: what they are.
        adapted: what an adaptation did.

    Returns:
        ``labels`` (what they are), ``sites`` (scores of each, with ``n``, its images), their ``mean``, ``pooled`` (of all
        images together), ``classes`` (by label: ``n``, the number of ``sites`` that have it, ``mean`` over them and
        ``pooled``) and, with a grouping, ``groups``: scores of each group over all images, by reading of the predictions.
        With an adaptation, ``adapted``: what was fitted, and scores of the other images ``before`` and ``after``.
    """
    scores = scores_of(tested, 1)
    sheets = list(scores.sites.values())
    truths = np.concatenate([predictions.labels for predictions in place.sites.values()])
    counts = tested.task.class_counts(truths, len(tested.classes)).tolist()
    classes = {}
    for name, count in zip(tested.classes, counts, strict=True):
        known = [sheet.classes[name] for sheet in sheets if sheet.classes[name]["sensitivity"].known]
        pooled = _values(scores.pooled.classes[name]) if scores.pooled else {}
        classes[name] = {"n": count, "sites": len(known), "mean": _values(mean_over_sites(known)), "pooled": pooled}
    return {
        "labels": "groups" if labels.by_group else tested.task.nouns,
        "classes": classes,
        "sites": {site: _of_sheet(sheet) for site, sheet in scores.sites.items()},
        "mean": {"n": sum(sheet.images or 0 for sheet in sheets), **_values(scores.mean)},
        "pooled": _of_sheet(scores.pooled) if scores.pooled else {},
        **({"groups": _of_groups(tested, place, labels, labels.grouping)} if labels.grouping else {}),
        **({"adapted": adapted.plain()} if adapted else {}),
    }


def _of_groups(tested: ReadRun, place: Place, labels: Labels, grouping: Grouping) -> dict[str, Any]:
    """Scores of each group by reading."""
    at_sites = [
        grouped_cases(
            predictions.labels if labels.by_group else grouping.group_of[predictions.labels],
            predictions.probabilities,
            grouping,
            predictions.groups or None,
        )
        for predictions in place.sites.values()
    ]
    readings = {reading: joined([site[reading] for site in at_sites]) for reading in at_sites[0]}
    tables = {}
    for reading, cases in readings.items():
        scored = EvalRecord.of(tested.task, grouping.names, [cases]).classes
        counts = np.bincount(cases.labels, minlength=cases.classes).tolist()
        tables[reading] = {
            name: {"n": count, **_values(one)} for name, count, one in zip(grouping.names, counts, scored, strict=True)
        }
    return tables


def _of_sheet(sheet: ScoreSheet) -> dict[str, Any]:
    return {"n": sheet.images, **_values(sheet.scores), **sheet.confidence}


def _values(scores: Mapping[str, Score]) -> dict[str, float]:
    return {name: score.value for name, score in scores.items()}
