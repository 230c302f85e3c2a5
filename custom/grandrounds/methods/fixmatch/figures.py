"""FixMatch's figure: how many pseudo-labels are accepted, and how many of those are correct."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING

from grandrounds.evaluation.history import RunHistory, training_curves
from grandrounds.plotting import BLUE, GREY, NORMAL_SIZE, VERMILION, Drawing, new_figure, round_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curves = Mapping[str, Mapping[int, float]]


def figures(history: RunHistory) -> list[Drawing]:
    """Accepted pseudo-labels and their accuracy, if the run's sites report them."""
    accepted = training_curves(history.events, history.sites, "accepted")
    if not accepted:
        return []
    accuracy = training_curves(history.events, history.sites, "pseudo_label_accuracy")
    caption = "How many unlabelled images were used, and how many of those labels are right where the truth is known."
    return [Drawing("pseudo_labels", pseudo_label_figure(accepted, accuracy), "Pseudo-labels", caption)]


def pseudo_label_figure(accepted: Curves, accuracy: Curves) -> Figure:
    """How many pseudo-labels are accepted, and how many of those are right: sites as dots, their mean as a line.

    Args:
        accepted: accepted share of the unlabelled images, in [0, 1], for each site and the rounds it took part in.
        accuracy: share of the accepted ones that are right, where the hidden labels are known; may be empty.
    """
    parts = [("accepted share of unlabelled images", accepted, BLUE)]
    if any(accuracy.values()):
        parts.append(("right among the accepted", accuracy, VERMILION))
    figure = new_figure(7.0, 0.8 + 2.2 * len(parts))
    panels = figure.subplots(len(parts), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (title, curves, colour) in zip(panels, parts, strict=True):
        for curve in curves.values():
            axes.plot(*_line(curve), ".", color=GREY, markersize=4, alpha=0.5, markeredgewidth=0)
        mean = _means(curves)
        axes.plot(*_line(mean), color=colour, linewidth=1.8, marker="." if len(mean) == 1 else None)
        axes.set_ylim(0, 1.02)
        axes.set_title(title, fontsize=NORMAL_SIZE, loc="left", color=colour)
        round_axis(axes)
    panels[-1].set_xlabel("round (dots: sites, line: their mean)", fontsize=NORMAL_SIZE)
    return figure


def _line(curve: Mapping[int, float]) -> tuple[list[int], list[float]]:
    rounds = sorted(curve)
    return rounds, [curve[number] for number in rounds]


def _means(curves: Curves) -> dict[int, float]:
    """Mean over the sites that have a value, for each round."""
    rounds = sorted({number for curve in curves.values() for number in curve})
    return {number: fmean(curve[number] for curve in curves.values() if number in curve) for number in rounds}
