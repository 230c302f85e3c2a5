"""Figures of several runs or methods beside each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from grandrounds.evaluation.history import Curves
from grandrounds.evaluation.score import Score
from grandrounds.federation.server.record import Traffic
from grandrounds.plotting import (
    COLOURS,
    GREY,
    INK,
    PALE,
    SMALL_SIZE,
    draw_legend,
    draw_line,
    label_axes,
    looks,
    new_axes,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MEGABYTE = 1e6


MIN_RANGE = 0.1


END = 4
"""Runs without a finite epsilon are drawn at this multiple of the largest one."""


HATCHES = ("", "//", "\\\\")


def method_figure(
    values: Mapping[str, Sequence[float]], means: Mapping[str, Score], metric: str, chance: float
) -> Figure:
    """A score of each method: its seeds as small dots, their mean as a mark, its interval (if not NaN) as a line.

    ``chance`` is the score of a guess, drawn as a vertical line.
    """
    left = 0.4 + 0.075 * max(len(name) for name in values)
    figure, axes = new_axes(height=1.1 + 0.34 * max(len(values), 2), left=left)
    for row, (name, of_method) in enumerate(values.items()):
        mean, look = means[name], looks(list(values))[name]
        axes.plot([mean.low, mean.high], [row, row], color=look.colour, linewidth=1.6)
        axes.plot(mean.value, row, look.marker, color=look.colour, markersize=6)
        if len(of_method) > 1:
            axes.plot(of_method, [row + 0.22] * len(of_method), ".", color=GREY, markersize=4)
    axes.axvline(chance, color=GREY, linewidth=1.2, linestyle=":")
    place = axes.get_xaxis_transform()
    axes.text(
        chance, 0.5, "chance", fontsize=SMALL_SIZE, color=GREY, rotation=90, ha="right", va="center", transform=place
    )
    axes.set_yticks(range(len(values)), list(values), fontsize=SMALL_SIZE)
    axes.set_ylim(len(values) - 0.4, -0.6)
    low, high = axes.get_xlim()
    missing = max(0.0, MIN_RANGE - (high - low)) / 2  # or a hundredth fills the picture
    axes.set_xlim(low - missing, high + missing)
    axes.locator_params(axis="x", nbins=5)
    axes.grid(axis="x", color=PALE, linewidth=0.5)
    axes.set_axisbelow(True)
    label_axes(axes, f"{metric.replace('_', ' ')}, test", "", "Methods, 95 % intervals")
    return figure


def site_figure(
    scores: Mapping[str, Mapping[str, Score]],
    sites: Sequence[str],
    metric: str,
    constant: Mapping[str, float],
    chance: float,
) -> Figure:
    """Test score at each site with its interval, a mark for each run or method; too few cases are not drawn.

    Args:
        scores: by run or method and site.
        sites: all of the report.
        metric: which score.
        constant: at each site the score of always answering its commonest class, drawn as a grey bar.
        chance: the score of a guess, drawn as a dotted line.
    """
    below = 0.19 * ((len(scores) + 1) // 2) if len(scores) > 1 else 0.0
    height = 1.1 + below + max(len(sites), 2) * (0.24 + 0.07 * len(scores))
    left = 0.3 + 0.075 * max(len(site) for site in sites)
    figure, axes = new_axes(height=height, left=left, bottom=0.55 + below)
    step = 0.8 / len(scores)
    for number, (name, of_method) in enumerate(scores.items()):
        look = looks(list(scores))[name]
        offset = (number - (len(scores) - 1) / 2) * step
        for row, site in enumerate(sites):
            estimate = of_method.get(site)
            if estimate is None or not estimate.known:
                continue
            colour = looks(sites)[site].colour if len(scores) == 1 else look.colour
            axes.plot([estimate.low, estimate.high], [row + offset] * 2, color=colour, linewidth=1.3)
            axes.plot(estimate.value, row + offset, look.marker, color=colour, markersize=4)
        axes.plot([], [], look.marker, color=look.colour, markersize=4, label=name)
    for row, site in enumerate(sites):
        if site in constant:
            axes.plot([constant[site]] * 2, [row - 0.42, row + 0.42], color=GREY, linewidth=2)
    axes.axvline(chance, color=GREY, linewidth=1, linestyle=":")
    axes.set_yticks(range(len(sites)), sites, fontsize=SMALL_SIZE)
    axes.set_ylim(len(sites) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.grid(axis="x", color=PALE, linewidth=0.5)
    axes.set_axisbelow(True)
    label_axes(axes, metric.replace("_", " "), "", "Test images of each site, 95 % interval")
    if len(scores) > 1:
        figure.legend(loc="lower left", bbox_to_anchor=(0.02, 0), ncols=2, fontsize=SMALL_SIZE, frameon=False)
    return figure


def mean_curves(runs: Mapping[str, Curves]) -> dict[str, dict[int, float]]:
    """Mean over the sites that have a value, for each round; by run or method."""
    means = {}
    for name, curves in runs.items():
        rounds = {number for curve in curves.values() for number in curve}
        means[name] = {
            number: fmean(curve[number] for curve in curves.values() if number in curve) for number in rounds
        }
    return means


class Utility(NamedTuple):
    """The test score of a method at a privacy budget per ``unit``; epsilon is infinite (and unit empty) without a ledger."""

    method: str
    unit: str
    epsilon: float
    score: float


def utility_figure(points: Sequence[Utility], metric: str, chance: float) -> Figure | None:
    """A score against the privacy budget, a line for each method and unit; what has no guarantee is at the right end.

    ``chance`` is the score of random guessing. None where no epsilon is finite, or there is one point alone.
    """
    finite = sorted({point.epsilon for point in points if math.isfinite(point.epsilon)})
    if not finite or len(points) == 1:
        return None
    figure, axes = new_axes()
    names = list(dict.fromkeys((point.method, point.unit) for point in points))
    look, end = looks([", per ".join(filter(None, name)) for name in names]), finite[-1] * END
    for name, (method, unit) in zip(look, names, strict=True):
        own = sorted((min(point.epsilon, end), point.score) for point in points if point[:2] == (method, unit))
        label = name if unit else f"{name}, no guarantee"
        draw_line(axes, look[name], [epsilon for epsilon, _ in own], [score for _, score in own], label)
    axes.axhline(chance, color=GREY, linewidth=1, linestyle=":", label="a guess")
    axes.set_xscale("log")
    ticks = [epsilon for epsilon, before in zip(finite, [0.0, *finite], strict=False) if epsilon > 1.2 * before]
    axes.set_xticks([*ticks, end], [*(f"{epsilon:.2g}" for epsilon in ticks), "none"])
    axes.minorticks_off()
    axes.set_xlim(finite[0] / 1.5, end * 1.5)
    axes.set_ylim(0, 1.02)
    label_axes(axes, "epsilon", f"{metric.replace('_', ' ')}, test", "Utility against privacy")
    draw_legend(axes, "best")
    return figure


def traffic_figure(moved: Mapping[str, Traffic]) -> Figure | None:
    """Megabytes of tensors to and from the sites, a bar for each run or method; None if nothing was sent."""
    if not any(sum(entry) for entry in moved.values()):
        return None
    left = 0.4 + 0.075 * max(len(name) for name in moved)
    figure, axes = new_axes(height=1.4 + 0.32 * len(moved), left=left, bottom=0.8)
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
    axes.set_yticks(range(len(moved)), list(moved), fontsize=SMALL_SIZE)
    axes.set_ylim(len(moved) - 0.5, -0.5)
    label_axes(axes, "MB of tensors, all sites and rounds", "", "Communication")
    figure.legend(fontsize=SMALL_SIZE, frameon=False, loc="lower left", ncols=3, handlelength=1.2, columnspacing=0.8)
    return figure
