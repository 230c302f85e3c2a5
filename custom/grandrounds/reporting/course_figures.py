"""Figures of a run's course and cost, and of several runs beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.communication import traffic
from grandrounds.reporting.run import Run, Spent
from grandrounds.reporting.scores import RunScores
from grandrounds.reporting.style import (
    COLOURS,
    INK,
    MATRIX_COLOURS,
    PALE,
    SMALL,
    draw_legend,
    draw_line,
    label_axes,
    looks,
    new_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VALIDATION = "validation."
MEGABYTE = 1e6
HATCHES = ("", "//", "\\\\")
Curves = dict[str, dict[int, float]]


def validation_curves(run: Run, metric: str) -> Curves:
    """Each site's validation score by the round after which the scored model was made."""
    curves: Curves = {}
    for event in run.events:
        score = event["metrics"].get(VALIDATION + metric) if event["event"] == "answer" else None
        if score is not None:
            # A task scores the model that its round starts from.
            curves.setdefault(event["site"], {})[int(event["round"]) - 1] = float(score)
    return {site: curves[site] for site in run.sites if site in curves}


def learning_figure(curves: Curves, sites: Sequence[str], metric: str) -> Figure | None:
    """Validation score of each site over rounds.

    Args:
        curves: by site and round.
        sites: all sites of the report, so that each has its colour everywhere.
        metric: what the score is called.

    Returns:
        None without curves.
    """
    if not curves:
        return None
    figure, axes = new_axes()
    for site, curve in curves.items():
        rounds = sorted(curve)
        draw_line(axes, looks(sites)[site], rounds, [curve[number] for number in rounds], site)
    label_axes(axes, "round", f"{metric.replace('_', ' ')}, validation", "Learning curves")
    axes.set_ylim(0, 1.02)
    _whole_rounds(axes)
    draw_legend(axes, "best", columns=2 if len(curves) > 5 else 1)
    return figure


def mean_learning_figure(runs: Mapping[str, Curves], names: Sequence[str], metric: str) -> Figure | None:
    """Mean validation score over sites, a line for each run.

    Returns:
        None without curves.
    """
    if not any(runs.values()):
        return None
    figure, axes = new_axes()
    for name, curves in runs.items():
        rounds = sorted({number for curve in curves.values() for number in curve})
        means = [fmean(curve[number] for curve in curves.values() if number in curve) for number in rounds]
        if rounds:
            draw_line(axes, looks(names)[name], rounds, means, name)
    label_axes(axes, "round", f"{metric.replace('_', ' ')}, validation", "Learning curves, mean over sites")
    axes.set_ylim(0, 1.02)
    _whole_rounds(axes)
    draw_legend(axes, "best")
    return figure


def site_figure(scores: Mapping[str, RunScores], sites: Sequence[str], metric: str) -> Figure:
    """Test score at each site with its interval, a mark for each run."""
    below = 0.19 * ((len(scores) + 1) // 2) if len(scores) > 1 else 0.0
    height = 1.1 + below + max(len(sites), 2) * (0.24 + 0.07 * len(scores))
    left = 0.3 + 0.075 * max(len(site) for site in sites)
    figure, axes = new_axes(height=height, left=left, bottom=0.55 + below)
    step = 0.8 / len(scores)
    for number, (name, found) in enumerate(scores.items()):
        look = looks(list(scores))[name]
        offset = (number - (len(scores) - 1) / 2) * step
        for row, site in enumerate(sites):
            place = found.sites.get(site)
            if place is None or not place.scores[metric].enough:
                continue
            estimate = place.scores[metric]
            colour = looks(sites)[site].colour if len(scores) == 1 else look.colour
            axes.plot([estimate.low, estimate.high], [row + offset] * 2, color=colour, linewidth=1.3)
            axes.plot(estimate.value, row + offset, look.marker, color=colour, markersize=4)
        axes.plot([], [], look.marker, color=look.colour, markersize=4, label=name)
    axes.set_yticks(range(len(sites)), sites, fontsize=SMALL)
    axes.set_ylim(len(sites) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.grid(axis="x", color=PALE, linewidth=0.5)
    axes.set_axisbelow(True)
    label_axes(axes, metric.replace("_", " "), "", "Test images of each site, 95 % interval")
    if len(scores) > 1:
        figure.legend(loc="lower left", bbox_to_anchor=(0.02, 0), ncols=2, fontsize=SMALL, frameon=False)
    return figure


def traffic_figure(runs: Mapping[str, Run]) -> Figure | None:
    """Megabytes of tensors to and from the sites, a bar for each run.

    Returns:
        None if nothing was sent.
    """
    moved = {name: traffic(run.bytes) for name, run in runs.items()}
    if not any(sum(entry) for entry in moved.values()):
        return None
    left = 0.4 + 0.075 * max(len(name) for name in moved)
    figure, axes = new_axes(height=1.5 + 0.32 * len(moved), left=left)
    starts = np.zeros(len(moved))
    parts = zip(
        ("global models, to sites", "all else, to sites", "from sites"), zip(*moved.values(), strict=True), strict=True
    )
    for number, (label, sizes) in enumerate(parts):
        values = np.array(sizes) / MEGABYTE
        axes.barh(
            range(len(moved)), values, left=starts, height=0.6, color=(COLOURS[0], COLOURS[4], COLOURS[5])[number],
            hatch=HATCHES[number], edgecolor=INK, linewidth=0.5, label=label,
        )  # fmt: skip
        starts += values
    axes.set_yticks(range(len(moved)), list(moved), fontsize=SMALL)
    axes.set_ylim(len(moved) + 0.35, -0.5)
    label_axes(axes, "MB of tensors, all sites and rounds", "", "Communication")
    axes.legend(fontsize=SMALL, frameon=False, loc="lower right", ncols=3, handlelength=1.2, columnspacing=0.8)
    return figure


def budget_figure(spent: Sequence[Spent], sites: Sequence[str]) -> Figure | None:
    """Epsilon of each site's ledger over rounds.

    Returns:
        None where no ledger has a finite epsilon.
    """
    known = [entry for entry in spent if any(epsilon is not None for _, epsilon in entry.history)]
    if not known:
        return None
    figure, axes = new_axes()
    for entry in known:
        points = [(number, epsilon) for number, epsilon in entry.history if epsilon is not None]
        rounds, epsilons = [float(number) for number, _ in points], [float(epsilon) for _, epsilon in points]
        draw_line(axes, looks(sites)[entry.site], rounds, epsilons, f"{entry.site} (per {entry.unit})")
    axes.set_ylim(bottom=0)
    label_axes(axes, "round", f"epsilon (delta {known[0].delta:g})", "Privacy budget")
    _whole_rounds(axes)
    draw_legend(axes, "best")
    return figure


def matrix_figure(matrix: NDArray[np.float64], names: Sequence[str], title: str) -> Figure:
    """A matrix of classes or sites with its values; NaN rows stay empty."""
    side = max(2.6, 0.55 * len(names) + 0.4)
    margin = 0.35 + 0.075 * max(len(name) for name in names)
    figure, axes = new_axes(side + margin + 0.3, side + margin + 0.3, bottom=margin, left=margin)
    axes.imshow(matrix, cmap=MATRIX_COLOURS, vmin=0, vmax=float(np.nanmax(matrix)) if np.isfinite(matrix).any() else 1)
    axes.set_facecolor(PALE)
    most = float(np.nanmax(matrix)) if np.isfinite(matrix).any() else 1.0
    for row, column in np.argwhere(np.isfinite(matrix)).tolist():
        value = float(matrix[row, column])
        colour = "white" if value > 0.6 * most else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=SMALL, color=colour)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=SMALL)
    axes.set_yticks(range(len(names)), names, fontsize=SMALL)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=9.5, loc="left", color=INK)
    return figure


def _whole_rounds(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 5, 10]))
