"""Caveats of a run's numbers, for the first screen of its report."""

from __future__ import annotations

import math

import numpy as np

from grandrounds.evaluation.bootstrap import MIN_CASES, joined
from grandrounds.reporting.comparison import MIN_SEEDS, Comparison
from grandrounds.reporting.format import format_list
from grandrounds.reporting.run import MODELS, Run
from grandrounds.reporting.scores import RunScores

WIDE_GAP = 0.15
CHANCE = 0.05


def caveats_of(run: Run, scores: RunScores) -> list[str]:
    """Sentences about one run, the most serious first."""
    small = [f"{site} ({group.cases})" for site, group in scores.sites.items() if group.cases < MIN_CASES]
    found = [
        *_of_status(run),
        *_of_sites(run),
        *_of_classes(run),
        *([f"Sites with fewer than {MIN_CASES} test cases: {format_list(small)}."] if small else []),
        *_of_shift(run, scores),
        *_of_calibration(scores),
    ]
    if run.predictions and run.unit == "image":
        found.append(
            "Intervals treat every image as an independent case: which images are of one patient or lesion is not known "
            "here, so the true intervals may be wider."
        )
    if run.model == "own" and run.predictions and not run.is_local:
        found.append("Scores are of each site's own choice of model; no one model has all of them.")
    if scores.site_reported:
        curves = "there are no curves"
        if run.curve_counts:
            silent = [site for site in run.site_metrics if site not in run.curve_counts]
            without = f" and without {format_list(silent)}" if silent else ""
            curves = f"curves are of counts of several patients each{without}"
        found.append(
            f"Only scores of whole sites are known and no predictions: there are no intervals, {curves}, and no scores of "
            "single classes."
        )
    return [*found, *(f"{note[0].upper()}{note[1:]}." for note in run.notes)]


def caveats_of_comparison(methods: dict[str, list[Run]], comparison: Comparison | None) -> list[str]:
    """Sentences about several runs together."""
    single = [method for method, runs in methods.items() if len(runs) < MIN_SEEDS]
    found = []
    if single:
        minimum = min(len(methods[method]) for method in single)
        seeds = "one seed" if minimum == 1 else f"{minimum} seeds"
        found.append(
            f"{format_list(single)}: fewer than {MIN_SEEDS} seeds (at least one method has {seeds}). Another seed can "
            "change a score by more than methods differ."
        )
    if comparison is None:
        return found
    models = {run.model: method for method, runs in methods.items() for run in runs if run.predictions}
    if len(models) > 1:
        found.append(
            f"Scores are of {MODELS['common']} for some methods ({models['common']}) and of {MODELS['own']} for others "
            f"({models['own']}): this choice explains a part of their difference."
        )
    unclear = [
        method
        for method, difference in comparison.differences.items()
        if math.isnan(difference.adjusted_p) or difference.adjusted_p >= CHANCE
    ]
    if unclear:
        found.append(
            f"{format_list(unclear)}: the difference to {comparison.reference} could be chance (Bonferroni-adjusted p of "
            f"{CHANCE:.2f} or more, or too few {comparison.kind}s)."
        )
    if comparison.left_out:
        found.append(
            f"{format_list(comparison.left_out)}: no results to pair with those of {comparison.reference}; not compared."
        )
    return found


def _of_status(run: Run) -> list[str]:
    if run.complete:
        return []
    words = {"running": "was stopped or is still running", "aborted": "was aborted", "failed": "failed"}
    reason = f" ({run.reason})" if run.reason else ""
    return [
        f"The run {words.get(run.status, f'has status {run.status}')} after {run.rounds_done} of {run.rounds} "
        f"rounds{reason}: its model has not been tested, and validation scores flatter it."
        if not run.predictions
        else f"The run {words.get(run.status, run.status)} after {run.rounds_done} of {run.rounds} rounds{reason}."
    ]


def _of_sites(run: Run) -> list[str]:
    found = []
    dropped = run.dropped()
    if dropped:
        listed = [
            f"{site} (round {format_list([str(number) for number in rounds])})" for site, rounds in dropped.items()
        ]
        found.append(f"No usable answer in a round in which the site was asked: {format_list(listed)}.")
    silent = [site for site in run.sites if run.contributions and not run.contributions.get(site)]
    if silent:
        found.append(f"Contributed to no round: {format_list(silent)}.")
    untested = [site for site in run.sites if site not in run.predictions]
    if run.predictions and untested:
        found.append(f"Without a test of the final model: {format_list(untested)}; no score includes them.")
    return found


def _of_classes(run: Run) -> list[str]:
    if not run.predictions:
        return []
    positives = joined(list(run.predictions.values())).positives()
    absent = [name for name, count in zip(run.classes, positives, strict=True) if not count]
    small = [
        f"{name} ({count})"
        for name, count in zip(run.classes, positives.tolist(), strict=True)
        if 0 < count < MIN_CASES
    ]
    found = []
    if absent:
        pronoun = "it" if len(absent) == 1 else "them"
        found.append(
            f"No test image of {format_list(absent)} at any site: nothing is known about detecting {pronoun}, and no mean "
            f"includes {pronoun}."
        )
    if small:
        found.append(f"Too few test cases (fewer than {MIN_CASES}): {format_list(small)}.")
    return found


def _of_shift(run: Run, scores: RunScores) -> list[str]:
    """Whether sites differ by more than their patients: in the mix of classes, or in the model's accuracy."""
    found = []
    known = {site: group for site, group in scores.sites.items() if group.cases >= MIN_CASES}
    if len(known) > 1:
        accuracy = {site: group.scores["balanced_accuracy"] for site, group in known.items()}
        best = max(accuracy, key=lambda site: accuracy[site].value)
        worst = min(accuracy, key=lambda site: accuracy[site].value)
        if accuracy[best].low > accuracy[worst].high:
            found.append(
                f"The model is not equally good at all sites: balanced accuracy {accuracy[worst].value:.2f} at {worst}, "
                f"{accuracy[best].value:.2f} at {best}, and their intervals do not overlap."
            )
        mixes = {site: np.bincount(run.predictions[site].labels, minlength=len(run.classes)) for site in known}
        shares = np.stack([mix / mix.sum() for mix in mixes.values()])
        distances = np.abs(shares - shares.mean(axis=0)).sum(axis=1) / 2
        if distances.max() > 2 * WIDE_GAP:
            found.append(
                f"Sites see different mixes of classes (furthest from the mean: {list(mixes)[int(distances.argmax())]}, "
                f"total variation {distances.max():.2f}), so the sites' scores are not comparable."
            )
    return found


def _of_calibration(scores: RunScores) -> list[str]:
    error = scores.pooled.confidence.get("ece") if scores.pooled else None
    if error is None or error <= WIDE_GAP:
        return []
    return [f"Probabilities are off by {error:.2f} on average (expected calibration error): do not use them as risks."]
