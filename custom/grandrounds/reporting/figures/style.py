"""One style for all figures of a report: a site, class or method looks the same in each of them.

Colours are those of all figures (:mod:`grandrounds.reporting.figures.drawing`); markers and dashes differ as well, so
that a grey print can be read.

Figures as files and as parts of a page.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from grandrounds.files import replacing
from grandrounds.reporting.figures.drawing import COLOURS
from grandrounds.reporting.html import Html, tag

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


INK, GREY = "#222222", "#6B6B6B"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
WIDTH, HEIGHT = 4.8, 3.6
SMALL, NORMAL = 8, 9.5


class Look(NamedTuple):
    """How one line is drawn."""

    colour: str
    marker: str
    dash: Any


def looks(names: Sequence[str]) -> dict[str, Look]:
    """A look for each name, by its place; no two of up to 28 are the same.

    Example:
        >>> looks(["site-1"])["site-1"].colour
        '#0072B2'
    """
    count = len(COLOURS)
    return {
        name: Look(
            COLOURS[number % count],
            MARKERS[number % count],
            DASHES[(number % count + number // count) % len(DASHES)],
        )
        for number, name in enumerate(names)
    }


def new_axes(
    width: float = WIDTH, height: float = HEIGHT, bottom: float = 0.55, left: float = 0.65
) -> tuple[Figure, Axes]:
    """One plot of so many inches; margins are fixed, because a layout that is found takes longer than the drawing."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110)
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
    """A small legend that covers nothing more than it must."""
    axes.legend(
        fontsize=SMALL, frameon=True, framealpha=0.8, edgecolor="none", loc=place, ncols=columns, handlelength=2.4
    )


def draw_line(
    axes: Axes, look: Look, across: Sequence[float], up: Sequence[float], label: str, markers: int = 6
) -> None:
    """A line with a few markers, so that it is known without its colour."""
    every = max(len(across) // max(markers, 1), 1)
    axes.plot(
        across,
        up,
        color=look.colour,
        linestyle=look.dash,
        marker=look.marker,
        markevery=every,
        markersize=4,
        linewidth=1.5,
        label=label,
    )


# Text stays text: it can be searched and read aloud, and the file is smaller. Ids do not depend on chance.
SVG_OPTIONS = {"svg.fonttype": "none", "svg.hashsalt": "grandrounds", "font.family": "sans-serif"}


class Drawing(NamedTuple):
    """A figure of the report.

    Attributes:
        name: of its files, without ending.
        figure: the picture.
        alt: what it shows, with its main numbers, for those who cannot see it.
        caption: how to read it.
    """

    name: str
    figure: Figure
    alt: str
    caption: str


def svg_of(figure: Figure) -> bytes:
    """A figure as SVG without a date: the same figure gives the same bytes."""
    import matplotlib

    stream = io.BytesIO()
    with matplotlib.rc_context(SVG_OPTIONS):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def write_drawing(drawing: Drawing, folder: Path, svg: bytes) -> None:
    """Write a figure as ``NAME.svg`` and ``NAME.png``."""
    picture = io.BytesIO()
    drawing.figure.savefig(picture, format="png", metadata={"Software": None})
    for ending, content in (("svg", svg), ("png", picture.getvalue())):
        with replacing(folder / f"{drawing.name}.{ending}") as stream:
            stream.write(content)


def figure_element(drawing: Drawing, svg: bytes) -> Html:
    """A figure in the page itself, with its alternative text and caption."""
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    width, _ = drawing.figure.get_size_inches()
    image = tag("img", src=source, alt=drawing.alt, style=f"width:{width * 96:.0f}px")
    return tag("figure", image, tag("figcaption", drawing.caption))
