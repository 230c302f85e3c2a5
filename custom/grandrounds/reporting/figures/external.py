"""Figures of a positive group at one place: ROC curve, reliability and net benefit, from binned counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grandrounds.evaluation.clinical.decision import DecisionCurve
from grandrounds.evaluation.curves.binned import CurveCounts
from grandrounds.evaluation.curves.points import roc_points
from grandrounds.plotting import BLUE, GREY, INK, PALE, SMALL_SIZE, VERMILION, draw_legend, label_axes, new_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def external_roc_figure(counts: CurveCounts, point: tuple[float, float] | None) -> Figure:
    """The ROC curve at the bins' edges, chance, and the operating point (specificity, sensitivity) if there is one."""
    figure, axes = new_axes()
    curve = roc_points(counts)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":", label="chance")
    axes.plot(curve.across, curve.up, color=BLUE, marker="o", markersize=3, linewidth=1.6, label="model")
    if point:
        axes.plot(1 - point[0], point[1], "X", color=VERMILION, markersize=10, label="operating point")
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    label_axes(axes, "1 - specificity", "sensitivity", "ROC of the positive group")
    draw_legend(axes, "lower right")
    return figure


def calibration_figure(counts: CurveCounts, name: str) -> Figure:
    """The share of positive cases in each bin of the probability, at its centre; a dot's area is its number of cases."""
    figure, axes = new_axes()
    together = counts.positives + counts.negatives
    kept = together > 0
    centres = ((counts.edges[1:] + counts.edges[:-1]) / 2)[kept]
    shares = (counts.positives[kept] / together[kept]).tolist()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    axes.hlines(shares, counts.edges[:-1][kept], counts.edges[1:][kept], color=PALE, linewidth=3)
    sizes = 20 + 300 * together[kept] / together.sum()
    axes.scatter(centres, shares, s=sizes, color=BLUE, edgecolors=INK, linewidths=0.6, zorder=3)
    axes.text(0.03, 0.95, "risk too low", fontsize=SMALL_SIZE, color=GREY, va="top")
    axes.text(0.97, 0.05, "risk too high", fontsize=SMALL_SIZE, color=GREY, ha="right")
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    label_axes(axes, f"probability of {name}", "share that is positive", "Reliability of the positive group")
    return figure


def decision_figure(decision: DecisionCurve, name: str) -> Figure:
    """Net benefit over thresholds with its interval, beside calling all images positive, and none."""
    figure, axes = new_axes(left=0.8)
    across, everybody = decision.thresholds, decision.treat_all
    axes.fill_between(across, decision.low, decision.high, color=BLUE, alpha=0.18, linewidth=0)
    axes.plot(across, decision.model, color=BLUE, marker="o", markersize=3, linewidth=1.6, label="model")
    axes.plot(across, everybody, color=VERMILION, linestyle="--", linewidth=1.3, label="call all positive")
    axes.axhline(0, color=INK, linewidth=1, linestyle=":", label="call none positive")
    top = max(decision.high.max(), everybody.max(), 0.01)
    axes.set_ylim(max(decision.low.min(), -top), 1.15 * top)
    label_axes(axes, f"threshold for {name}", "net benefit per image", "Net benefit, 95 % interval")
    draw_legend(axes, "upper right")
    return figure
