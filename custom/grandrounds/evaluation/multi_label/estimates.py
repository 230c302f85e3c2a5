"""Scores of findings with 95 % intervals, of each finding and as means over the findings with enough cases.

A finding counts with ``MIN_CASES`` cases that have an image with it, and as many with an image without it. The intervals of
single findings are those of two classes (:mod:`~grandrounds.evaluation.estimates`). Findings are of the same
patients: their correlation is from bootstrap samples of the patients; where only counts are known it is taken to be one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.auc import weighted_areas
from grandrounds.evaluation.bootstrap import Cases, Estimate
from grandrounds.evaluation.clinical.binary import POSITIVE, positive_scores
from grandrounds.evaluation.counts import HIDDEN, SiteCounts, pooled_counts
from grandrounds.evaluation.estimates import (
    AUC_RESAMPLES,
    ClassCounts,
    auc_estimates,
    class_estimates,
    counts_of,
    score_estimates,
)
from grandrounds.evaluation.intervals import Interval, combined, correlations

SCORES = ("balanced_accuracy", "precision", "sensitivity", "f1", "specificity")
WITHHELD = Estimate(math.nan, math.nan, math.nan, -1)
MEANS: Mapping[str, str] = {"auc_macro": "auroc", "balanced_accuracy": "balanced_accuracy", "f1_macro": "f1"}
"""Means over findings, and of which score each is."""
CHANCE: Mapping[str, float] = {"auc_macro": 0.5, "balanced_accuracy": 0.5}
"""The scores of guessing."""


def estimates_of_findings(findings: Sequence[Cases]) -> list[dict[str, Estimate]]:
    """Scores of each finding: AUROC, average precision, and those of its prediction, see :func:`estimates_of_counts`."""
    return [{**auc_estimates(one)[POSITIVE], **estimates_of_counts(counts_of(one))} for one in findings]


def estimates_of_counts(counts: ClassCounts) -> dict[str, Estimate]:
    """Sensitivity, specificity, precision and F1 of one finding, and the mean of the first two, its balanced accuracy."""
    found = class_estimates(counts)[POSITIVE]
    enough = int(counts.positives.min())
    return {
        "balanced_accuracy": score_estimates(counts)["balanced_accuracy"],
        **{name: one if name == "specificity" else one._replace(cases=enough) for name, one in found.items()},
    }


def means_of_findings(
    scores: Sequence[Mapping[str, Estimate]], related: Mapping[str, NDArray[np.float64]] | None = None
) -> dict[str, Estimate]:
    """Unweighted means over the findings with enough cases; a mean without one is left out.

    Args:
        scores: of each finding.
        related: correlations between findings by score, shape ``(findings, findings)``; None where they are not known.
    """
    means = {}
    for name, score in MEANS.items():
        rows = [n for n, one in enumerate(scores) if score in one and one[score].enough and one[score].value >= 0]
        if not rows:
            continue
        values, low, high, cases = (np.array(part) for part in zip(*(scores[n][score][:4] for n in rows), strict=True))
        correlation = related[score][np.ix_(rows, rows)] if related else np.ones((len(rows), len(rows)))
        mean = combined(values, Interval(low, high), np.ones(len(rows)), correlation)
        means[name] = Estimate(*mean, int(cases.min()))
    return means


def correlations_of_findings(
    findings: Sequence[Cases], generator: np.random.Generator, resamples: int = AUC_RESAMPLES
) -> dict[str, NDArray[np.float64]]:
    """Correlations of AUROC, balanced accuracy and F1 between findings over bootstrap samples of the patients.

    Args:
        findings: of the same images; the groups of all have the same numbers.
        generator: of the samples.
        resamples: their number.
    """
    patients = 1 + max(int(one.groups.max(initial=-1)) for one in findings)
    drawn = generator.multinomial(patients, np.full(patients, 1 / patients), size=resamples).astype(np.float64)
    draws: dict[str, list[NDArray[np.float64]]] = {score: [] for score in MEANS.values()}
    for one in findings:
        weights, (positive, scores) = drawn[:, one.groups], positive_scores(one)
        called = one.predicted == POSITIVE
        true, missed, false, rest = (
            weights @ mask for mask in (positive & called, positive & ~called, ~positive & called, ~positive & ~called)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            draws["balanced_accuracy"].append((true / (true + missed) + rest / (rest + false)) / 2)
            draws["f1"].append(2 * true / (2 * true + missed + false))
        draws["auroc"].append(weighted_areas(positive, scores, weights).auroc)
    return {score: correlations(np.stack(columns, axis=1)) for score, columns in draws.items()}


def pooled_findings(sites: Sequence[SiteCounts]) -> list[dict[str, Estimate]]:
    """Scores of each finding from the counts that sites have released, without areas.

    Only sites that show a finding count for it; scores of one that no site shows are withheld.
    """
    found = []
    for number in range(len(sites[0].images)):
        parts = [SiteCounts(one.images[number], one.patients[number]) for one in sites]
        shown = [part for part in parts if (part.images != HIDDEN).all()]
        images = float(sum(part.images[:, :2].sum() for part in shown))
        right = float(sum(part.images[:, 0].sum() for part in shown))
        found.append(
            estimates_of_counts(pooled_counts(shown, images, right))
            if shown and images
            else dict.fromkeys(SCORES, WITHHELD)
        )
    return found
