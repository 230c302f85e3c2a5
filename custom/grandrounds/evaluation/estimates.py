"""Scores with 95 % intervals: of each class, of all classes of a question together, areas under curves, and means.

Means over classes are over those that occur, as scikit-learn's are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.auc import average_precision, weighted_auroc
from grandrounds.evaluation.bootstrap import RESAMPLES, Cases, resampled_margins, resampled_weights
from grandrounds.evaluation.confusion import (
    MEANS,
    chance_confusion,
    confusion_class_scores,
    confusion_scores,
    majority_confusion,
)
from grandrounds.evaluation.counts import HIDDEN, SiteCounts
from grandrounds.evaluation.intervals import (
    Array,
    Interval,
    auroc_interval,
    combined,
    correlations,
    effective_size,
    f1_interval,
    wilson,
)
from grandrounds.evaluation.score import Score, no_score


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """What the scores of the predicted class are computed from; arrays have shape ``(classes,)``, NaN where unknown.

    Attributes:
        correct: images of the class that are predicted as it.
        missed: images of the class that are predicted as another.
        false: images of others that are predicted as it.
        images: all images.
        right: all correct predictions.
        positives: cases with an image of the class.
        negatives: cases with an image of another class.
        cases: all cases.
        sizes: by score, the number of independent images that its denominator is worth; of ``accuracy`` one number.
        scored: the classes with scores of their own.
    """

    correct: Array
    missed: Array
    false: Array
    images: float
    right: float
    positives: NDArray[np.int64]
    negatives: NDArray[np.int64]
    cases: int
    sizes: Mapping[str, Array]
    scored: tuple[int, ...]

    @property
    def occurs(self) -> NDArray[np.bool_]:
        """The classes with known images, over which means are taken."""
        return np.nan_to_num(self.correct + self.missed) > 0


def counts_of(cases: Cases) -> ClassCounts:
    """Count the predictions, and the cases behind them."""
    confusion = cases.confusion()
    correct = np.diagonal(confusion).astype(np.float64)
    right, numbers = cases.predicted == cases.labels, range(cases.classes)
    members = [(cases.labels == number, cases.predicted == number) for number in numbers]
    sizes = {
        "sensitivity": [effective_size(called[true], cases.groups[true]) for true, called in members],
        "specificity": [effective_size(called[~true], cases.groups[~true]) for true, called in members],
        "precision": [effective_size(true[called], cases.groups[called]) for true, called in members],
        "f1": [effective_size((t & c)[t | c], cases.groups[t | c]) for t, c in members],
        "accuracy": effective_size(right, cases.groups),
    }
    return ClassCounts(
        correct,
        confusion.sum(axis=1) - correct,
        confusion.sum(axis=0) - correct,
        len(cases.labels),
        float(right.sum()),
        cases.positives(),
        cases.negatives(),
        cases.count,
        {name: np.asarray(size, np.float64) for name, size in sizes.items()},
        cases.rows,
    )


def pooled_counts(
    sites: Sequence[SiteCounts],
    question: int,
    scored: tuple[int, ...],
    images: float = math.nan,
    right: float = math.nan,
) -> ClassCounts:
    """The counts of a question of several sites together.

    Args:
        sites: at least one.
        question: its number.
        scored: the classes with scores of their own.
        images: of all sites, hidden ones included; NaN for those that are shown.
        right: correct predictions among them; NaN for those that are shown.

    Returns:
        Counts of each class over the sites that show it; not a number, with ``HIDDEN`` positives, where none does. ``false``
        is known only where every site shows all of the class. Where all classes are hidden, images stand for the cases.
    """
    shown = np.stack([site.images[question] for site in sites])
    patients = np.stack([site.patients[question] for site in sites]).clip(min=0).sum(axis=0)
    totals = np.where(shown == HIDDEN, 0, shown).sum(axis=0).astype(np.float64)
    unknown = (shown[:, :, 0] == HIDDEN).all(axis=0)
    totals[unknown, :2] = np.nan
    totals[(shown == HIDDEN).any(axis=(0, 2)), 2] = np.nan
    correct, missed, false = totals.T
    positives = np.where(unknown, HIDDEN, patients[:, 0] + patients[:, 1])
    cases = int(positives.clip(min=0).sum())
    negatives = np.maximum(cases - positives.clip(min=0), 0)
    # Images of a patient are taken to agree: no fewer independent images than patients can be behind a count.
    true, called, union = (patients[:, columns].sum(axis=1) for columns in ([0, 1], [0, 2], [0, 1, 2]))
    known = float(np.nansum(correct + missed))
    images = known if math.isnan(images) else images
    if unknown.all():
        cases, known = int(images), images
    sizes = {
        "sensitivity": true,
        "specificity": negatives,
        "precision": called,
        "f1": union,
        "accuracy": images * max(cases, 0) / max(known, 1.0),
    }
    return ClassCounts(
        correct,
        missed,
        false,
        images,
        float(np.nansum(correct)) if math.isnan(right) else right,
        positives,
        negatives,
        cases,
        {name: np.asarray(size, np.float64) for name, size in sizes.items()},
        scored,
    )


AUC_RESAMPLES = 200
NO_CLASS, NO_CASE = "no image of a class", "no case"


def class_estimates(counts: ClassCounts) -> list[dict[str, Score]]:
    """Precision (zero where the class is never predicted), sensitivity, F1 and specificity of each class."""
    columns = _class_columns(counts)
    known = {name: np.isfinite(values) for name, (values, _) in columns.items()}
    return [
        {
            name: Score(
                float(values[number]),
                float(interval.low[number] if known[name][number] else math.nan),
                float(interval.high[number] if known[name][number] else math.nan),
                behind := int((counts.negatives if name == "specificity" else counts.positives)[number]),
                "" if behind else NO_CASE,
            )
            for name, (values, interval) in columns.items()
        }
        for number in range(len(counts.correct))
    ]


def score_estimates(
    counts: ClassCounts, related: Mapping[str, Array] | None = None, among: NDArray[np.bool_] | None = None
) -> dict[str, Score]:
    """Accuracy, and means over the classes that occur, or over those ``among`` them.

    ``related`` are the correlations of the classes' scores, as :func:`class_correlations` gives them.
    """
    accuracy = counts.right / counts.images if counts.images else math.nan
    low, high = (float(end) for end in wilson(accuracy, counts.sizes["accuracy"]))
    estimates = {"accuracy": Score(accuracy, low, high, counts.cases)}
    # How often a yes-or-no question is answered correctly is a linear function of the accuracy.
    value, lower, upper = (1 - 2 * (1 - end) / len(counts.correct) for end in (accuracy, low, high))
    estimates["accuracy_one_vs_rest"] = Score(value, lower, upper, counts.cases)
    columns, weights = _class_columns(counts), counts.correct + counts.missed
    occurs = counts.occurs if among is None else counts.occurs & among
    scored = np.isin(np.arange(len(occurs)), counts.scored)
    for name, (score, weighted) in MEANS.items():
        counted = occurs if score == "sensitivity" else occurs & scored
        if not counted.any():
            estimates[name] = no_score(NO_CLASS, 0)
            continue
        values, interval = columns[score]
        correlation = related[score][np.ix_(counted, counted)] if related else None
        parts = Interval(interval.low[counted], interval.high[counted])
        of_class = weights[counted] if weighted else np.ones(int(counted.sum()))
        behind = int(counts.positives[counted].min())
        estimates[name] = Score(*combined(values[counted], parts, of_class, correlation), behind)
    return estimates


def reference_scores(counts: ClassCounts, classes: Sequence[str]) -> dict[str, dict[str, float]]:
    """What a model must exceed: the scores of always predicting the most frequent class, and of guessing.

    Returns:
        By ``always CLASS`` and ``chance``, the scores of :func:`score_estimates`, and ``auc_macro``. The first is left out
        where it is not known which class is the most frequent. Where a class is hidden, its scores are the accuracies alone.
    """
    true = np.nan_to_num(counts.correct + counts.missed)
    largest = int(np.argmax(true))
    made = {"chance": chance_confusion(true)}
    if true[largest] > 0 and true[largest] >= counts.images - true.sum():
        made = {f"always {classes[largest]}": majority_confusion(true), **made}
    references = {}
    for name, confusion in made.items():
        scores = {key: float(value) for key, value in confusion_scores(confusion).items()}
        accuracy = 1 / len(true) if name == "chance" else float(true[largest] / counts.images)
        means = {key: scores[key] for key in MEANS if counts.occurs.any()}
        one_vs_rest = 1 - 2 * (1 - accuracy) / len(true)
        references[name] = {"accuracy": accuracy, "accuracy_one_vs_rest": one_vs_rest}
        if name == "chance" or not np.isnan(counts.correct).any():
            references[name] |= {**means, "auc_macro": 0.5}
    return references


def class_correlations(cases: Cases, generator: np.random.Generator, resamples: int = RESAMPLES) -> dict[str, Array]:
    """Correlations of the classes' sensitivity, precision and F1 over bootstrap samples, shape ``(classes, classes)``."""
    draws = confusion_class_scores(resampled_margins(cases, generator, resamples))
    return {name: correlations(draws[name]) for name in ("sensitivity", "precision", "f1")}


def question_correlations(
    questions: Sequence[Cases], generator: np.random.Generator, resamples: int = AUC_RESAMPLES
) -> dict[str, Array]:
    """Correlations of macro AUROC, balanced accuracy and macro F1 between questions over bootstrap samples of the patients.

    Args:
        questions: about the same images, with probabilities; the groups of all have the same numbers.
        generator: of the samples.
        resamples: their number.

    Returns:
        Shape ``(questions, questions)`` by score.
    """
    patients = 1 + max(int(question.groups.max(initial=-1)) for question in questions)
    drawn = generator.multinomial(patients, np.full(patients, 1 / patients), size=resamples)
    draws: dict[str, list[Array]] = {"auc_macro": [], "balanced_accuracy": [], "f1_macro": []}
    for question in questions:
        scores = confusion_class_scores(question.margins(drawn))
        draws["balanced_accuracy"].append(scores["sensitivity"].mean(axis=1))
        draws["f1_macro"].append(scores["f1"][:, list(question.rows)].mean(axis=1))
        draws["auc_macro"].append(_drawn_areas(question, question.rows, question.weights(drawn)).mean(axis=1))
    return {score: correlations(np.stack(columns, axis=1)) for score, columns in draws.items()}


def _drawn_areas(cases: Cases, classes: Sequence[int], blocks: Iterable[NDArray[np.floating]]) -> Array:
    """The areas of classes in bootstrap samples, shape ``(samples, classes)``."""
    if cases.probabilities is None:
        raise ValueError("an area needs probabilities, and only the predicted classes are known")
    sides = [(cases.labels == number, cases.probabilities[:, number]) for number in classes]
    return np.concatenate([np.stack([weighted_auroc(*side, weights) for side in sides], axis=1) for weights in blocks])


def mean_over(
    parts: Sequence[Mapping[str, Score]], what: str, related: Mapping[str, Array] | None = None
) -> dict[str, Score]:
    """Unweighted means of scores over sites or questions that have one; a mean of some is named by its part of all.

    Of sites, the interval covers other patients of these sites, not other sites; without intervals of the parts it has none.

    Args:
        parts: scores by name.
        what: they are, in the plural, such as ``sites``.
        related: correlations of the parts by score; None where they are independent.
    """
    means = {}
    for name in dict.fromkeys(name for scores in parts for name in scores):
        rows = [number for number, scores in enumerate(parts) if name in scores and scores[name].known]
        if not rows:
            means[name] = next(scores[name] for scores in parts if name in scores)
            continue
        values, low, high = (np.array(part) for part in zip(*(parts[row][name][:3] for row in rows), strict=True))
        correlation = None if related is None else _correlation(related.get(name), rows)
        mean = combined(values, Interval(low, high), np.ones(len(rows)), correlation)
        cases = [count for row in rows if (count := parts[row][name].cases) is not None]
        part = f"{len(rows)} of {len(parts)} {what}" if len(rows) < len(parts) else ""
        means[name] = Score(*mean, min(cases, default=None), of=part)
    return means


def _correlation(of_parts: Array | None, rows: Sequence[int]) -> Array:
    """The correlations of some parts; where none are known they count as equal."""
    return np.ones((len(rows), len(rows))) if of_parts is None else of_parts[np.ix_(rows, rows)]


def auc_estimates(cases: Cases) -> list[dict[str, Score]]:
    """AUROC and average precision of each class against the others; both rest on the smaller side's cases.

    The interval of average precision, a mean over the positive images, is Wilson's for their number (Boyd, Eng and Page,
    ECML 2013, "binomial interval").

    Raises:
        ValueError: if there are no probabilities.
    """
    if cases.probabilities is None:
        raise ValueError("an area needs probabilities, and only the predicted classes are known")
    estimates = []
    for number, behind in enumerate(np.minimum(cases.positives(), cases.negatives()).tolist()):
        positive, scores = cases.labels == number, cases.probabilities[:, number]
        precision = average_precision(positive, scores)
        size = effective_size(positive[positive], cases.groups[positive])
        low, high = (float(end) if behind else math.nan for end in wilson(precision, size))
        estimates.append(
            {
                "auroc": Score(*auroc_interval(positive, scores, cases.groups), behind),
                "average_precision": Score(precision, low, high, behind),
            }
        )
    return estimates


def macro_auroc(cases: Cases, areas: Sequence[Mapping[str, Score]], generator: np.random.Generator) -> Score:
    """Mean of :func:`auc_estimates` over the scored classes with images on both sides; it rests on the rarest of them."""
    known = [number for number in cases.rows if areas[number]["auroc"].known]
    if not known:
        return no_score(NO_CLASS, 0)
    values, low, high, behind = (
        np.array(column) for column in zip(*(areas[n]["auroc"][:4] for n in known), strict=True)
    )
    related = None
    if len(known) > 1:
        related = correlations(_drawn_areas(cases, known, resampled_weights(cases, generator, AUC_RESAMPLES)))
    return Score(*combined(values, Interval(low, high), np.ones(len(known)), related), int(behind.min()))


def _class_columns(counts: ClassCounts) -> dict[str, tuple[Array, Interval]]:
    """The four scores of the classes with their intervals."""
    correct, true, sizes = counts.correct, counts.correct + counts.missed, counts.sizes
    others = counts.images - true
    with np.errstate(divide="ignore", invalid="ignore"):
        sensitivity, jaccard = correct / true, correct / (true + counts.false)
        precision = np.where(true > 0, np.nan_to_num(correct / (correct + counts.false)), np.nan)
        specificity = (others - counts.false) / others
    precision = np.where(np.isnan(counts.false), np.nan, precision)
    jaccard = np.where(true > 0, jaccard, np.nan)
    return {
        "precision": (precision, wilson(precision, sizes["precision"])),
        "sensitivity": (sensitivity, wilson(sensitivity, sizes["sensitivity"])),
        "f1": (2 * jaccard / (1 + jaccard), f1_interval(jaccard, sizes["f1"])),
        "specificity": (specificity, wilson(specificity, sizes["specificity"])),
    }
