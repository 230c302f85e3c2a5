"""Figures of what a model said: ROC, precision and recall, risk and coverage, reliability, confusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.calibration import reliability_points
from grandrounds.evaluation.cases import Cases
from grandrounds.evaluation.curves import SiteCurve, precision_recall_points, risk_points, roc_points
from grandrounds.evaluation.estimates import MIN_CASES
from grandrounds.evaluation.selective import risk_coverage, top_confidence
from grandrounds.reporting.figures.drawing import COLOURS, MATRIX_COLOURS, PALE
from grandrounds.reporting.figures.style import GREY, INK, SMALL, draw_legend, draw_line, label_axes, looks, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_POINTS = 150
RISK_ACROSS, RISK_UP = "coverage: share that the model decides", "risk: share of wrong predictions"


def roc_figure(cases: Cases, classes: Sequence[str]) -> Figure | None:
    """ROC curve of each class against the others; classes with too few cases on a side are left out.

    Returns:
        None where nothing can be drawn.
    """
    from sklearn.metrics import roc_curve

    figure, axes = new_axes()
    axes.plot([0, 1], [0, 1], color=PALE, linewidth=1, linestyle=":")
    drawn = False
    for name, (positive, scores) in _sides(cases, classes).items():
        false, true, _ = roc_curve(positive, scores)
        draw_line(axes, looks(classes)[name], *_thinned(false, true), name)
        drawn = True
    label_axes(axes, "1 - specificity", "sensitivity", "ROC, each class against the others")
    return _ended(figure, axes, "lower right") if drawn else None


def summed_roc_figure(curves: Mapping[str, SiteCurve], classes: Sequence[str]) -> Figure | None:
    """ROC curves from sites' counts, a line for each class that has some.

    Returns:
        None without counts.
    """
    if not curves:
        return None
    figure, axes = new_axes()
    axes.plot([0, 1], [0, 1], color=PALE, linewidth=1, linestyle=":")
    for name, curve in curves.items():
        points = roc_points(curve)
        draw_line(axes, looks(classes)[name], *_thinned(points.false_positive_rate, points.true_positive_rate), name)
    label_axes(axes, "1 - specificity", "sensitivity", "ROC from the sites' counts")
    return _ended(figure, axes, "lower right")


def summed_precision_recall_figure(curves: Mapping[str, SiteCurve], classes: Sequence[str]) -> Figure | None:
    """Precision against recall from sites' counts, a line for each class that has some.

    Returns:
        None without counts.
    """
    if not curves:
        return None
    figure, axes = new_axes()
    for name, curve in curves.items():
        points = precision_recall_points(curve)
        draw_line(axes, looks(classes)[name], *_thinned(points.recall, points.precision), name)
    label_axes(axes, "recall (sensitivity)", "precision", "Precision and recall from the sites' counts")
    return _ended(figure, axes, "best")


def summed_risk_figure(sureness: SiteCurve | None) -> Figure | None:
    """Share of wrong predictions against the share that the model decides, from sites' counts.

    Returns:
        None without counts.
    """
    if sureness is None:
        return None
    figure, axes = new_axes()
    points = risk_points(sureness)
    draw_line(axes, looks([""])[""], points.coverage.tolist(), points.risk.tolist(), "")
    label_axes(axes, RISK_ACROSS, RISK_UP, "Risk and coverage from the sites' counts")
    axes.set_xlim(0, 1.02)
    axes.set_ylim(bottom=0)
    return figure


def summed_reliability_figure(curve: SiteCurve | None) -> Figure | None:
    """Reliability from sites' counts: a step for each range of confidence.

    Returns:
        None without counts.
    """
    if curve is None:
        return None
    figure, axes = new_axes()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    together = curve.positives + curve.negatives
    shares = np.divide(curve.positives, together, out=np.full(together.shape, np.nan), where=together > 0)
    axes.stairs(shares, curve.edges, color=COLOURS[0], linewidth=1.6, baseline=None)
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    label_axes(axes, "confidence", "share of right predictions", "Reliability from the sites' counts")
    return figure


def precision_recall_figure(cases: Cases, classes: Sequence[str]) -> Figure | None:
    """Precision against recall of each class; classes with too few cases are left out.

    Returns:
        None where nothing can be drawn.
    """
    from sklearn.metrics import precision_recall_curve

    figure, axes = new_axes()
    drawn = False
    for name, (positive, scores) in _sides(cases, classes).items():
        precision, recall, _ = precision_recall_curve(positive, scores)
        draw_line(axes, looks(classes)[name], *_thinned(recall[::-1], precision[::-1]), name)
        drawn = True
    label_axes(axes, "recall (sensitivity)", "precision", "Precision and recall")
    return _ended(figure, axes, "best") if drawn else None


def risk_figure(runs: Mapping[str, Cases], names: Sequence[str]) -> Figure | None:
    """Share of wrong predictions if the least sure are left to a physician, a line for each run.

    Args:
        runs: all test images of each run.
        names: of all runs of the report, in its order.

    Returns:
        None where nothing can be drawn.
    """
    figure, axes = new_axes()
    drawn = False
    for name, cases in runs.items():
        if cases.probabilities is None or cases.count < MIN_CASES:
            continue
        confidence, correct = top_confidence(cases.labels, cases.probabilities)
        curve = risk_coverage(confidence.clip(max=1), correct)
        start = min(MIN_CASES, len(curve.risk)) - 1
        draw_line(axes, looks(names)[name], *_thinned(curve.coverage[start:], curve.risk[start:]), name)
        drawn = True
    label_axes(axes, RISK_ACROSS, RISK_UP, "Risk and coverage")
    axes.set_xlim(0, 1.02)
    axes.set_ylim(bottom=0)
    if not drawn:
        return None
    if len(runs) > 1:
        draw_legend(axes, "best")
    return figure


def reliability_figure(cases: Cases) -> Figure | None:
    """How often the model is right when it is so sure, with adaptive bins; the area of a dot is its number of images.

    Returns:
        None where nothing can be drawn.
    """
    if cases.probabilities is None or cases.count < MIN_CASES:
        return None
    confidence, correct = top_confidence(cases.labels, cases.probabilities)
    points = reliability_points(confidence.clip(max=1), correct)
    figure, axes = new_axes()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    sure, right = [point.confidence for point in points], [point.accuracy for point in points]
    axes.vlines(sure, sure, right, color=PALE, linewidth=3)
    sizes = [20 + 300 * point.n / len(correct) for point in points]
    axes.scatter(sure, right, s=sizes, color=COLOURS[0], edgecolors=INK, linewidths=0.6, zorder=3)
    axes.text(0.03, 0.93, "right more often\nthan sure", fontsize=SMALL, color=GREY, va="top")
    axes.text(0.97, 0.07, "surer than right", fontsize=SMALL, color=GREY, ha="right")
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    label_axes(axes, "confidence (probability of the prediction)", "share of right predictions", "Reliability")
    return figure


def confusion_figure(confusion: NDArray[np.int64], classes: Sequence[str]) -> Figure:
    """What each class was taken for: share of its images as shade, their number as text."""
    side = max(3.2, 0.48 * len(classes) + 1.0)
    margin = 0.35 + 0.075 * max(len(name) for name in classes)
    figure, axes = new_axes(side + margin + 0.3, side + margin + 0.3, bottom=margin + 0.3, left=margin + 0.4)
    true = confusion.sum(axis=1, keepdims=True)
    shares = np.divide(confusion, true, out=np.zeros(confusion.shape), where=true > 0)
    axes.imshow(shares, cmap=MATRIX_COLOURS, vmin=0, vmax=1)
    for row, column in np.ndindex(confusion.shape):
        count = int(confusion[row, column])
        if count:
            colour = "white" if shares[row, column] > 0.55 else "black"
            axes.text(column, row, str(count), ha="center", va="center", fontsize=SMALL, color=colour)
    axes.set_xticks(range(len(classes)), classes, rotation=90, fontsize=SMALL)
    axes.set_yticks(range(len(classes)), classes, fontsize=SMALL)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    label_axes(axes, "predicted", "true", "Confusion (images)")
    return figure


def _sides(cases: Cases, classes: Sequence[str]) -> dict[str, tuple[NDArray[np.bool_], NDArray[np.float64]]]:
    """Positives and scores of the classes with enough cases on both sides."""
    if cases.probabilities is None:
        return {}
    enough = np.minimum(cases.positives(), cases.negatives()) >= MIN_CASES
    return {
        name: (cases.labels == number, cases.probabilities[:, number])
        for number, name in enumerate(classes)
        if enough[number]
    }


def _thinned(across: NDArray[np.float64], up: NDArray[np.float64]) -> tuple[list[float], list[float]]:
    """At most ``MAX_POINTS`` points of a curve, ends included."""
    if len(across) > MAX_POINTS:
        rows = np.unique(np.linspace(0, len(across) - 1, MAX_POINTS).round().astype(np.int64))
        across, up = across[rows], up[rows]
    return across.tolist(), up.tolist()


def _ended(figure: Figure, axes: Axes, place: str) -> Figure:
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    draw_legend(axes, place)
    return figure
