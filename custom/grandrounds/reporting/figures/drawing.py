"""What the figures have in common: sizes, colours, and matrices whose rows and columns are sites.

Lines and dots have colours of Okabe and Ito ("Color Universal Design", 2008), matrices shades of one colour, so that people
with any kind of colour vision tell them apart. Nothing goes through pyplot: no global state is touched, and no display is
needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.communities import community_blocks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

BLUE, VERMILION, GREY, PALE = "#0072B2", "#D55E00", "#595959", "#D0D0D0"
COLOURS = (BLUE, VERMILION, "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999")
"""Of lines and dots, in this order. Yellow is left out: it cannot be seen on white."""
MATRIX_COLOURS = "Blues"
SMALL, NORMAL = 9, 11
DOTS_PER_INCH = 150
MAX_ROWS_WITH_NAMES = 60


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches that finds room for its labels."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")


def over_rounds(axes: Axes) -> None:
    """Make the horizontal axis count rounds, and leave of the frame what carries a scale."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 5, 10]))
    axes.margins(x=0.03)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL)


def name_rows_and_columns(axes: Axes, sites: Sequence[str], rows: bool = True) -> None:
    """Write the sites' names along a matrix; every so many of them where there are too many."""
    step = 1 + (len(sites) - 1) // MAX_ROWS_WITH_NAMES
    positions, names = range(0, len(sites), step), list(sites[::step])
    axes.set_xticks(positions, names, rotation=90, fontsize=SMALL)
    if rows:
        axes.set_yticks(positions, names, fontsize=SMALL)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def draw_boundaries(axes: Axes, sites: Sequence[str], groups: Mapping[str, str], columns: bool = True) -> None:
    """Draw lines between the rows, and the columns, of different communities."""
    for block in community_blocks(sites, groups)[1:]:
        axes.axhline(block.first - 0.5, color="white", linewidth=3)
        axes.axhline(block.first - 0.5, color="black", linewidth=1)
        if columns:
            axes.axvline(block.first - 0.5, color="white", linewidth=3)
            axes.axvline(block.first - 0.5, color="black", linewidth=1)


def name_communities(axes: Axes, sites: Sequence[str], groups: Mapping[str, str]) -> None:
    """Write the communities' names on the right, each beside the middle of its rows."""
    blocks = community_blocks(sites, groups)
    right = axes.secondary_yaxis("right")
    right.set_yticks([block.first + (block.size - 1) / 2 for block in blocks], [block.name for block in blocks])
    right.tick_params(length=0, labelsize=SMALL)
    right.spines[:].set_visible(False)


def write_numbers(axes: Axes, picture: AxesImage, values: NDArray[np.float64]) -> None:
    """Write the values of a matrix into its cells, except NaN and what rounds to zero."""
    for row, column in np.argwhere(values >= 0.5).tolist():
        value = float(values[row, column])
        _, most = picture.get_clim()
        colour = "white" if value > 0.6 * most else "black"
        axes.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=SMALL, color=colour)


def mark_round(axes: Axes, round_number: int, text: str) -> None:
    """Draw a vertical line at a round, and write above the axes what happens there."""
    axes.axvline(round_number, color=GREY, linewidth=1, linestyle=":")
    above = axes.get_xaxis_transform()
    axes.text(round_number, 1.02, text, ha="center", va="bottom", fontsize=SMALL, color=GREY, transform=above)
