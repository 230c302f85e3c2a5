"""What to distrust in a run's numbers, the most serious first, for the first screen of its report.

First whether the model is better than no model, then what it misses, then what is not known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import permutations
from statistics import NormalDist

import numpy as np

from grandrounds.evaluation.comparisons import MIN_SEEDS
from grandrounds.evaluation.intervals import CONFIDENCE, Z
from grandrounds.evaluation.record import ALWAYS, EvalRecord
from grandrounds.evaluation.score import MIN_CASES
from grandrounds.protocol.problem import SITE_NORM
from grandrounds.reporting.comparison import FINDING_METRIC, METRIC, Comparison
from grandrounds.reporting.format import format_list, format_number
from grandrounds.reporting.run import MODELS, Run
from grandrounds.reporting.scores import RunScores

WIDE_GAP = 0.15
CHANCE_LEVEL = 0.05
MISSED = 0.5
"""A class of whose images a larger share is missed is named."""


def caveats_of(run: Run, scores: RunScores) -> list[str]:
    """Sentences about one run, the most serious first."""
    small = [
        f"{site} ({group.cases})"
        for site, group in scores.sites.items()
        if group.cases is not None and group.cases < MIN_CASES
    ]
    found = [
        *_of_status(run),
        *(_of_use(run, scores.pooled) if scores.pooled else []),
        *(_of_missed(run, scores.pooled) if scores.pooled else []),
        *_of_classes(run, scores),
        *(
            [f"Scores of sites with few test cases (fewer than {MIN_CASES}) are marked: {format_list(small)}."]
            if small
            else []
        ),
        *_of_sites(run),
        *_of_selection(run),
        *_of_shift(run, scores),
        *_of_calibration(scores),
    ]
    if run.tests.questions and run.tests.unit == "image":
        found.append(
            "Intervals treat every image as an independent case: which images are of one patient or lesion is not known "
            "here, so the true intervals may be wider."
        )
    if run.tests.model == "own" and run.tests.questions and not run.log.is_local:
        found.append("Scores are of each site's own choice of model; no one model has all of them.")
    if run.log.problem.get("norm") == SITE_NORM:
        found.append(
            "Each site's scores are of the model with the batch norm statistics of its own images (problem.norm=site); no "
            "one model has all of them."
        )
    if scores.sites and not run.tests.questions:
        curves = "there are no curves"
        if run.tests.curves:
            silent = [site for site in run.tests.sites if site not in run.tests.curves]
            without = f" and without {format_list(silent)}" if silent else ""
            curves = f"curves are of counts of several patients each{without}"
        if scores.pooled and scores.pooled.tallies:
            found.append(
                f"Predictions stayed at the sites: scores are of the counts that they released, classes of few patients are "
                f"withheld, and {curves}."
            )
        else:
            found.append(
                f"Only scores of whole sites are known and no predictions: there are no intervals, {curves}, and no scores "
                "of single classes."
            )
    return [*found, *(f"{note[0].upper()}{note[1:]}." for note in run.origin.notes)]


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
    models = {run.tests.model: method for method, runs in methods.items() for run in runs if run.tests.questions}
    if len(models) > 1:
        found.append(
            f"Scores are of {MODELS['common']} for some methods ({models['common']}) and of {MODELS['own']} for others "
            f"({models['own']}): this choice may explain a part of their difference."
        )
    of_cases = [method for method, difference in comparison.differences.items() if difference.unit == "case"]
    if of_cases:
        found.append(
            f"{format_list(of_cases)}: the difference to {comparison.reference} is of two fixed models on the same test "
            "cases; it says nothing about other seeds."
        )
    unclear = [
        f"{method} ({format_number(difference.detectable, 3)})"
        for method, difference in comparison.differences.items()
        if math.isnan(comparison.adjusted[method]) or comparison.adjusted[method] >= CHANCE_LEVEL
    ]
    if unclear:
        found.append(
            f"The difference to {comparison.reference} could be chance (adjusted p of {CHANCE_LEVEL:.2f} or more, or no "
            "test); in parentheses, the smallest that would have been found with a probability of 80 %: "
            f"{format_list(unclear)}."
        )
    if comparison.left_out:
        found.append(
            f"{format_list(comparison.left_out)}: no results to pair with those of {comparison.reference}; not compared."
        )
    return found


def _of_status(run: Run) -> list[str]:
    if run.log.complete:
        return []
    words = {"running": "was stopped or is still running", "aborted": "was aborted", "failed": "failed"}
    reason = f" ({run.log.reason})" if run.log.reason else ""
    return [
        f"The run {words.get(run.log.status, f'has status {run.log.status}')} after {run.log.rounds_done} of "
        f"{run.log.rounds} rounds{reason}: its model has not been tested, and validation scores flatter it."
        if not run.tests.questions
        else f"The run {words.get(run.log.status, run.log.status)} after {run.log.rounds_done} of "
        f"{run.log.rounds} rounds{reason}."
    ]


def _of_sites(run: Run) -> list[str]:
    found = []
    dropped = run.log.dropped()
    if dropped:
        listed = [
            f"{site} (round {format_list([str(number) for number in rounds])})" for site, rounds in dropped.items()
        ]
        found.append(f"No usable answer in a round in which the site was asked: {format_list(listed)}.")
    silent = [site for site in run.log.sites if run.log.contributions and not run.log.contributions.get(site)]
    if silent:
        found.append(f"Contributed to no round: {format_list(silent)}.")
    untested = [site for site in run.log.sites if site not in run.tests.questions]
    if run.tests.questions and untested:
        found.append(f"Without a test of the final model: {format_list(untested)}; no score includes them.")
    return found


def _of_use(run: Run, pooled: EvalRecord) -> list[str]:
    """Whether the model is better than always predicting the most frequent class, and than guessing."""
    if not run.task.exclusive:
        area = pooled.scores.get(FINDING_METRIC)
        return [f"No better than guessing (macro AUROC {area.value:.2f})."] if area and area.low <= 0.5 else []
    accuracy, balanced = pooled.score("accuracy"), pooled.best("balanced_accuracy")
    if not accuracy.enough or not pooled.references:
        return []
    if accuracy.value == 1:
        return [
            "Every test image is classified correctly: check that no test image, and no other image of its patient, was "
            "used in training."
        ]
    chance = pooled.references["chance"]
    guessing = ""
    if balanced.enough and balanced.low <= chance["balanced_accuracy"]:
        guessing = f"balanced accuracy {balanced.value:.2f}, {chance['balanced_accuracy']:.2f} by guessing"
    if pooled.majority is None:
        return [f"No better than guessing ({guessing})."] if guessing else []
    always = pooled.references[f"{ALWAYS}{pooled.majority}"]["accuracy"]
    beside = f"always predicting {pooled.majority} (accuracy {accuracy.value:.2f} against {always:.2f})"
    called = {int(number) for cases in run.tests.predictions.values() for number in np.unique(cases.predicted)}
    if len(called) == 1:
        (number,) = called
        return [f"The model predicts {run.classes[number]} for every image: no better than {beside}."]
    if accuracy.value <= always:
        return [f"No better than {beside}{f' and than guessing ({guessing})' if guessing else ''}."]
    if accuracy.low <= always:
        return [f"Not clearly better than {beside}{f' and than guessing ({guessing})' if guessing else ''}."]
    return [f"No better than guessing ({guessing})."] if guessing else []


def _of_missed(run: Run, pooled: EvalRecord) -> list[str]:
    """The classes of which most images are missed, the worst first."""
    found = [
        (scores["sensitivity"], name)
        for name, scores in zip(run.classes, pooled.classes, strict=True)
        if scores["sensitivity"].enough and scores["sensitivity"].value < MISSED
    ]
    if not found:
        return []
    listed = [
        f"{1 - score.value:.0%} of {name}{'' if score.cases is None else f' (n = {score.cases})'}".replace("%", " %")
        for score, name in sorted(found)
    ]
    return [f"Misses {format_list(listed)}."]


def _of_classes(run: Run, scores: RunScores) -> list[str]:
    """Classes without test images, or with too few."""
    if scores.pooled is None or not scores.pooled.tallies:
        return []
    estimates = {name: found["sensitivity"] for name, found in zip(run.classes, scores.pooled.classes, strict=True)}
    absent = [name for name, score in estimates.items() if score.cases == 0]
    small = [f"{name} ({score.cases})" for name, score in estimates.items() if score.few and score.cases]
    found = []
    if absent:
        pronoun = "it" if len(absent) == 1 else "them"
        found.append(
            f"No test image of {format_list(absent)} at any site: nothing is known about detecting {pronoun}, and no mean "
            f"includes {pronoun}."
        )
    if small:
        found.append(
            f"Few test cases (fewer than {MIN_CASES}), so scores that rest on them are marked: {format_list(small)}."
        )
    withheld = [name for name, score in estimates.items() if score.reason and score.cases is None]
    if withheld:
        found.append(f"Counts of {format_list(withheld)} are of few cases and withheld: no score includes them.")
    return found


def _of_selection(run: Run) -> list[str]:
    """How the model was selected, where that was not as asked."""
    note = run.log.selected.get("note")
    return [f"Selection of the model: {note}."] if note else []


def _of_shift(run: Run, scores: RunScores) -> list[str]:
    """Whether sites differ by more than their patients: in the mix of classes, or in the model's accuracy."""
    found = []
    known = {site: group for site, group in scores.sites.items() if (group.cases or 0) >= MIN_CASES}
    found += _of_unequal_sites(known)
    if len(known) > 1 and run.tests.predictions:
        mixes = {site: np.bincount(run.tests.predictions[site].labels, minlength=len(run.classes)) for site in known}
        shares = np.stack([mix / mix.sum() for mix in mixes.values()])
        distances = np.abs(shares - shares.mean(axis=0)).sum(axis=1) / 2
        if distances.max() > 2 * WIDE_GAP:
            found.append(
                f"Sites see different mixes of classes (furthest from the mean: {list(mixes)[int(distances.argmax())]}, "
                f"total variation {distances.max():.2f}), so the sites' scores are not comparable."
            )
    return found


def _of_unequal_sites(sites: Mapping[str, EvalRecord]) -> list[str]:
    """The two sites whose balanced accuracy differs most clearly, of those with the same classes.

    With fewer classes guessing is right more often, so sites with other classes are not compared. The difference has the
    interval of Zou and Donner at a level of 5 % over the number of pairs.
    """
    scored = {site: group for site, group in sites.items() if group.score(METRIC).known}
    pairs = [
        (worse, better)
        for worse, better in permutations(scored, 2)
        if _tested_classes(scored[worse]) == _tested_classes(scored[better])
    ]
    if not pairs:
        return []
    wider = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / len(pairs)) / Z

    def clear(pair: tuple[str, str]) -> float:
        """The lower end of the interval of the difference."""
        worse, better = (scored[site].scores[METRIC] for site in pair)
        return better.value - worse.value - wider * math.hypot(better.value - better.low, worse.high - worse.value)

    pair = max(pairs, key=clear)
    if clear(pair) <= 0:
        return []
    worse, better = (f"{scored[site].scores[METRIC].value:.2f} at {site}" for site in pair)
    return [
        f"The model is not equally good at all sites: balanced accuracy {worse}, {better}, both with test cases of the same "
        f"classes; {len(pairs) // 2} such pairs were compared."
    ]


def _tested_classes(group: EvalRecord) -> list[bool]:
    return [found["sensitivity"].known for found in group.classes]


def _of_calibration(scores: RunScores) -> list[str]:
    error = scores.pooled.confidence.get("ece") if scores.pooled else None
    if error is None or error <= WIDE_GAP:
        return []
    return [f"Probabilities are off by {error:.2f} on average (expected calibration error): do not use them as risks."]
