"""A figure of FedIRM's benchmark: a score against a number of sites (Liu et al., MICCAI 2021, Fig. 2 b and c)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from grandrounds.plotting import draw_legend, draw_line, label_axes, looks, new_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def score_over_sites_figure(curves: Mapping[str, Mapping[int, float]], label: str, score: str) -> Figure:
    """A score against a number of sites, a line for each method.

    Args:
        curves: by method, the score by the number of sites, at least one.
        label: what is counted, for example ``sites with labels``.
        score: what the score is called.

    Raises:
        ValueError: if there is no method, or one has no score.
    """
    if not curves or not all(curves.values()):
        raise ValueError(f"expected at least one method, with a score each, got {dict(curves)}")
    figure, axes = new_axes(5.2, 3.4)
    for name, curve in curves.items():
        numbers = sorted(curve)
        draw_line(axes, looks(list(curves))[name], numbers, [curve[number] for number in numbers], name)
    label_axes(axes, label, score)
    axes.set_xticks(sorted({number for curve in curves.values() for number in curve}))
    draw_legend(axes)
    return figure
