"""Scores of a run by site, community, class and of all images together, each with its cases and interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from grandrounds.evaluation.bootstrap import MIN_CASES, Cases, Estimate, joined
from grandrounds.evaluation.calibration import confidence_metrics
from grandrounds.evaluation.counts import pooled_counts
from grandrounds.evaluation.estimates import (
    ClassCounts,
    auc_estimates,
    class_correlations,
    class_estimates,
    counts_of,
    macro_auroc,
    mean_over_sites,
    reference_scores,
    score_estimates,
)
from grandrounds.evaluation.multi_label.estimates import CHANCE as FINDING_CHANCE
from grandrounds.evaluation.multi_label.estimates import (
    correlations_of_findings,
    estimates_of_findings,
    means_of_findings,
    pooled_findings,
)
from grandrounds.evaluation.multi_label.metrics import joined_findings_of
from grandrounds.reporting.run import Run
from grandrounds.seeding import numpy_generator

Estimates = Mapping[str, Estimate]
ALWAYS = "always "
"""Before the most frequent class, in the name of a reference."""
ALWAYS_AT_SITES = "always"
CHANCE = "chance"


@dataclass(frozen=True, eq=False)
class EvalGroup:
    """Scores of the test images of a site, of a community, or of all sites.

    Attributes:
        cases: how many independent cases the images are of.
        scores: of all classes together.
        classes: of each class, in the vocabulary's order.
        confidence: calibration and risk of the probabilities, without intervals; empty where they are not known.
        references: the scores of always predicting the most frequent class, and of guessing.
        shares: the classes' shares of the images, NaN where they are not known.
        hidden: whether the numbers of images and cases must not be shown.
    """

    images: int
    cases: int
    scores: Estimates
    classes: list[Estimates]
    confidence: Mapping[str, float]
    references: Mapping[str, Mapping[str, float]]
    shares: tuple[float, ...]
    hidden: bool = False

    @property
    def majority(self) -> str | None:
        """The most frequent class; None where it is not known."""
        return next((name.removeprefix(ALWAYS) for name in self.references if name.startswith(ALWAYS)), None)

    def to_json(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Plain values."""
        return {
            "images": None if self.hidden else self.images,
            "cases": None if self.hidden else self.cases,
            "scores": _plain(self.scores),
            "classes": {name: _plain(found) for name, found in zip(names, self.classes, strict=True)},
            "confidence": {name: round(value, 6) for name, value in self.confidence.items()},
            "references": _rounded(self.references),
        }


@dataclass(frozen=True, eq=False)
class RunScores:
    """All scores of a run.

    Attributes:
        sites: at each site.
        communities: of the sites of each community together.
        pooled: of all test images together; None without any.
        mean: unweighted means over sites.
        mean_references: the same means of always predicting each site's most frequent class, and of guessing.
        reported: of all test images together, as a result gives them that has no counts to compute them from.
        site_reported: of each site, as it reported them, where its predictions are not here; without intervals.
    """

    sites: Mapping[str, EvalGroup]
    communities: Mapping[str, EvalGroup]
    pooled: EvalGroup | None
    mean: Estimates
    mean_references: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    reported: Estimates = field(default_factory=dict)
    site_reported: Mapping[str, Estimates] = field(default_factory=dict)

    def headline(self, metric: str) -> Estimate | None:
        """The score of all test images together; where it is not known, the mean over sites."""
        pooled = self.pooled.scores if self.pooled else self.reported
        return pooled.get(metric) or self.mean.get(metric)

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
            "mean_references": _rounded(self.mean_references),
            "reported": _plain(self.reported),
            "site_reported": {site: _plain(scores) for site, scores in self.site_reported.items()},
        }


def scores_of(run: Run) -> RunScores:
    """Compute all scores of a run; the same run always gives the same intervals."""
    if run.multi:
        return _scores_of_findings(run)
    predictions = run.predictions
    if not predictions:
        by_site = {site: found for site, scores in run.site_metrics.items() if (found := _without_intervals(scores))}
        pooled = _of_counts(run, list(by_site)) if by_site and run.class_counts.keys() >= by_site.keys() else None
        sites = {site: _of_counts(run, [site]) for site in by_site} if pooled else {}
        mean = mean_over_sites([group.scores for group in sites.values()] or list(by_site.values()))
        references = mean_references(list(sites.values()))
        return RunScores(sites, {}, pooled, mean, references, _without_intervals(run.reported_metrics), by_site)
    members: dict[str, list[str]] = {}
    for site in predictions:
        if site in run.communities:
            members.setdefault(run.communities[site], []).append(site)
    sites = {site: _group(run, cases, site) for site, cases in predictions.items()}
    return RunScores(
        sites=sites,
        communities={
            name: _group(run, joined([predictions[site] for site in sites]), "community", name)
            for name, sites in members.items()
        },
        pooled=_group(run, joined(list(predictions.values())), "pooled", with_auc=True),
        mean=mean_over_sites([group.scores for group in sites.values()]),
        mean_references=mean_references(list(sites.values())),
    )


def _scores_of_findings(run: Run) -> RunScores:
    """Scores of findings, from predictions or else from the counts that the sites have released."""
    found = run.findings
    by_site: dict[str, dict[str, Estimate]] = {}
    pooled: EvalGroup | None = None
    if found:
        sites = {site: _finding_group(findings, site) for site, findings in found.items()}
        pooled = _finding_group(joined_findings_of(list(found.values())), "pooled")
    else:
        by_site = {site: one for site, scores in run.site_metrics.items() if (one := _without_intervals(scores))}
        counted = bool(by_site) and run.class_counts.keys() >= by_site.keys()
        sites = {site: _counted_findings(run, [site]) for site in by_site} if counted else {}
        pooled = _counted_findings(run, list(by_site)) if counted else None
    members: dict[str, list[str]] = {}
    for site in found:
        if site in run.communities:
            members.setdefault(run.communities[site], []).append(site)
    mean = mean_over_sites([group.scores for group in sites.values()] or list(by_site.values()))
    return RunScores(
        sites=sites,
        communities={
            name: _finding_group(joined_findings_of([found[site] for site in own]), "community", name)
            for name, own in members.items()
        },
        pooled=pooled,
        mean={**mean_over_sites(list(by_site.values())), **mean},
        mean_references={CHANCE: FINDING_CHANCE},
        site_reported=by_site,
    )


def _finding_group(findings: Sequence[Cases], *purpose: str) -> EvalGroup:
    related = correlations_of_findings(findings, numpy_generator("report", "findings", *purpose))
    of_finding = estimates_of_findings(findings)
    scores, references = means_of_findings(of_finding, related), {CHANCE: FINDING_CHANCE}
    shares = tuple(float(one.labels.mean()) if len(one.labels) else np.nan for one in findings)
    images = max(len(one.labels) for one in findings)
    cases = len(np.unique(np.concatenate([one.groups for one in findings])))
    return EvalGroup(images, cases, scores, list(of_finding), {}, references, shares)


def _counted_findings(run: Run, sites: Sequence[str]) -> EvalGroup:
    of_finding = pooled_findings([run.class_counts[site] for site in sites])
    images = int(sum(run.site_metrics[site]["n"] for site in sites))
    unknown = tuple(np.nan for _ in run.classes)
    scores, references = means_of_findings(of_finding), {CHANCE: FINDING_CHANCE}
    return EvalGroup(images, images, scores, list(of_finding), {}, references, unknown)


def _without_intervals(scores: Mapping[str, float]) -> dict[str, Estimate]:
    images = int(scores.get("n", 0))
    return {
        name: Estimate(value, np.nan, np.nan, images)
        for name, value in scores.items()
        if images and name != "n" and np.isfinite(value)
    }


def _group(run: Run, cases: Cases, *purpose: str, with_auc: bool = False) -> EvalGroup:
    counts = counts_of(cases)
    related = class_correlations(cases, numpy_generator("report", *purpose))
    scores, classes = score_estimates(counts, related), class_estimates(counts)
    if with_auc and cases.probabilities is not None:
        under = auc_estimates(cases)
        classes = [{**counted, **found} for counted, found in zip(classes, under, strict=True)]
        scores["auroc_macro"] = macro_auroc(cases, under, numpy_generator("report", "areas"))
    confidence = {}
    if cases.probabilities is not None and cases.count >= MIN_CASES:
        confidence = confidence_metrics(cases.labels, cases.probabilities)
    return _eval_group(run, counts, scores, classes, confidence)


def _of_counts(run: Run, sites: Sequence[str]) -> EvalGroup:
    """Scores from the counts that sites have released; their intervals take the images of a patient to agree."""
    metrics = [run.site_metrics[site] for site in sites]
    right = sum(scores.get("accuracy", np.nan) * scores["n"] for scores in metrics)
    counts = pooled_counts([run.class_counts[site] for site in sites], sum(scores["n"] for scores in metrics), right)
    return _eval_group(run, counts, score_estimates(counts), class_estimates(counts), {})


def _eval_group(
    run: Run, counts: ClassCounts, scores: Estimates, classes: Sequence[Estimates], confidence: Mapping[str, float]
) -> EvalGroup:
    shares = tuple(float(share) for share in (counts.correct + counts.missed) / max(counts.images, 1))
    references = reference_scores(counts, run.classes)
    return EvalGroup(int(counts.images), counts.cases, scores, list(classes), confidence, references, shares)


def _rounded(references: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {name: {key: round(value, 6) for key, value in found.items()} for name, found in references.items()}


def mean_references(sites: Sequence[EvalGroup]) -> dict[str, dict[str, float]]:
    """Means of the sites' references, each over the sites that are in the mean of the model's score.

    A site with few classes has high references, so those of all images together are no measure of a mean over sites.
    """
    kinds = {
        ALWAYS_AT_SITES: [group.references.get(f"{ALWAYS}{group.majority}", {}) for group in sites],
        CHANCE: [group.references[CHANCE] for group in sites],
    }
    found: dict[str, dict[str, float]] = {}
    for kind, references in kinds.items():
        for name in dict.fromkeys(name for group in sites for name in group.scores):
            scored = [row for row, group in zip(references, sites, strict=True) if _counts(group.scores.get(name))]
            if scored and all(name in row for row in scored):
                found.setdefault(kind, {})[name] = fmean(row[name] for row in scored)
    return found


def _counts(estimate: Estimate | None) -> bool:
    return estimate is not None and estimate.enough and not math.isnan(estimate.value)


def _plain(estimates: Estimates) -> dict[str, Any]:
    return {name: estimate.to_json() for name, estimate in estimates.items()}
