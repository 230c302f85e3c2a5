"""Scores of a run by site, community, and of all images together: the evaluation records of its sites, and sums of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import NamedTuple

import numpy as np

from grandrounds.evaluation.clinical.suppression import shown_counts, suppressed
from grandrounds.evaluation.estimates import mean_over
from grandrounds.evaluation.record import EvalRecord, pooled
from grandrounds.evaluation.score import CHANCE, Score, ScoreSheet, named, no_score
from grandrounds.reporting.run import ReadRun

ALWAYS_AT_SITES = "always"


@dataclass(frozen=True, eq=False)
class RunScores:
    """All scores of a run. No reader computes or hides a score.

    Attributes:
        sites: at each site.
        communities: of the sites of each community together.
        pooled: of all test images together; None without any.
        mean: unweighted means over sites; where some sites have no score, the name says over how many it is.
        mean_references: the same means of always predicting each site's most frequent class, of guessing, and of models
            beside the run's.
    """

    sites: Mapping[str, ScoreSheet] = field(default_factory=dict)
    communities: Mapping[str, ScoreSheet] = field(default_factory=dict)
    pooled: ScoreSheet | None = None
    mean: Mapping[str, Score] = field(default_factory=dict)
    mean_references: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def best_mean(self, name: str) -> Score | None:
        """The mean of a score over the sites that have it, with its part where they are not all."""
        return next((score for key, score in self.mean.items() if key in (name, named(name, score))), None)

    def headline(self, metric: str) -> Score | None:
        """The score of all test images together; where it is not known, the mean over sites."""
        score = self.pooled.best(metric) if self.pooled else None
        return score if score and score.known else self.best_mean(metric) or score

    def by_site(self, metric: str) -> dict[str, Score]:
        """A score of all classes at each site that has it."""
        scores = {site: record.best(metric) for site, record in self.sites.items()}
        return {site: score for site, score in scores.items() if score.known}


def scores_of(run: ReadRun, minimum: int | None = None, hidden: Sequence[bool] = ()) -> RunScores:
    """All scores of a run; the same run always gives the same intervals.

    Args:
        run: with the records of its sites.
        minimum: smallest number of cases that may be shown; that of the run if None.
        hidden: classes whose counts are hidden everywhere.
    """
    records = {site: replace(one, stream=(site,)) for site, one in run.tests.sites.items() if one.images or one.exact}
    if not records:
        return RunScores(pooled=run.tests.together.sheet if run.tests.together else None)
    together = run.tests.together or _together(list(records.values()))
    groups = _communities(records, run.origin.communities)
    least = run.origin.minimum if minimum is None else minimum
    if least > 1 or any(hidden):
        records = _disclosed(records, least, hidden)
        together = _disclosed({"": together}, least, hidden)[""] if together else None
        groups = {name: replace(one, minimum=least, masked=True) for name, one in groups.items()}
    sites = {site: record.sheet for site, record in records.items()}
    return RunScores(
        sites,
        {name: record.sheet for name, record in groups.items()},
        together.sheet if together else None,
        mean_over_sites([sheet.scores for sheet in sites.values()]),
        mean_references(list(sites.values())),
    )


def _together(records: Sequence[EvalRecord]) -> EvalRecord | None:
    """The record of all images; a policy may let scores out without the number of images, which a sum needs."""
    counted = [record for record in records if record.images]
    if not counted:
        return None
    part = f"{len(counted)} of {len(records)} sites" if len(counted) < len(records) else ""
    return replace(pooled(counted), part=part)


def _communities(records: Mapping[str, EvalRecord], communities: Mapping[str, str]) -> dict[str, EvalRecord]:
    """The record of the sites of each community together."""
    members: dict[str, list[EvalRecord]] = {}
    for site, record in records.items():
        if site in communities and record.questions:
            members.setdefault(communities[site], []).append(record)
    return {name: pooled(records, ("community", name)) for name, records in members.items()}


def mean_over_sites(sites: Sequence[Mapping[str, Score]]) -> dict[str, Score]:
    """Unweighted means over sites of scores over all classes, by a name that says so where a site has none."""
    whole = [{name: score for name, score in scores.items() if not score.of} for scores in sites]
    return {named(name, score): score for name, score in mean_over(whole, "sites").items()}


def mean_references(sites: Sequence[ScoreSheet]) -> dict[str, dict[str, float]]:
    """Means of the sites' references, each over the sites that are in the mean of the model's score.

    A site with few classes has high references, so those of all images together are no measure of a mean over sites.
    """
    kinds = {
        ALWAYS_AT_SITES: [sheet.always for sheet in sites],
        CHANCE: [sheet.references.get(CHANCE, {}) for sheet in sites],
        **{
            name: [sheet.references.get(name, {}) for sheet in sites]
            for name in dict.fromkeys(name for sheet in sites for name in sheet.models_beside)
        },
    }
    means = {kind: _reference_means(references, sites) for kind, references in kinds.items()}
    return {kind: values for kind, values in means.items() if values}


def _reference_means(references: Sequence[Mapping[str, float]], sites: Sequence[ScoreSheet]) -> dict[str, float]:
    means = {}
    for name in dict.fromkeys(name for sheet in sites for name in sheet.scores):
        scored = [row for row, sheet in zip(references, sites, strict=True) if sheet.score(name).known]
        if scored and all(name in row for row in scored):
            means[name] = round(fmean(row[name] for row in scored), 6)
    return means


def _disclosed(records: Mapping[str, EvalRecord], minimum: int, hidden: Sequence[bool]) -> dict[str, EvalRecord]:
    """The records without numbers of cases that must not be shown, and without scores of so few.

    Classes by site are a table whose sums are known, and so are the classes of all images together. A community is a sum of
    sites that are shown beside it, so nothing but its scores is shown. A simulation has nothing to hide.
    """
    behind = {name: one.images if one.cases is None else one.cases for name, one in records.items()}
    totals = shown_counts(behind, minimum)
    counts = np.array([record.positives for record in records.values()], np.int64)
    classes = suppressed(counts, minimum) | np.array(hidden or [False] * counts.shape[1])
    return {
        name: replace(record.without(hides), minimum=minimum, masked=totals[name] is None)
        for (name, record), hides in zip(records.items(), classes.tolist(), strict=True)
    }


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


def table_rows(run: ReadRun) -> list[Row]:
    """The rows for one model of a run: sites, their mean, all images together, and references."""
    scores, names = scores_of(run), run.task.scores
    rows = [_row(run.site_name(site), record, names) for site, record in scores.sites.items()]
    rows += [Row(run.site_name(site), 0, None, {}) for site in run.tests.sites if site not in scores.sites]
    rows.append(
        Row("mean", None, scores.mean_references.get(ALWAYS_AT_SITES, {}).get("accuracy"), _means(scores, names))
    )
    if scores.pooled:
        rows.append(_row("pooled", scores.pooled, names))
        for name, values in scores.pooled.references.items():
            known = {key: Score(values[key], values[key], values[key], None) for key in names if key in values}
            rows.append(Row(name, None, None, known))
    return rows


def _row(name: str, sheet: ScoreSheet, names: tuple[str, ...]) -> Row:
    return Row(name, sheet.images, sheet.always.get("accuracy"), {key: sheet.best(key) for key in names})


def _means(scores: RunScores, names: tuple[str, ...]) -> dict[str, Score]:
    return {name: scores.best_mean(name) or no_score("no site has it") for name in names}
