"""Scores of a run by site, community, and of all images together: the evaluation records of its sites, and sums of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np

from grandrounds.evaluation.clinical.suppression import shown_counts, suppressed
from grandrounds.evaluation.estimates import mean_over
from grandrounds.evaluation.record import ALWAYS, CHANCE, EvalRecord, pooled
from grandrounds.evaluation.score import Score, named
from grandrounds.reporting.run import Run

ALWAYS_AT_SITES = "always"
POSITIVES = "sensitivity"
"""The score that rests on the cases of a class."""


@dataclass(frozen=True, eq=False)
class RunScores:
    """All scores of a run. A table asks the records; no reader computes or hides a score.

    Attributes:
        sites: at each site.
        communities: of the sites of each community together.
        pooled: of all test images together; None without any.
        mean: unweighted means over sites; where some sites have no score, the name says over how many it is.
        mean_references: the same means of always predicting each site's most frequent class, and of guessing.
    """

    sites: Mapping[str, EvalRecord] = field(default_factory=dict)
    communities: Mapping[str, EvalRecord] = field(default_factory=dict)
    pooled: EvalRecord | None = None
    mean: Mapping[str, Score] = field(default_factory=dict)
    mean_references: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def best_mean(self, name: str) -> Score | None:
        """The mean of a score over the sites that have it, with its part where they are not all."""
        return next((score for key, score in self.mean.items() if key in (name, named(name, score))), None)

    def headline(self, metric: str) -> Score | None:
        """The score of all test images together; where it is not known, the mean over sites."""
        found = self.pooled.best(metric) if self.pooled else None
        return found if found and found.known else self.best_mean(metric) or found

    def by_site(self, metric: str) -> dict[str, Score]:
        """A score of all classes at each site that has it."""
        found = {site: record.best(metric) for site, record in self.sites.items()}
        return {site: score for site, score in found.items() if score.known}

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "sites": {site: record.scores_json() for site, record in self.sites.items()},
            "communities": {name: record.scores_json() for name, record in self.communities.items()},
            "pooled": self.pooled.scores_json() if self.pooled else None,
            "mean": {name: score.to_json() for name, score in self.mean.items()},
            "mean_references": {
                name: {key: round(value, 6) for key, value in found.items()}
                for name, found in self.mean_references.items()
            },
        }


def scores_of(run: Run, minimum: int | None = None, hidden: Sequence[bool] = ()) -> RunScores:
    """All scores of a run; the same run always gives the same intervals.

    Args:
        run: with the records of its sites.
        minimum: smallest number of cases that may be shown; that of the run if None.
        hidden: classes whose counts are hidden everywhere.
    """
    records = {site: replace(one, stream=(site,)) for site, one in run.tests.sites.items() if one.images}
    if not records:
        return RunScores(pooled=run.tests.together)
    members: dict[str, list[EvalRecord]] = {}
    for site, record in records.items():
        if site in run.origin.communities and record.questions:
            members.setdefault(run.origin.communities[site], []).append(record)
    shown = disclosed(
        RunScores(
            records,
            {name: pooled(parts, ("community", name)) for name, parts in members.items()},
            pooled(list(records.values())),
        ),
        run.origin.minimum if minimum is None else minimum,
        hidden,
    )
    sites = list(shown.sites.values())
    return replace(
        shown,
        mean=mean_over_sites([record.scores for record in sites]),
        mean_references=mean_references(sites),
    )


def mean_over_sites(sites: Sequence[Mapping[str, Score]]) -> dict[str, Score]:
    """Unweighted means over sites of scores over all classes, by a name that says so where a site has none."""
    whole = [{name: score for name, score in scores.items() if not score.of} for scores in sites]
    return {named(name, score): score for name, score in mean_over(whole, "sites").items()}


def mean_references(sites: Sequence[EvalRecord]) -> dict[str, dict[str, float]]:
    """Means of the sites' references, each over the sites that are in the mean of the model's score.

    A site with few classes has high references, so those of all images together are no measure of a mean over sites.
    """
    kinds = {
        ALWAYS_AT_SITES: [record.references.get(f"{ALWAYS}{record.majority}", {}) for record in sites],
        CHANCE: [record.references.get(CHANCE, {}) for record in sites],
    }
    found: dict[str, dict[str, float]] = {}
    for kind, references in kinds.items():
        for name in dict.fromkeys(name for record in sites for name in record.scores):
            scored = [row for row, one in zip(references, sites, strict=True) if one.score(name).known]
            if scored and all(name in row for row in scored):
                found.setdefault(kind, {})[name] = fmean(row[name] for row in scored)
    return found


def disclosed(scores: RunScores, minimum: int, hidden: Sequence[bool] = ()) -> RunScores:
    """The records without numbers of cases that must not be shown, and without scores of so few.

    Classes by site are a table whose sums are known. A community is a sum of sites that are shown beside it, so nothing but
    its scores is shown. A simulation on one machine has nothing to hide: its smallest count is 1.
    """
    if minimum <= 1 and not any(hidden):
        return scores
    totals = shown_counts({site: record.cases or 0 for site, record in scores.sites.items()}, minimum)
    counts = np.array([_positives(record) for record in scores.sites.values()], np.int64)
    classes = suppressed(counts, minimum) | np.array(hidden or [False] * counts.shape[1])
    sites = {
        site: replace(record.without(hides), minimum=minimum, masked=totals[site] is None)
        for (site, record), hides in zip(scores.sites.items(), classes.tolist(), strict=True)
    }
    together = scores.pooled
    if together:
        known = shown_counts({str(n): count for n, count in enumerate(_positives(together))}, minimum)
        hides = [known[str(number)] is None or (bool(hidden) and hidden[number]) for number in range(len(known))]
        masked = (together.cases or 0) < minimum
        together = replace(together.without(hides), minimum=minimum, masked=masked)
    communities = {name: replace(one, minimum=minimum, masked=True) for name, one in scores.communities.items()}
    return replace(scores, sites=sites, communities=communities, pooled=together)


def _positives(record: EvalRecord) -> list[int]:
    return [max(found[POSITIVES].cases or 0, 0) if POSITIVES in found else 0 for found in record.classes]
