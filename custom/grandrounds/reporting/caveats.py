"""What to distrust in a run's numbers, the most serious first, for the first screen of its report.

First whether the model is better than no model, then what it misses, then what is not known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from statistics import NormalDist

import numpy as np

from grandrounds.evaluation.comparisons import MIN_SEEDS
from grandrounds.evaluation.intervals import CONFIDENCE, Z
from grandrounds.evaluation.score import CHANCE, MIN_CASES, Score, ScoreSheet
from grandrounds.evaluation.within import confounding_of
from grandrounds.protocol.problem import SITE_NORM
from grandrounds.reporting.comparison import METRIC, Comparison, also_unlike, pairs_of, unlike
from grandrounds.reporting.run import MODELS, ReadRun, RunLog, RunScores, Tests
from grandrounds.reporting.tables import SCORE_NAMES, format_list, format_number, format_share, pluralize

WIDE_GAP = 0.15
CHANCE_LEVEL = 0.05
MISSED = 0.5
"""A class of whose images a larger share is missed is named."""


def caveats_of(run: ReadRun, scores: RunScores) -> list[str]:
    """Sentences about one run, the most serious first."""
    log, tests, pooled = run.log, run.tests, scores.pooled
    called = {run.classes[n] for cases in tests.predictions.values() for n in np.unique(cases.predicted).tolist()}
    counted = pooled.classes if pooled and pooled.counted else {}
    return [
        *_of_status(log, bool(tests.questions)),
        *([f"{log.method} has nothing of its own to do here: {run.origin.idle}."] if run.origin.idle else ()),
        *(_of_models_beside(pooled, run.task.default_metric, run.origin.reference) if pooled else ()),
        *(_of_use(pooled, run.task.default_metric, called) if pooled else ()),
        *exchanged_labels(scores.sites),
        *_of_confounding(pooled, bool(log.expected)),
        *(f"{remark[0].upper()}{remark[1:]}." for remark in log.expected),
        *(_of_missed(pooled) if pooled and counted else ()),
        *_of_classes(counted),
        *_of_small_sites(scores.sites),
        *_of_sites(log, frozenset(tests.questions)),
        *_of_contributions(log),
        *([f"Selection of the model: {log.selected['note']}."] if log.selected.get("note") else ()),
        *_of_shift(scores.sites),
        *_of_calibration(pooled.confidence.get("ece", 0.0) if pooled else 0.0),
        *_of_models(log, tests),
        *(_of_release(tests, bool(counted)) if scores.sites and not tests.questions else ()),
        *(f"{note[0].upper()}{note[1:]}." for note in run.origin.notes),
    ]


def caveats_of_comparison(
    methods: Mapping[str, Sequence[ReadRun]], reference: str, comparison: Comparison | None
) -> list[str]:
    """Sentences about several runs together."""
    apart = {
        method: unlike(pairs_of(runs, methods[reference])) for method, runs in methods.items() if method != reference
    }
    made = {
        method: also_unlike([(ours.log, theirs.log) for ours, theirs in pairs_of(methods[method], methods[reference])])
        for method, words in apart.items()
        if not words
    }
    few = {method: len(runs) for method, runs in methods.items() if len(runs) < MIN_SEEDS}
    predicted = {name: _predicted([(run.log.seed, run.tests) for run in runs]) for name, runs in methods.items()}
    caveats = [
        f"{method} and {reference}: these rows differ in {format_list(words)}, so there is no difference between them."
        for method, words in apart.items()
        if words
    ]
    caveats += [
        f"{method} and {reference} also differ in {format_list(words)}: a part of their difference may come from it."
        for method, words in made.items()
        if words
    ]
    caveats += [
        f"{first} and {second} are the same model: they give the same predictions for every test image of every seed."
        for first, second in combinations(predicted, 2)
        if predicted[first] == predicted[second] != {}
    ]
    if few:
        seeds = "one seed" if min(few.values()) == 1 else f"{min(few.values())} seeds"
        caveats.append(
            f"{format_list(list(few))}: fewer than {MIN_SEEDS} seeds (at least one method has {seeds}). Another seed can "
            "change a score by more than methods differ."
        )
    if comparison is None:
        return caveats
    models = {run.tests.model: method for method, runs in methods.items() for run in runs if run.tests.questions}
    if len(models) > 1:
        caveats.append(
            f"Scores are of {MODELS['common']} for some methods ({models['common']}) and of {MODELS['own']} for others "
            f"({models['own']}): this choice may explain a part of their difference."
        )
    return [*caveats, *_of_differences(comparison, [method for method, words in apart.items() if words])]


def _predicted(tests: Sequence[tuple[int | None, Tests]]) -> dict[tuple[int | None, str], list[bytes]]:
    """The predictions of a method by seed and site, to the last bit."""
    return {
        (seed, site): [np.ascontiguousarray(question.probabilities).tobytes() for question in questions]
        for seed, tested in tests
        for site, questions in tested.questions.items()
        if all(question.probabilities is not None for question in questions)
    }


def _of_differences(comparison: Comparison, apart: Sequence[str]) -> Iterator[str]:
    """What the differences to the reference do not show."""
    of_cases = [method for method, difference in comparison.differences.items() if difference.unit == "case"]
    if of_cases:
        yield (
            f"{format_list(of_cases)}: the difference to {comparison.reference} is of two fixed models on the same test "
            "cases; it says nothing about other seeds."
        )
    unclear = [
        f"{method} ({format_number(difference.detectable, 3)})"
        for method, difference in comparison.differences.items()
        if math.isnan(comparison.adjusted[method]) or comparison.adjusted[method] >= CHANCE_LEVEL
    ]
    if unclear:
        yield (
            f"The difference to {comparison.reference} could be chance (adjusted p of {CHANCE_LEVEL:.2f} or more, or no "
            f"test); in parentheses, the smallest that would have been found with a probability of 80 %: "
            f"{format_list(unclear)}."
        )
    if left_out := [method for method in comparison.left_out if method not in apart]:
        yield f"{format_list(left_out)}: no results to pair with those of {comparison.reference}; not compared."


def _of_status(log: RunLog, is_tested: bool) -> Iterator[str]:
    if not log.complete:
        words = {
            "running": "was stopped or is still running",
            "aborted": "was aborted",
            "interrupted": "was interrupted",
            "failed": "failed",
            "refused": "refused the job whose download this is,",
        }
        reason = f" ({log.reason})" if log.reason else ""
        end = "." if is_tested else ": its model has not been tested, and validation scores flatter it."
        said = words.get(log.status, f"has status {log.status}")
        yield f"The run {said} after {log.rounds_done} of {log.rounds} rounds{reason}{end}"
    yield from (f"{remark[0].upper()}{remark[1:]}." for remark in log.remarks)


NOTED = {
    "bounds_void": "Nothing bounded an update or a number of images (too few sites, or updates of zero, and no max_norm)",
    "bounded": "An update, a weight or a number of images far above the others' was made smaller",
    "free_riders": "An update was zero, or one that had come before",
}
"""What the server notes of contributions, in words."""


def _of_contributions(log: RunLog) -> Iterator[str]:
    for what, words in NOTED.items():
        if noted := log.noted(what):
            yield f"{words}: {_with_rounds(noted)}."


def _with_rounds(rounds: Mapping[str, Sequence[int]]) -> str:
    return format_list([f"{site} (round {format_list([str(n) for n in numbers])})" for site, numbers in rounds.items()])


def _of_sites(log: RunLog, tested: frozenset[str]) -> Iterator[str]:
    dropped = log.dropped()
    if dropped:
        yield f"No usable answer in a round in which the site was asked: {_with_rounds(dropped)}."
    silent = [site for site in log.sites if log.contributions and not log.contributions.get(site)]
    if silent:
        yield f"Contributed to no round: {format_list(silent)}."
    untested = [site for site in log.sites if site not in tested]
    if tested and untested:
        yield f"Without a test of the final model: {format_list(untested)}; no score includes them."


def _of_small_sites(sites: Mapping[str, ScoreSheet]) -> Iterator[str]:
    small = [
        f"{site} ({sheet.cases})"
        for site, sheet in sites.items()
        if sheet.cases is not None and sheet.cases < MIN_CASES
    ]
    if small:
        yield f"Scores of sites with few test cases (fewer than {MIN_CASES}) are marked: {format_list(small)}."


def _of_models(log: RunLog, tests: Tests) -> Iterator[str]:
    """What a case is, and whether the scores are of one model."""
    if tests.questions and tests.unit == "image":
        yield (
            "Intervals treat every image as an independent case: which images are of one patient or lesion is not known "
            "here, so the true intervals may be wider."
        )
    if tests.model == "own" and tests.questions and not log.is_local:
        yield "Scores are of each site's own choice of model; no one model has all of them."
    if log.problem.get("norm") == SITE_NORM:
        yield (
            "Each site's scores are of the model with the batch norm statistics of its own images (problem.norm=site); no "
            "one model has all of them. These helped on synthetic devices with equal mixes and cost AUC on real ones."
        )


def _of_release(tests: Tests, counted: bool) -> Iterator[str]:
    """What is not known where predictions stayed at the sites."""
    curves = "there are no curves"
    if tests.curves:
        silent = [site for site in tests.sites if site not in tests.curves]
        without = f" and without {format_list(silent)}" if silent else ""
        curves = f"curves are of counts of several patients each{without}"
    if counted:
        yield (
            f"Predictions stayed at the sites: scores are of the counts that they released, classes of few patients are "
            f"withheld, and {curves}."
        )
    else:
        yield (
            f"Only scores of whole sites are known and no predictions: there are no intervals, {curves}, and no scores "
            "of single classes."
        )


def _of_models_beside(pooled: ScoreSheet, metric: str, conclusion: str) -> Iterator[str]:
    """Whether a head in closed form, which takes three messages of a site, is as good."""
    own = pooled.best(metric)
    for name in pooled.models_beside if own.known else ():
        value = pooled.references[name].get(metric, math.nan)
        beside = f"{SCORE_NAMES[metric]} {own.value:.2f} against {value:.2f}"
        if own.value <= value:
            yield f"Does not beat {name} ({beside}). {conclusion}."
        elif own.low <= value:
            yield f"Not clearly better than {name} ({beside}). {conclusion}."


def _of_use(pooled: ScoreSheet, metric: str, called: set[str]) -> Iterator[str]:
    """Whether the model is better than always predicting the most frequent class, and than guessing."""
    own, accuracy = pooled.best(metric), pooled.score("accuracy")
    if accuracy.enough and accuracy.value == 1:
        yield (
            "Every test image is classified correctly: check that no test image, and no other image of its patient, was "
            "used in training."
        )
        return
    guess = pooled.references.get(CHANCE, {}).get(metric, math.nan)
    guessing = f"{SCORE_NAMES[metric]} {own.value:.2f}, {guess:.2f} by guessing" if own.low <= guess else ""
    always = pooled.always.get("accuracy", math.nan) if accuracy.enough else math.nan
    beside = f"always predicting {pooled.majority} (accuracy {accuracy.value:.2f} against {always:.2f})"
    than = f" and than guessing ({guessing})" if guessing else ""
    if len(called) == 1 and not math.isnan(always):
        yield f"The model predicts {min(called)} for every image: no better than {beside}."
    elif accuracy.value <= always:
        yield f"No better than {beside}{than}."
    elif accuracy.low <= always:
        yield f"Not clearly better than {beside}{than}."
    elif guessing:
        yield f"No better than guessing ({guessing})."


def exchanged_labels(sites: Mapping[str, ScoreSheet]) -> Iterator[str]:
    """The sites at which a model that is better than chance elsewhere is clearly worse than chance."""
    accuracies = {site: sheet.score("accuracy") for site, sheet in sites.items() if sheet.score("accuracy").enough}
    chances = {site: sites[site].references.get(CHANCE, {}).get("accuracy", math.nan) for site in accuracies}
    worse = [site for site, score in accuracies.items() if score.high < chances[site]]
    better = [site for site, score in accuracies.items() if score.low > chances[site]]
    for site in worse if better else ():
        yield (
            f"Worse than chance at {site} (accuracy {accuracies[site].value:.2f}, chance {chances[site]:.2f}) and better at "
            f"{format_list(better)}: the labels of {site} may be exchanged."
        )


def _of_confounding(pooled: ScoreSheet | None, expected: bool) -> Iterator[str]:
    """Whether the pooled area is that of knowing the site; what to expect elsewhere, where it was not measured."""
    sentence = confounding_of(pooled) if pooled else ""
    if "confounding" in sentence:
        elsewhere = "" if expected else " At a hospital like none of these expect the area within sites at most."
        yield f"{sentence}.{elsewhere}"


def _of_missed(sheet: ScoreSheet) -> Iterator[str]:
    """The classes whose images are mostly missed, the worst first."""
    scores = {name: of_class["sensitivity"] for name, of_class in sheet.classes.items()}
    missed = sorted((score, name) for name, score in scores.items() if score.enough and score.value < MISSED)
    if missed:
        yield f"Misses {format_list([_missed(score, name, sheet) for score, name in missed])}."


def _missed(score: Score, name: str, sheet: ScoreSheet) -> str:
    """How many images of a class are missed, and how many cases it has."""
    exclusive = sheet.images is not None and math.isclose(sum(sheet.shares.values()), 1)
    images = round((sheet.images or 0) * sheet.shares[name]) if exclusive else 0
    share = (
        f"{round((1 - score.value) * images)} of {images}" if exclusive else f"{format_share(1 - score.value)} of the"
    )
    by_case = exclusive and score.cases is not None and sheet.unit != "image"
    return f"{share} {name} images{f' ({pluralize(score.cases or 0, sheet.unit)})' if by_case else ''}"


def _of_classes(classes: Mapping[str, Mapping[str, Score]]) -> Iterator[str]:
    """Classes without test images, or with too few."""
    scores = {name: of_class["sensitivity"] for name, of_class in classes.items()}
    absent = [name for name, score in scores.items() if score.cases == 0]
    if absent:
        pronoun = "it" if len(absent) == 1 else "them"
        yield (
            f"No test image of {format_list(absent)} at any site: nothing is known about detecting {pronoun}, and no mean "
            f"includes {pronoun}."
        )
    small = [f"{name} ({score.cases})" for name, score in scores.items() if score.few and score.cases]
    if small:
        yield f"Few test cases (fewer than {MIN_CASES}), so scores that rest on them are marked: {format_list(small)}."
    withheld = [name for name, score in scores.items() if score.reason and score.cases is None]
    if withheld:
        yield f"Counts of {format_list(withheld)} are of few cases and withheld: no score includes them."


def _of_shift(sites: Mapping[str, ScoreSheet]) -> Iterator[str]:
    """Whether sites differ by more than their patients: in the model's accuracy, or in the mix of classes.

    Shares that do not add up to one are no mix.
    """
    known = {site: sheet for site, sheet in sites.items() if (sheet.cases or 0) >= MIN_CASES}
    yield from _of_unequal_sites(known)
    mixes = np.array([list(sheet.shares.values()) for sheet in known.values()])
    if len(known) > 1 and np.allclose(mixes.sum(axis=1), 1):
        distances = np.abs(mixes - mixes.mean(axis=0)).sum(axis=1) / 2
        if distances.max() > 2 * WIDE_GAP:
            yield (
                f"Sites have different class distributions (furthest from the mean: {list(known)[int(distances.argmax())]}, "
                f"total variation {distances.max():.2f}), so the sites' scores are not comparable."
            )


def _of_unequal_sites(sites: Mapping[str, ScoreSheet]) -> list[str]:
    """The two sites whose balanced accuracy differs most clearly, of those with the same classes.

    With fewer classes guessing is right more often, so sites with other classes are not compared. The difference has the
    interval of Zou and Donner at a level of 5 % over the number of pairs.
    """
    scored = {site: group for site, group in sites.items() if group.score(METRIC).known}
    alike: dict[tuple[bool, ...], list[str]] = {}
    for site, group in scored.items():
        alike.setdefault(tuple(scores["sensitivity"].known for scores in group.classes.values()), []).append(site)
    count = sum(len(names) * (len(names) - 1) for names in alike.values())
    if not count:
        return []
    wider, clearest = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / count) / Z, (0.0, "", "")
    for names in alike.values():
        scores = [scored[site].scores[METRIC] for site in names]
        value, low, high = np.array([[score.value, score.low, score.high] for score in scores], np.float64).T
        for worse, at in enumerate(names):  # the lower ends of the intervals of its differences to all others
            clear = value - value[worse] - wider * np.hypot(value - low, high[worse] - value[worse])
            better = int(clear.argmax())
            clearest = max(clearest, (float(clear[better]), at, names[better]))
    if clearest[0] <= 0:
        return []
    worst, best = (f"{scored[site].scores[METRIC].value:.2f} at {site}" for site in clearest[1:])
    return [
        f"The model is not equally good at all sites: balanced accuracy {worst}, {best}, both with test cases of the same "
        f"classes; {count // 2} such pairs were compared."
    ]


def _of_calibration(error: float) -> Iterator[str]:
    if error > WIDE_GAP:
        yield f"Probabilities of the most probable class are off by {error:.2f} on average (ECE): do not use them as risks."
