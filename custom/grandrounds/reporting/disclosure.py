"""What a report on patients of real hospitals must not count: small numbers of cases, and those that would give them away.

A simulation on one machine has nothing to hide: its smallest count is 1. See
:mod:`~grandrounds.evaluation.clinical.suppression`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from grandrounds.evaluation.bootstrap import Estimate
from grandrounds.evaluation.clinical.suppression import shown_counts, suppressed
from grandrounds.reporting.scores import Estimates, EvalGroup, RunScores

POSITIVES = "sensitivity"
"""The score that rests on the cases of a class."""


def disclosed(scores: RunScores, minimum: int) -> RunScores:
    """The same scores; numbers of cases that must not be shown are marked as hidden.

    Classes by site are a table whose sums are known. A community's class is hidden with that of one of its sites.
    """
    if minimum <= 1:
        return scores
    totals = shown_counts({site: group.cases for site, group in scores.sites.items()}, minimum)
    classes = _hidden_classes(scores, minimum)
    sites = {site: _group(group, totals[site] is None, classes[site], minimum) for site, group in scores.sites.items()}
    pooled = scores.pooled and _pooled(scores.pooled, minimum)
    return replace(
        scores,
        sites=sites,
        communities={name: _community(group, minimum) for name, group in scores.communities.items()},
        pooled=pooled,
        mean=_marked(scores.mean, minimum),
        reported=_marked(scores.reported, minimum),
        site_reported={site: _marked(found, minimum) for site, found in scores.site_reported.items()},
    )


def without_classes(scores: RunScores, hidden: Sequence[bool]) -> RunScores:
    """The same scores with the numbers of cases of some classes hidden everywhere."""

    def hide(group: EvalGroup) -> EvalGroup:
        """The group with these classes hidden."""
        marked: list[Estimates] = [
            {name: one._replace(hidden=one.hidden or (hides and one.cases > 0)) for name, one in found.items()}
            for found, hides in zip(group.classes, hidden, strict=True)
        ]
        return replace(group, classes=marked)

    sites = {site: hide(group) for site, group in scores.sites.items()}
    return replace(scores, sites=sites, pooled=scores.pooled and hide(scores.pooled))


def _marked(estimates: Estimates, minimum: int, hidden: bool = False) -> dict[str, Estimate]:
    return {
        name: estimate._replace(hidden=bool(estimate.cases) and (hidden or estimate.cases < minimum))
        for name, estimate in estimates.items()
    }


def _hidden_classes(scores: RunScores, minimum: int) -> dict[str, list[bool]]:
    if not scores.sites:
        return {}
    counts = np.array([_positives(group) for group in scores.sites.values()], np.int64)
    return dict(zip(scores.sites, suppressed(counts, minimum).tolist(), strict=True))


def _positives(group: EvalGroup) -> list[int]:
    return [found[POSITIVES].cases for found in group.classes]


def _pooled(group: EvalGroup, minimum: int) -> EvalGroup:
    counts = {str(number): count for number, count in enumerate(_positives(group))}
    hidden = [count is None for count in shown_counts(counts, minimum).values()]
    return _group(group, group.cases < minimum, hidden, minimum)


def _community(group: EvalGroup, minimum: int) -> EvalGroup:
    """A community is a sum of sites that are shown beside it, so nothing but its scores is shown."""
    return _group(group, True, [True] * len(group.classes), minimum)


def _group(group: EvalGroup, hidden: bool, classes: list[bool], minimum: int) -> EvalGroup:
    marked: list[Mapping[str, Estimate]] = [
        _marked(found, minimum, hides) for found, hides in zip(group.classes, classes, strict=True)
    ]
    shares = tuple(np.nan if hides else share for share, hides in zip(group.shares, classes, strict=False))
    return replace(group, hidden=hidden, scores=_marked(group.scores, minimum, hidden), classes=marked, shares=shares)
