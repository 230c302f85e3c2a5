"""Comparison of methods: which runs are paired, by seed or by test case, and over which sites."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.bootstrap import Cases, joined, resampled_margins
from grandrounds.evaluation.comparisons import MIN_SEEDS, Difference, difference_of_cases, holm, paired_by_seed
from grandrounds.evaluation.confusion import confusion_scores
from grandrounds.evaluation.score import Score
from grandrounds.ordering import natural_sorted
from grandrounds.reporting.run import ReadRun, RunLog
from grandrounds.seeding import numpy_generator

METRIC, AUROC = "balanced_accuracy", "auroc"
LIKE = {"dataset": "data", "image_size": "side of images", "weights": "start weights", "task": "task"}
"""Of a problem, and what to call it: methods that differ in one of these have no difference, see :func:`unlike`."""
NOT_COMPARED = ("seed", "run_name", "resume", "frozen")
"""In what seeds of one method may differ; ``frozen`` is a digest of weights, which follow from seed and options."""


@dataclass(frozen=True)
class Comparison:
    """Several methods, each against the reference.

    Attributes:
        metric: what is compared: the score of all test images of the sites that both methods have.
        reference: the method that the others are compared with.
        differences: of each other method to the reference: paired by seed, or of two fixed models on the same test cases.
        adjusted: their p-values, corrected for the number of comparisons by Holm's method.
        relative: the differences in percent of the reference; NaN where it is zero.
        seeds: how many runs each method has.
        left_out: methods that cannot be paired with the reference, or are not :func:`like <unlike>` it.
    """

    metric: str
    reference: str
    differences: Mapping[str, Difference]
    adjusted: Mapping[str, float]
    relative: Mapping[str, float]
    seeds: Mapping[str, int]
    left_out: tuple[str, ...]

    def row(self, method: str) -> dict[str, Any]:
        """A method's difference as plain values; null for what is not known."""
        more = {"adjusted_p": self.adjusted[method], "relative_improvement_percent": self.relative[method]}
        return {name: _plain(value) for name, value in {**asdict(self.differences[method]), **more}.items()}

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "metric": self.metric,
            "reference": self.reference,
            "differences": {method: self.row(method) for method in self.differences},
            "seeds": dict(self.seeds),
            "left_out": list(self.left_out),
        }


def compare(
    methods: Mapping[str, Sequence[ReadRun]],
    headlines: Mapping[str, Score | None],
    reference: str,
    metric: str = METRIC,
) -> Comparison | None:
    """Compare methods with a reference.

    With ``MIN_SEEDS`` seeds that both have, results are paired by seed. With fewer, two models are compared on their test
    cases, which must be the same; where these are not known the difference has no interval. A method without a run to pair
    is left out and named. ``headlines`` are the scores of the runs by name, for those whose predictions are not here.

    Returns:
        None if no other method can be compared with the reference.
    """
    others = [method for method in methods if method != reference]
    differences: dict[str, tuple[Difference, float]] = {}
    for method in others:
        pairs = pairs_of(methods[method], methods[reference])
        pairs = [] if unlike(pairs) else pairs
        values = [value for pair in pairs if (value := _values(pair, headlines, metric))]
        if len(values) == len(pairs) and len(set(values)) == 1:  # runs that gave one model count as one
            pairs, values = pairs[:1], values[:1]
        of_cases = _of_cases(pairs, values, metric, len(others)) if 0 < len(values) < MIN_SEEDS else None
        if of_cases:
            differences[method] = of_cases
        elif values:
            ours, theirs = zip(*values, strict=True)
            differences[method] = paired_by_seed(ours, theirs, len(others)), fmean(theirs)
    if not differences:
        return None
    return Comparison(
        metric=metric,
        reference=reference,
        differences={method: difference for method, (difference, _) in differences.items()},
        adjusted=holm({method: difference.p_value for method, (difference, _) in differences.items()}),
        relative={
            method: relative_improvement(base + difference.mean, base)
            for method, (difference, base) in differences.items()
        },
        seeds={method: len(methods[method]) for method in (reference, *differences)},
        left_out=tuple(method for method in others if method not in differences),
    )


def unlike(pairs: Sequence[tuple[ReadRun, ReadRun]]) -> list[str]:
    """In what the runs of :func:`pairs_of` differ so that a difference of scores says nothing of the methods.

    What is not recorded does not differ; a site's manifest has its division and its labels.
    """
    facts = [[(run.log.configuration.get("problem", {}), run.origin.manifests) for run in pair] for pair in pairs]
    words: dict[str, None] = {}
    for (ours, divided), (theirs, other) in facts:
        for name, word in LIKE.items():
            if name in ours and name in theirs and ours[name] != theirs[name]:
                words[f"{word} ({ours[name]} against {theirs[name]})"] = None
        if any(divided[site] != other[site] for site in divided.keys() & other.keys()):
            words["division or labels"] = None
    return list(words)


def also_unlike(logs: Sequence[tuple[RunLog, RunLog]]) -> list[str]:
    """In what else two runs differ beside their methods, so that a part of a difference of scores may come from it."""
    words: dict[str, None] = {}
    for pair in logs:
        for word, (ours, theirs) in zip(
            ("network", "code", "processor"), zip(*map(_made_by, pair), strict=True), strict=True
        ):
            if ours and theirs and ours != theirs:
                words[f"{word} ({ours} against {theirs})"] = None
    return list(words)


def _made_by(log: RunLog) -> tuple[str, str, str]:
    """Network, version of the code and processor of a run; empty where one is not recorded."""
    machine = log.machine
    processor = ", ".join([str(machine.get("processor", "")), *map(str, machine.get("graphics", ()))])
    return str(log.problem.get("backbone", "")), log.versions.get("grandrounds", ""), processor if machine else ""


def methods_of(runs: Sequence[ReadRun]) -> dict[str, list[ReadRun]]:
    """Runs that differ in their seed alone, under one name.

    Returns:
        Runs by method; a method of one run has the run's name, one of several their names without the seed at the end.
    """
    groups: dict[str, list[ReadRun]] = {}
    for run in runs:
        groups.setdefault(_key(run), []).append(run)
    methods: dict[str, list[ReadRun]] = {}
    for members in groups.values():
        seeds = {run.log.seed for run in members}
        if len(members) == 1 or len(seeds) < len(members):
            methods |= {run.name: [run] for run in members}
        else:
            name = re.sub(r"[\s_.-]*(seed)?[\s_.-]*\d+$", "", members[0].name) or members[0].name
            methods[name if name not in methods else members[0].name] = members
    return methods


def require_one_vocabulary(runs: Sequence[ReadRun]) -> None:
    """Check that all runs have the same classes.

    Raises:
        ConfigurationError: naming two runs whose classes differ, or are in another order.
    """
    first = runs[0]
    for run in runs[1:]:
        if (run.classes, run.task.name) != (first.classes, first.task.name):
            raise ConfigurationError(
                f"{first.name} and {run.name} have different classes ({', '.join(first.classes)}; "
                f"{', '.join(run.classes)}), so no score of theirs can be compared; report on them one by one"
            )


def relative_improvement(value: float, reference: float) -> float:
    r"""Relative improvement over a reference, in percent: :math:`\mathrm{RI}(a|b) = 100 (a - b) / b`.

    NaN where the reference is not above zero.

    Example:
        >>> round(relative_improvement(0.747, 0.647), 3)
        15.456
    """
    return 100 * (value - reference) / reference if reference > 0 else math.nan


def chance_of(metric: str | None, classes: int) -> float | None:
    """The expected score of guessing, where it does not depend on how common the classes are.

    Example:
        >>> chance_of("balanced_accuracy", 4), chance_of("auc_macro", 4), chance_of("accuracy", 4)
        (0.25, 0.5, None)
    """
    if metric == "balanced_accuracy" and classes:
        return 1 / classes
    return 0.5 if metric in ("auc_macro", "auroc_macro", "auroc") else None


def pairs_of(runs: Sequence[ReadRun], reference: Sequence[ReadRun]) -> list[tuple[ReadRun, ReadRun]]:
    """Runs of the same seed; of two methods with one run each these two."""
    by_seed = {run.log.seed: run for run in reference}
    pairs = [(run, by_seed[run.log.seed]) for run in runs if run.log.seed is not None and run.log.seed in by_seed]
    return pairs or ([(runs[0], reference[0])] if len(runs) == len(reference) == 1 else [])


def _values(
    pair: tuple[ReadRun, ReadRun], headlines: Mapping[str, Score | None], metric: str
) -> tuple[float, float] | None:
    """The score of both runs over all test images of the sites that both have; None without any.

    Without predictions it is that of the runs' own reports; None where the two are over different parts of the classes.
    """
    ours, theirs = (run.tests.questions for run in pair)
    if sites := ours.keys() & theirs.keys():
        scores = [run.tests.at(sites).score(metric) for run in pair]
    else:
        scores = [] if ours or theirs else [score for run in pair if (score := headlines[run.name])]
    alike = len(scores) == 2 and all(score.known for score in scores) and scores[0].of == scores[1].of
    return (scores[0].value, scores[1].value) if alike else None


def _of_cases(
    pairs: Sequence[tuple[ReadRun, ReadRun]], values: Sequence[tuple[float, float]], metric: str, comparisons: int
) -> tuple[Difference, float] | None:
    """The difference on the same test cases, mean over the pairs, and the reference's score; None without any."""
    of_pairs = [_draws(first.tests.predictions, second.tests.predictions, metric) for first, second in pairs]
    draws = [draw for draw in of_pairs if draw is not None]
    if len(draws) < len(of_pairs):
        return None
    value, cases = fmean(ours - theirs for ours, theirs in values), draws[-1][1]
    difference = difference_of_cases(value, np.mean([draw for draw, _ in draws], axis=0), cases, comparisons)
    return difference, fmean(base for _, base in values)


def _draws(
    first: Mapping[str, Cases], second: Mapping[str, Cases], metric: str
) -> tuple[NDArray[np.float64], int] | None:
    """Bootstrap draws of the difference, and the number of cases; None where the images are not the same."""
    sites = natural_sorted(site for site in first if site in second)
    if not sites or not all(_same_images(first[site], second[site]) for site in sites):
        return None
    if metric not in confusion_scores(first[sites[0]].confusion()):
        return None
    # Both models are drawn with the same cases: the stream depends on the site alone.
    ours, theirs = (
        reduce(operator.add, (resampled_margins(one[site], numpy_generator("comparison", site)) for site in sites))
        for one in (first, second)
    )
    drawn = confusion_scores(ours)[metric] - confusion_scores(theirs)[metric]
    return drawn, joined([first[site] for site in sites]).count


def _same_images(first: Cases, second: Cases) -> bool:
    """Whether two sets of predictions are of the same images in the same order, as far as labels and cases tell."""
    known = first.probabilities is not None and second.probabilities is not None
    return known and np.array_equal(first.labels, second.labels) and np.array_equal(first.groups, second.groups)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 6)
    return value


def _key(run: ReadRun) -> str:
    shared = {name: value for name, value in run.log.configuration.items() if name not in NOT_COMPARED}
    return json.dumps(
        [run.log.method, shared, dict(run.origin.options), list(run.log.sites)], sort_keys=True, default=str
    )
