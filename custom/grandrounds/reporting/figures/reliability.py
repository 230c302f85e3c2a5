"""Figures of how far the confidence of predictions can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from grandrounds.evaluation.bootstrap import Cases
from grandrounds.evaluation.calibration import reliability_points
from grandrounds.evaluation.clinical.selective import top_confidence
from grandrounds.evaluation.curves.binned import CurveCounts
from grandrounds.evaluation.score import MIN_CASES
from grandrounds.plotting import (
    COLOURS,
    GREY,
    INK,
    PALE,
    SMALL_SIZE,
    label_axes,
    new_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
