"""Curves over rounds, from the events of a run's record.

Figures of a run's course and cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from grandrounds.ordering import natural_sorted
from grandrounds.reporting.figures.drawing import over_rounds
from grandrounds.reporting.figures.style import draw_legend, draw_line, label_axes, looks, new_axes
from grandrounds.reporting.run import Event, Spent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


VALIDATION = "validation."
Curves = dict[str, dict[int, float]]
"""A value for each site and for some of the rounds."""


def sites_of(events: Iterable[Event]) -> list[str]:
    """All sites of a run: those at its start, those that joined later, and those that never answered."""
    found: set[str] = set()
    for event in events:
        if event["event"] == "start":
            found |= set(event["sites"])
        elif event["event"] in ("answer", "dropped"):
            found.add(event["site"])
    return natural_sorted(found)


def validation_curves(events: Iterable[Event], sites: Sequence[str], metric: str) -> Curves:
    """Each site's validation score by the round after which the scored model was made; sites without any are left out."""
    # A task scores the model that its round starts from.
    return {
        site: {number - 1: score for number, score in curve.items()}
        for site, curve in _answered(events, sites, VALIDATION + metric).items()
    }


def training_curves(events: Iterable[Event], sites: Sequence[str], name: str) -> Curves:
    """A metric of the training by site and round; sites without it are left out."""
    return _answered(events, sites, name)


def round_curve(events: Iterable[Event], *names: str) -> dict[int, float]:
    """A note of the rounds by round.

    Args:
        events: of a run.
        names: of the note, and of an entry in it where it is an object.
    """
    found: dict[int, float] = {}
    for event in events:
        value = event if event["event"] == "round_end" else None
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, (int, float)):
            found[int(event["round"])] = float(value)
    return found


def _answered(events: Iterable[Event], sites: Sequence[str], name: str) -> Curves:
    curves: Curves = {site: {} for site in sites}
    for event in events:
        value = event["metrics"].get(name) if event["event"] == "answer" else None
        if value is not None:
            curves[event["site"]][int(event["round"])] = float(value)
    return {site: curve for site, curve in curves.items() if curve}


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
