"""Figures of a run's training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from grandrounds.evaluation.history import Curves, RunHistory, round_curve, validation_curves
from grandrounds.methods import method_figures
from grandrounds.plotting import (
    Drawing,
    draw_legend,
    draw_line,
    label_axes,
    looks,
    new_axes,
    round_axis,
    rounds_figure,
)
from grandrounds.reporting.comparison import chance_of
from grandrounds.reporting.figures.methods import MEGABYTE
from grandrounds.reporting.format import SCORE_NAMES, format_items, format_number
from grandrounds.reporting.run import Spent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def training_drawings(history: RunHistory, metric: str | None, sites: Sequence[str]) -> list[Drawing]:
    """The figures that a run's events give, whatever its method; without a metric there are no learning curves.

    ``sites`` are all of the report, so that each has its colour everywhere.
    """
    curves = validation_curves(history.events, history.sites, metric) if metric else {}
    last = {site: format_number(curve[max(curve)]) for site, curve in curves.items()}
    moved = {
        label: {number: size / MEGABYTE for number, size in round_curve(history.events, "moved", direction).items()}
        for direction, label in (("down", "to sites"), ("up", "from sites"))
    }
    learning = drawing_of(
        "learning",
        learning_figure(curves, sites, metric or "", chance=chance_of(metric, len(history.classes))),
        f"{SCORE_NAMES.get(metric or '', metric)} on validation images, last round: {format_items(last)}",
        f"{_progress(curves)} Each site's validation images. They chose the model, so this is not a result. At a site "
        "that lacks classes, always predicting one class scores more than the dotted line.",
    )
    traffic = drawing_of(
        "traffic",
        rounds_figure(moved, list(moved), "MB of tensors, all sites", "Communication so far"),
        "Megabytes transferred by each round",
        "Tensors of all sites so far; what FLARE adds to a message is not counted.",
    )
    return [*learning, *method_figures(history), *traffic]


def _progress(curves: Curves) -> str:
    """The mean over sites in the first and in the last round in which all sites scored."""
    rounds = sorted(set.intersection(*map(set, curves.values()))) if curves else []
    if len(rounds) < 2:
        return ""
    first, last = (fmean(curve[number] for curve in curves.values()) for number in (rounds[0], rounds[-1]))
    return f"Mean over sites: {first:.2f} after round {rounds[0]}, {last:.2f} after round {rounds[-1]}."


def learning_figure(
    curves: Mapping[str, Mapping[int, float]],
    names: Sequence[str],
    metric: str,
    title: str = "Learning curves",
    chance: float | None = None,
) -> Figure | None:
    """Validation score over rounds, a line for each site or method; None without curves.

    ``names`` are all that may have a line, so that each has its colour everywhere; ``chance`` is the score of a guess.
    """
    level = None if chance is None else (chance, "chance")
    return rounds_figure(curves, names, f"{metric.replace('_', ' ')}, validation", title, top=1.02, level=level)


def budget_figure(spent: Sequence[Spent], sites: Sequence[str]) -> Figure | None:
    """Epsilon of each site's ledger over rounds; None where no ledger has a finite epsilon."""
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
    round_axis(axes)
    draw_legend(axes, "best")
    return figure


def drawing_of(name: str, figure: Figure | None, alt: str, caption: str) -> list[Drawing]:
    """A figure with its words; nothing where there is nothing to draw."""
    return [] if figure is None else [Drawing(name, figure, alt, caption)]
