"""A figure over rounds, for what a method records in its events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
from grandrounds.plotting import (
    BLUE,
    GREY,
    HEIGHT,
    MAX_LINES,
    NORMAL_SIZE,
    PALE,
    SMALL_SIZE,
    draw_legend,
    draw_line,
    label_axes,
    looks,
    new_axes,
    new_figure,
)


def round_axis(axes: Axes) -> None:
    """Make the horizontal axis count rounds, and keep only the two spines that carry a scale."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 5, 10]))
    axes.margins(x=0.03)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL_SIZE)


def rounds_figure(
    curves: Mapping[str, Mapping[int, float]],
    names: Sequence[str],
    scale: str,
    title: str,
    top: float | None = None,
    level: tuple[float, str] | None = None,
) -> Figure | None:
    """Lines over rounds, by name and round; None without values.

    With more than ``MAX_LINES`` curves each has a panel, in which the others are pale.

    Args:
        curves: by name and round.
        names: all that may have a line, so that each has its look everywhere.
        scale: what the values are.
        title: of the figure.
        top: the scale's upper end; found from the values without one.
        level: a reference, its value and what it is, drawn as a dotted line.
    """
    if not any(curves.values()):
        return None
    if len(curves) > MAX_LINES:
        return _small_multiples(curves, scale, title, top, level)
    figure, axes = new_axes(height=HEIGHT + 0.16 * max(len(curves) - 8, 0))
    for name, curve in curves.items():
        rounds = sorted(curve)
        if rounds:
            draw_line(axes, looks(names)[name], rounds, [curve[number] for number in rounds], name)
    _draw_level(axes, level)
    label_axes(axes, "round", scale, title)
    axes.set_ylim(0, top)
    round_axis(axes)
    draw_legend(axes, "best", columns=2 if len(curves) > 5 else 1)
    return figure


def _draw_level(axes: Axes, level: tuple[float, str] | None) -> None:
    if level:
        axes.axhline(level[0], color=GREY, linewidth=1.2, linestyle=":", label=level[1])


def _small_multiples(
    curves: Mapping[str, Mapping[int, float]],
    scale: str,
    title: str,
    top: float | None,
    level: tuple[float, str] | None,
    columns: int = 5,
) -> Figure:
    rows = -(-len(curves) // columns)
    figure = new_figure(2.2 * columns, 1.5 * rows + 0.8)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, (name, curve) in zip(panels, curves.items(), strict=False):
        for other in curves.values():
            axes.plot(sorted(other), [other[number] for number in sorted(other)], color=PALE, linewidth=0.6)
        axes.plot(sorted(curve), [curve[number] for number in sorted(curve)], color=BLUE, linewidth=1.6)
        _draw_level(axes, level)
        axes.set_title(name, fontsize=SMALL_SIZE, loc="left", pad=2)
        axes.set_ylim(0, top)
        round_axis(axes)
    for axes in panels[len(curves) :]:
        axes.set_axis_off()
    figure.supxlabel("round", fontsize=NORMAL_SIZE)
    figure.supylabel(scale, fontsize=NORMAL_SIZE)
    figure.suptitle(f"{title}; others pale{f', dotted: {level[1]}' if level else ''}", fontsize=NORMAL_SIZE)
    return figure


def rounds_to_show(rounds: Sequence[int], first: int | None = None) -> list[int]:
    """Rounds whose matrices are drawn: ``first`` (else the first of all), the last, and two between.

    Example:
        >>> rounds_to_show(range(1, 101), first=11)
        [11, 33, 55, 100]
        >>> rounds_to_show([1, 2])
        [1, 2]
    """
    later = [number for number in rounds if number >= (first or 0)] or list(rounds[-1:])
    last = len(later) - 1
    return [later[index] for index in sorted({0, last // 4, last // 2, last})]
