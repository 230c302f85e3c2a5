"""One style for all figures: palette, sizes, lines over rounds, and the record of a finished figure.

The first colours of lines and dots are those of Okabe and Ito ("Color Universal Design", 2008), the others are from Paul
Tol's muted scheme ("Colour Schemes", SRON/EPS/TN/09-002, 2021); matrices have shades of one colour. Markers and dashes
differ as well, so that people with any kind of colour vision can distinguish lines, also in a grey print. A site, class or
method has the same look in every figure of a report, and its name is never read as mathematics. Nothing goes through pyplot:
there is no global state, and no display is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, VERMILION = "#0072B2", "#D55E00"
INK, GREY, PALE = "#222222", "#595959", "#D0D0D0"
COLOURS = (
    BLUE, VERMILION, "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999",
    "#332288", "#117733", "#882255", "#44AA99", "#999933", "#AA4499", "#661100", "#6699CC", "#B8860B", "#DD3377",
    "#4B5D00", "#7B4FD0",
)  # fmt: skip
"""Of lines and dots, in this order. Yellow is left out: it cannot be seen on white."""
MAX_LINES = len(COLOURS)
"""Of more lines than this only the median, a band and the extremes are drawn."""
EXTREMES = 5
MATRIX_COLOURS = "Blues"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
WIDTH, HEIGHT = 4.8, 3.6
SMALL_SIZE, NORMAL_SIZE = 8, 9.5
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
    """A look for each name, by its position; up to ``MAX_LINES`` have different colours, and no two are the same.

    Example:
        >>> looks(["site-1"])["site-1"].colour
        '#0072B2'
    """
    # Colours repeat after 20 names; markers after 8, each time with the next dash.
    return {
        name: Look(
            COLOURS[number % len(COLOURS)],
            MARKERS[number % len(MARKERS)],
            DASHES[(number + number // len(MARKERS)) % len(DASHES)],
        )
        for number, name in enumerate(names)
    }


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, its size in inches, with automatic layout, for figures of several panels."""
    return _plain_figure()(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")


def new_axes(
    width: float = WIDTH, height: float = HEIGHT, bottom: float = 0.55, left: float = 0.65
) -> tuple[Figure, Axes]:
    """One plot, its size in inches; its margins are fixed, because automatic layout takes longer than drawing."""
    figure = _plain_figure()(figsize=(width, height), dpi=DOTS_PER_INCH)
    axes = figure.add_axes((left / width, bottom / height, 1 - (left + 0.15) / width, 1 - (bottom + 0.35) / height))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL_SIZE)
    return figure, axes


@cache
def _plain_figure() -> type[Figure]:
    """The class of all figures: names of sites and classes are of other people, and a dollar sign in them is one."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    class PlainFigure(Figure):
        def draw(self, renderer: Any) -> None:
            for text in self.findobj(Text):
                text.set_parse_math(False)
            with rc_context({"text.parse_math": False}):  # for ticks that are made now
                super().draw(renderer)

    return PlainFigure


def label_axes(axes: Axes, across: str, up: str, title: str = "") -> None:
    """Name the axes and write the title on the left."""
    axes.set_xlabel(across, fontsize=NORMAL_SIZE)
    axes.set_ylabel(up, fontsize=NORMAL_SIZE)
    if title:
        axes.set_title(title, fontsize=NORMAL_SIZE, loc="left", color=INK)


def draw_legend(axes: Axes, place: str = "best", columns: int = 1) -> None:
    """A small, half transparent legend."""
    axes.legend(
        fontsize=SMALL_SIZE, frameon=True, framealpha=0.8, edgecolor="none", loc=place, ncols=columns, handlelength=2.4
    )


def draw_line(axes: Axes, look: Look, across: Sequence[float], up: Sequence[float], label: str) -> None:
    """A line with about six markers, so that it is recognised without its colour."""
    style = {"color": look.colour, "linestyle": look.dash, "marker": look.marker, "markersize": 4, "linewidth": 1.5}
    axes.plot(across, up, markevery=max(len(across) // 6, 1), label=label, **style)


def round_axis(axes: Axes) -> None:
    """Make the horizontal axis count rounds, and keep only the two spines that carry a scale."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
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

    Of more than ``MAX_LINES`` curves there are the median, a band, and the highest and lowest ``EXTREMES`` at the end.

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
    figure, axes = new_axes(height=HEIGHT + 0.16 * max(min(len(curves), MAX_LINES) - 8, 0))
    if len(curves) > MAX_LINES:
        _draw_many(axes, curves, names)
    else:
        for name, curve in curves.items():
            if rounds := sorted(curve):
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


def _draw_many(axes: Axes, curves: Mapping[str, Mapping[int, float]], names: Sequence[str]) -> None:
    """The median of more curves than can be told apart, a band of the middle 80 %, and the extremes of the last round."""
    rounds = sorted({number for curve in curves.values() for number in curve})
    values = [sorted(curve[number] for curve in curves.values() if number in curve) for number in rounds]
    low, middle, high = ([of[round(part * (len(of) - 1))] for of in values] for part in (0.1, 0.5, 0.9))
    axes.fill_between(rounds, low, high, color=PALE, linewidth=0, label="middle 80 %")
    ordered = sorted((name for name in curves if rounds[-1] in curves[name]), key=lambda name: curves[name][rounds[-1]])
    look = looks(names)
    for name in [*ordered[-EXTREMES:][::-1], *ordered[:EXTREMES][::-1]]:
        draw_line(
            axes, look[name], sorted(curves[name]), [curves[name][number] for number in sorted(curves[name])], name
        )
    axes.plot(rounds, middle, color=INK, linewidth=2.5, label=f"median of {len(curves)}")


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
