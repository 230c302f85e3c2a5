"""Scores of a run by site, community, class and of all images together, each with its cases and interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.bootstrap import (
    MIN_CASES,
    Cases,
    Estimate,
    auc_estimates,
    class_estimates,
    joined,
    mean_estimate,
    resampled_confusions,
    score_estimates,
)
from grandrounds.evaluation.calibration import confidence_metrics
from grandrounds.reporting.run import Run
from grandrounds.seeding import numpy_generator

Estimates = Mapping[str, Estimate]


@dataclass(frozen=True, eq=False)
class EvalGroup:
    """Scores of the test images of a site, of a community, or of all sites.

    Attributes:
        cases: how many independent cases the images are of.
        scores: of all classes together.
        classes: of each class, in the vocabulary's order.
        confidence: calibration and risk of the probabilities, without intervals; empty where they are not known.
    """

    images: int
    cases: int
    scores: Estimates
    classes: list[Estimates]
    confidence: Mapping[str, float]

    def to_json(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Plain values."""
        return {
            "images": self.images,
            "cases": self.cases,
            "scores": _plain(self.scores),
            "classes": {name: _plain(found) for name, found in zip(names, self.classes, strict=True)},
            "confidence": {name: round(value, 6) for name, value in self.confidence.items()},
        }


@dataclass(frozen=True, eq=False)
class RunScores:
    """All scores of a run.

    Attributes:
        sites: at each site.
        communities: of the sites of each community together.
        pooled: of all test images together; None without any.
        mean: unweighted means over sites.
        reported: of all test images together, as a result gives them that has no counts to compute them from.
        site_reported: of each site, as it reported them, where its predictions are not here; without intervals.
    """

    sites: Mapping[str, EvalGroup]
    communities: Mapping[str, EvalGroup]
    pooled: EvalGroup | None
    mean: Estimates
    reported: Estimates = field(default_factory=dict)
    site_reported: Mapping[str, Estimates] = field(default_factory=dict)

    def headline(self, metric: str) -> Estimate | None:
        """The mean over sites, else the score of all test images together."""
        return self.mean.get(metric) or self.reported.get(metric)

    def by_site(self, metric: str) -> dict[str, Estimate]:
        """A score of all classes at each site that has it."""
        found = {site: group.scores for site, group in self.sites.items()} or self.site_reported
        return {site: scores[metric] for site, scores in found.items() if metric in scores}

    def to_json(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Plain values."""
        return {
            "sites": {site: group.to_json(names) for site, group in self.sites.items()},
            "communities": {name: group.to_json(names) for name, group in self.communities.items()},
            "pooled": self.pooled.to_json(names) if self.pooled else None,
            "mean": _plain(self.mean),
            "reported": _plain(self.reported),
            "site_reported": {site: _plain(scores) for site, scores in self.site_reported.items()},
        }


def scores_of(run: Run) -> RunScores:
    """Compute all scores of a run; the same run always gives the same intervals."""
    predictions = run.predictions
    if not predictions:
        by_site = {site: found for site, scores in run.site_metrics.items() if (found := _without_intervals(scores))}
        return RunScores({}, {}, None, _mean_of(by_site), _without_intervals(run.reported_metrics), by_site)
    draws = {site: resampled_confusions(cases, numpy_generator("report", site)) for site, cases in predictions.items()}
    members: dict[str, list[str]] = {}
    for site in predictions:
        if site in run.communities:
            members.setdefault(run.communities[site], []).append(site)
    together = joined(list(predictions.values()))
    return RunScores(
        sites={site: _group(cases, draws[site]) for site, cases in predictions.items()},
        communities={
            name: _group(joined([predictions[site] for site in sites]), _sum([draws[site] for site in sites]))
            for name, sites in members.items()
        },
        pooled=_group(together, _sum(list(draws.values())), with_auc=True),
        mean=mean_estimate({site: cases.confusion() for site, cases in predictions.items()}, draws, together.count),
    )


def _without_intervals(scores: Mapping[str, float]) -> dict[str, Estimate]:
    images = int(scores.get("n", 0))
    return {
        name: Estimate(value, np.nan, np.nan, images)
        for name, value in scores.items()
        if images and name != "n" and np.isfinite(value)
    }


def _mean_of(sites: Mapping[str, Estimates]) -> dict[str, Estimate]:
    """Means over the sites that have a score and enough cases."""
    found: dict[str, list[Estimate]] = {}
    for scores in sites.values():
        for name, estimate in scores.items():
            if estimate.enough:
                found.setdefault(name, []).append(estimate)
    return {
        name: Estimate(fmean(one.value for one in known), np.nan, np.nan, sum(one.cases for one in known))
        for name, known in found.items()
    }


def _group(cases: Cases, draws: NDArray[np.float64], with_auc: bool = False) -> EvalGroup:
    confusion = cases.confusion()
    scores = score_estimates(confusion, draws, cases.count)
    classes: list[Estimates] = list(class_estimates(confusion, draws, cases.positives(), cases.negatives()))
    if with_auc and cases.probabilities is not None:
        under = auc_estimates(cases, numpy_generator("report", "areas"))
        classes = [{**counted, **found} for counted, found in zip(classes, under, strict=True)]
        scores = {**scores, "auroc_macro": _macro([found["auroc"] for found in under])}
    confidence = {}
    if cases.probabilities is not None and cases.count >= MIN_CASES:
        confidence = confidence_metrics(cases.labels, cases.probabilities)
    return EvalGroup(len(cases.labels), cases.count, scores, classes, confidence)


def _macro(areas: list[Estimate]) -> Estimate:
    """Mean over the classes with enough cases, without an interval; it rests on the rarest of them."""
    known = [area for area in areas if area.enough]
    if not known:
        return Estimate(np.nan, np.nan, np.nan, 0)
    return Estimate(fmean(area.value for area in known), np.nan, np.nan, min(area.cases for area in known))


def _sum(draws: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    total: NDArray[np.float64] = np.sum(np.stack(draws), axis=0)
    return total


def _plain(estimates: Estimates) -> dict[str, Any]:
    return {name: estimate.to_json() for name, estimate in estimates.items()}
