"""Figures as files and as parts of a page."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from grandrounds.files import replacing
from grandrounds.reporting.html import Html, tag

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
