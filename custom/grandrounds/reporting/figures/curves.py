"""Figures of a model's predictions: ROC, precision and recall, risk and coverage, reliability, confusion.

Curves come from predictions, or from sites' binned counts where the predictions stayed at the sites.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.bootstrap import Cases
from grandrounds.evaluation.clinical.suppression import suppressed
from grandrounds.evaluation.confidence import reliability_points, risk_coverage, top_confidence
from grandrounds.evaluation.curves.binned import CurveCounts
from grandrounds.evaluation.curves.points import Points, exact_counts, precision_recall_points, roc_points
from grandrounds.evaluation.score import MIN_CASES
from grandrounds.plotting import (
    COLOURS,
    GREY,
    INK,
    MATRIX_COLOURS,
    PALE,
    SMALL_SIZE,
    draw_legend,
    draw_line,
    label_axes,
    looks,
    new_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MAX_POINTS = 150


def roc_curves(questions: Sequence[Cases], names: Sequence[str]) -> dict[str, Points]:
    """The ROC curve of each class or finding against all else; those with too few cases on a side are left out."""
    return {name: roc_points(exact_counts(positive, scores)) for name, positive, scores in _sides(questions, names)}


def precision_recall_curves(questions: Sequence[Cases], names: Sequence[str]) -> dict[str, Points]:
    """Precision against recall of each class or finding; those with too few cases are left out."""
    counts = {name: exact_counts(positive, scores) for name, positive, scores in _sides(questions, names)}
    return {name: precision_recall_points(of_class) for name, of_class in counts.items()}


def risk_curve(cases: Cases) -> Points | None:
    """Risk against coverage from ``MIN_CASES`` images on; None without probabilities or with too few cases."""
    if cases.probabilities is None or cases.count < MIN_CASES:
        return None
    confidence, correct = top_confidence(cases.labels, cases.probabilities)
    curve = risk_coverage(confidence, correct)
    start = min(MIN_CASES, len(curve.risk)) - 1
    return Points(curve.coverage[start:], curve.risk[start:])


def roc_figure(
    curves: Mapping[str, Points], classes: Sequence[str], title: str = "ROC, each class against the others"
) -> Figure | None:
    """A ROC curve for each class; None without curves."""
    if not curves:
        return None
    figure, axes = new_axes()
    axes.plot([0, 1], [0, 1], color=PALE, linewidth=1, linestyle=":")
    label_axes(axes, "1 - specificity", "sensitivity", title)
    return _draw_classes(figure, axes, curves, classes, "lower right")


def precision_recall_figure(
    curves: Mapping[str, Points], classes: Sequence[str], title: str = "Precision and recall"
) -> Figure | None:
    """Precision against recall for each class; None without curves."""
    if not curves:
        return None
    figure, axes = new_axes()
    label_axes(axes, "recall (sensitivity)", "precision", title)
    return _draw_classes(figure, axes, curves, classes, "best")


def risk_figure(
    curves: Mapping[str, Points | None],
    names: Sequence[str],
    title: str = "Risk and coverage",
    constant: tuple[str, float] | None = None,
) -> Figure | None:
    """Share of wrong predictions if the least confident are left to a physician, a line for each run.

    ``names`` are all runs of the report, in its order; ``constant`` is a reference and its accuracy. None where nothing can
    be drawn.
    """
    known = {name: points for name, points in curves.items() if points}
    if not known:
        return None
    figure, axes = new_axes()
    for name, points in known.items():
        draw_line(axes, looks(names)[name], *_thinned(points), name)
    if constant:
        axes.axhline(1 - constant[1], color=GREY, linewidth=1, linestyle=":", label=constant[0])
    label_axes(axes, "coverage: share that the model decides", "risk: share of wrong predictions", title)
    axes.set_xlim(0, 1.02)
    axes.set_ylim(bottom=0)
    if len(curves) > 1 or constant:
        draw_legend(axes, "best")
    return figure


def confusion_figure(confusion: NDArray[np.int64], classes: Sequence[str], minimum: int = 1) -> Figure:
    """Confusion matrix: the share of a row as shade, the number of images as text.

    Counts below ``minimum``, and those from which they would follow, are neither written nor shaded.
    """
    side = max(3.2, 0.48 * len(classes) + 1.0)
    margin = 0.35 + 0.075 * max(len(name) for name in classes)
    figure, axes = new_axes(side + margin + 0.3, side + margin + 0.3, bottom=margin + 0.3, left=margin + 0.4)
    true = confusion.sum(axis=1, keepdims=True)
    shares = np.divide(confusion, true, out=np.zeros(confusion.shape), where=true > 0)
    hidden = suppressed(confusion, minimum)
    axes.imshow(np.where(hidden, np.nan, shares), cmap=MATRIX_COLOURS, vmin=0, vmax=1)
    axes.set_facecolor(PALE)
    for row, column in np.ndindex(confusion.shape):
        count = int(confusion[row, column])
        if count and not hidden[row, column]:
            colour = "white" if shares[row, column] > 0.55 else "black"
            axes.text(column, row, str(count), ha="center", va="center", fontsize=SMALL_SIZE, color=colour)
    axes.set_xticks(range(len(classes)), classes, rotation=90, fontsize=SMALL_SIZE)
    axes.set_yticks(range(len(classes)), classes, fontsize=SMALL_SIZE)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    label_axes(axes, "predicted", "true", "Confusion (images)")
    return figure


def _sides(
    questions: Sequence[Cases], names: Sequence[str]
) -> Iterator[tuple[str, NDArray[np.bool_], NDArray[np.float64]]]:
    """Name, positives and scores of the classes with enough cases on both sides."""
    left = iter(names)
    for cases in questions:
        behind = np.minimum(cases.positives(), cases.negatives())
        for number, name in zip(cases.rows, left, strict=False):
            if cases.probabilities is not None and behind[number] >= MIN_CASES:
                yield name, cases.labels == number, cases.probabilities[:, number]


def _draw_classes(
    figure: Figure, axes: Axes, curves: Mapping[str, Points], classes: Sequence[str], place: str
) -> Figure:
    for name, points in curves.items():
        draw_line(axes, looks(classes)[name], *_thinned(points), name)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    draw_legend(axes, place)
    return figure


def _thinned(points: Points) -> tuple[list[float], list[float]]:
    """At most ``MAX_POINTS`` points of a curve, ends included."""
    across, up = points
    if len(across) > MAX_POINTS:
        rows = np.unique(np.linspace(0, len(across) - 1, MAX_POINTS).round().astype(np.int64))
        across, up = across[rows], up[rows]
    return across.tolist(), up.tolist()


def reliability_figure(cases: Cases) -> Figure | None:
    """Accuracy over confidence in adaptive bins, a dot's area its number of images; None where nothing can be drawn."""
    if cases.probabilities is None or cases.count < MIN_CASES:
        return None
    confidence, correct = top_confidence(cases.labels, cases.probabilities)
    points = reliability_points(confidence, correct)
    figure, axes = _reliability_axes("confidence (probability of the prediction)", "Reliability")
    centres, shares = [point.confidence for point in points], [point.accuracy for point in points]
    axes.vlines(centres, centres, shares, color=PALE, linewidth=3)
    sizes = [20 + 300 * point.n / len(correct) for point in points]
    axes.scatter(centres, shares, s=sizes, color=COLOURS[0], edgecolors=INK, linewidths=0.6, zorder=3)
    axes.text(0.03, 0.93, "underconfident", fontsize=SMALL_SIZE, color=GREY, va="top")
    axes.text(0.97, 0.07, "overconfident", fontsize=SMALL_SIZE, color=GREY, ha="right")
    return figure


def binned_reliability_figure(counts: CurveCounts | None) -> Figure | None:
    """Accuracy over confidence from sites' counts, a step for each bin; None without counts."""
    if counts is None:
        return None
    figure, axes = _reliability_axes("confidence", "Reliability from the sites' counts")
    together = counts.positives + counts.negatives
    shares = np.divide(counts.positives, together, out=np.full(together.shape, np.nan), where=together > 0)
    axes.stairs(shares, counts.edges, color=COLOURS[0], linewidth=1.6, baseline=None)
    return figure


def _reliability_axes(across: str, title: str) -> tuple[Figure, Axes]:
    figure, axes = new_axes()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    label_axes(axes, across, "share of right predictions", title)
    return figure, axes
