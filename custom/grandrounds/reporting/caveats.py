"""What to distrust in a run's numbers: said on the first screen, before anybody quotes them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from grandrounds.evaluation.cases import joined
from grandrounds.evaluation.estimates import MIN_CASES
from grandrounds.reporting.comparison import MIN_SEEDS, Comparison
from grandrounds.reporting.run import MODELS, Run
from grandrounds.reporting.scores import RunScores

MANY_NAMES = 6
WIDE_GAP = 0.15
CHANCE = 0.05


def caveats_of(run: Run, scores: RunScores) -> list[str]:
    """Sentences about one run, the gravest first."""
    found = [
        *_of_status(run),
        *_of_sites(run),
        *_of_classes(run),
        *_of_small_places(scores),
        *_of_shift(run, scores),
        *_of_calibration(scores),
    ]
    if run.places and run.unit == "image":
        found.append(
            "Intervals take every image for a case of its own: which images are of one patient or lesion is not known "
            "here, so the true intervals may be wider."
        )
    if run.model == "own" and run.places and not run.is_local:
        found.append("Scores are of each site's own choice of model; no one model has all of them.")
    if scores.sent:
        curves = "there are no curves"
        if run.curves:
            silent = [site for site in run.scored if site not in run.curves]
            without = f" and without {_listed(silent)}" if silent else ""
            curves = f"curves are of counts of several patients each{without}"
        found.append(
            f"Only scores of whole sites are known and no predictions: there are no intervals, {curves}, and no scores of "
            "single classes."
        )
    return [*found, *(f"{note[0].upper()}{note[1:]}." for note in run.notes)]


def doubts_of_comparison(methods: dict[str, list[Run]], comparison: Comparison | None) -> list[str]:
    """Sentences about several runs together."""
    single = [method for method, runs in methods.items() if len(runs) < MIN_SEEDS]
    found = []
    if single:
        fewest = min(len(methods[method]) for method in single)
        seeds = "one seed" if fewest == 1 else f"{fewest} seeds"
        found.append(
            f"{_listed(single)}: fewer than {MIN_SEEDS} seeds (at least one method has {seeds}). Another seed can "
            "change a score by more than methods differ."
        )
    if comparison is None:
        return found
    models = {run.model: method for method, runs in methods.items() for run in runs if run.places}
    if len(models) > 1:
        found.append(
            f"Scores are of {MODELS['common']} for some methods ({models['common']}) and of {MODELS['own']} for others "
            f"({models['own']}): a part of their difference is this choice."
        )
    unclear = [
        method
        for method, difference in comparison.differences.items()
        if math.isnan(difference.adjusted_p) or difference.adjusted_p >= CHANCE
    ]
    if unclear:
        found.append(
            f"{_listed(unclear)}: the difference to {comparison.reference} could be chance (Bonferroni-adjusted p of "
            f"{CHANCE:.2f} or more, or too few {comparison.kind}s to tell)."
        )
    if comparison.left_out:
        found.append(
            f"{_listed(comparison.left_out)}: no results to pair with those of {comparison.reference}; not compared."
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
        if not run.places
        else f"The run {words.get(run.status, run.status)} after {run.rounds_done} of {run.rounds} rounds{reason}."
    ]


def _of_sites(run: Run) -> list[str]:
    found = []
    dropped = run.dropped()
    if dropped:
        told = [f"{site} (round {_listed([str(number) for number in rounds])})" for site, rounds in dropped.items()]
        found.append(f"Asked without a usable answer: {_listed(told)}.")
    silent = [site for site in run.sites if run.contributions and not run.contributions.get(site)]
    if silent:
        found.append(f"Contributed to no round: {_listed(silent)}.")
    untested = [site for site in run.sites if site not in run.places]
    if run.places and untested:
        found.append(f"Without a test of the final model: {_listed(untested)}; no score is about them.")
    return found


def _of_classes(run: Run) -> list[str]:
    if not run.places:
        return []
    positives = joined(list(run.places.values())).positives()
    absent = [name for name, count in zip(run.classes, positives, strict=True) if not count]
    small = [
        f"{name} ({count})"
        for name, count in zip(run.classes, positives.tolist(), strict=True)
        if 0 < count < MIN_CASES
    ]
    found = []
    if absent:
        found.append(
            f"No test image of {_listed(absent)} at any site: nothing is known about finding "
            f"{'it' if len(absent) == 1 else 'them'}, and no mean includes {'it' if len(absent) == 1 else 'them'}."
        )
    if small:
        found.append(f"Too few test cases to tell (fewer than {MIN_CASES}): {_listed(small)}.")
    return found


def _of_small_places(scores: RunScores) -> list[str]:
    small = [f"{site} ({place.cases})" for site, place in scores.sites.items() if place.cases < MIN_CASES]
    return [f"Sites with fewer than {MIN_CASES} test cases: {_listed(small)}."] if small else []


def _of_shift(run: Run, scores: RunScores) -> list[str]:
    """Whether sites differ by more than their patients: in the mix of classes, or in how well the model does."""
    found = []
    known = {site: place for site, place in scores.sites.items() if place.cases >= MIN_CASES}
    if len(known) > 1:
        accuracy = {site: place.scores["balanced_accuracy"] for site, place in known.items()}
        best = max(accuracy, key=lambda site: accuracy[site].value)
        worst = min(accuracy, key=lambda site: accuracy[site].value)
        if accuracy[best].low > accuracy[worst].high:
            found.append(
                f"The model is not equally good everywhere: balanced accuracy {accuracy[worst].value:.2f} at {worst}, "
                f"{accuracy[best].value:.2f} at {best}, and their intervals do not overlap."
            )
        mixes = {site: np.bincount(run.places[site].labels, minlength=len(run.classes)) for site in known}
        shares = np.stack([mix / mix.sum() for mix in mixes.values()])
        furthest = float(np.abs(shares - shares.mean(axis=0)).sum(axis=1).max() / 2)
        if furthest > 2 * WIDE_GAP:
            site = list(mixes)[int(np.abs(shares - shares.mean(axis=0)).sum(axis=1).argmax())]
            found.append(
                f"Sites see different mixes of classes (furthest from the mean: {site}, total variation "
                f"{furthest:.2f}), so scores of sites are not scores of one task."
            )
    return found


def _of_calibration(scores: RunScores) -> list[str]:
    error = scores.pooled.sureness.get("ece") if scores.pooled else None
    if error is None or error <= WIDE_GAP:
        return []
    return [f"Probabilities are off by {error:.2f} on average (expected calibration error): do not read them as risks."]


def _listed(names: Sequence[str]) -> str:
    """Names with commas; of many the first and how many more.

    Example:
        >>> _listed(["a", "b"]), _listed(list("abcdefgh"))
        ('a, b', 'a, b, c, d, e, f and 2 more')
    """
    if len(names) <= MANY_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:MANY_NAMES])} and {len(names) - MANY_NAMES} more"
