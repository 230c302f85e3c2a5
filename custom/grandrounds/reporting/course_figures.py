"""Figures of a run's course and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from grandrounds.evaluation.drawing import over_rounds
from grandrounds.reporting.curves import Curves
from grandrounds.reporting.run import Spent
from grandrounds.reporting.style import draw_legend, draw_line, label_axes, looks, new_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def learning_figure(curves: Curves, sites: Sequence[str], metric: str) -> Figure | None:
    """Validation score of each site over rounds.

    Args:
        curves: by site and round.
        sites: all sites of the report, so that each has its colour everywhere.
        metric: what the score is called.

    Returns:
        None without curves.
    """
    return rounds_figure(curves, sites, f"{metric.replace('_', ' ')}, validation", "Learning curves", top=1.02)


def rounds_figure(
    curves: Mapping[str, Mapping[int, float]], names: Sequence[str], scale: str, title: str, top: float | None = None
) -> Figure | None:
    """Lines over rounds.

    Args:
        curves: by name and round; those without a value are left out.
        names: of all that may have a line, so that each has its look everywhere.
        scale: what the values are.
        title: of the figure.
        top: upper end of the scale; without one it is found.

    Returns:
        None without values.
    """
    if not any(curves.values()):
        return None
    figure, axes = new_axes()
    for name, curve in curves.items():
        rounds = sorted(curve)
        if rounds:
            draw_line(axes, looks(names)[name], rounds, [curve[number] for number in rounds], name)
    label_axes(axes, "round", scale, title)
    axes.set_ylim(0, top)
    over_rounds(axes)
    draw_legend(axes, "best", columns=2 if len(curves) > 5 else 1)
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
    over_rounds(axes)
    draw_legend(axes, "best")
    return figure
