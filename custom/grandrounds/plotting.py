"""One style for all figures: palette, sizes, lines over rounds, and the record of a finished figure.

Colours of lines and dots are those of Okabe and Ito ("Color Universal Design", 2008), matrices have shades of one colour, so
that people with any kind of colour vision can distinguish them; markers and dashes also differ, for a grey print. A
site, class or method has the same look in every figure of a report. Nothing goes through pyplot: there is no global state,
and no display is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, VERMILION = "#0072B2", "#D55E00"
INK, GREY, PALE = "#222222", "#595959", "#D0D0D0"
COLOURS = (BLUE, VERMILION, "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999")
"""Of lines and dots, in this order. Yellow is left out: it cannot be seen on white."""
MATRIX_COLOURS = "Blues"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
WIDTH, HEIGHT = 4.8, 3.6
SMALL, NORMAL = 8, 9.5
DOTS_PER_INCH = 150


class Drawing(NamedTuple):
    """A figure with its words.

    Attributes:
        name: of its files, without ending.
        alt: what it shows, with its main numbers, for readers who cannot see it.
        caption: how to read it.
    """

    name: str
    figure: Figure
    alt: str
    caption: str


class Look(NamedTuple):
    """How one line is drawn."""

    colour: str
    marker: str
    dash: Any


def looks(names: Sequence[str]) -> dict[str, Look]:
    """A look for each name, by its position; no two of up to 28 are the same.

    Example:
        >>> looks(["site-1"])["site-1"].colour
        '#0072B2'
    """
    count = len(COLOURS)
    return {
        name: Look(
            COLOURS[number % count], MARKERS[number % count], DASHES[(number % count + number // count) % len(DASHES)]
        )
        for number, name in enumerate(names)
    }


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches with automatic layout, for figures of several panels."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")


def new_axes(
    width: float = WIDTH, height: float = HEIGHT, bottom: float = 0.55, left: float = 0.65
) -> tuple[Figure, Axes]:
    """One plot of so many inches; its margins are fixed, because automatic layout takes longer than drawing."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH)
    axes = figure.add_axes((left / width, bottom / height, 1 - (left + 0.15) / width, 1 - (bottom + 0.35) / height))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL)
    return figure, axes


def label_axes(axes: Axes, across: str, up: str, title: str = "") -> None:
    """Name the axes and write the title on the left."""
    axes.set_xlabel(across, fontsize=NORMAL)
    axes.set_ylabel(up, fontsize=NORMAL)
    if title:
        axes.set_title(title, fontsize=NORMAL, loc="left", color=INK)


def draw_legend(axes: Axes, place: str = "best", columns: int = 1) -> None:
    """A small, half transparent legend."""
    axes.legend(
        fontsize=SMALL, frameon=True, framealpha=0.8, edgecolor="none", loc=place, ncols=columns, handlelength=2.4
    )


def draw_line(axes: Axes, look: Look, across: Sequence[float], up: Sequence[float], label: str) -> None:
    """A line with about six markers, so that it is recognised without its colour."""
    style = {"color": look.colour, "linestyle": look.dash, "marker": look.marker, "markersize": 4, "linewidth": 1.5}
    axes.plot(across, up, markevery=max(len(across) // 6, 1), label=label, **style)


def round_axis(axes: Axes) -> None:
    """Make the horizontal axis count rounds, and keep only the two spines that carry a scale."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 5, 10]))
    axes.margins(x=0.03)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL)


def rounds_figure(
    curves: Mapping[str, Mapping[int, float]], names: Sequence[str], scale: str, title: str, top: float | None = None
) -> Figure | None:
    """Lines over rounds, by name and round; None without values.

    ``names`` are all that may have a line, so that each has its look everywhere; ``scale`` is what the values are, and
    ``top`` is the scale's upper end, found from the values without one.
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
    round_axis(axes)
    draw_legend(axes, "best", columns=2 if len(curves) > 5 else 1)
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
