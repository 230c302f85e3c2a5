"""FedIRM's figure: the relation matrices of labelled and unlabelled sites over the rounds, and their difference.

Liu et al. (FedIRM), MICCAI 2021, Fig. 2 a.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.history import Event, RunHistory
from grandrounds.plotting import (
    BLUE,
    MATRIX_COLOURS,
    NORMAL_SIZE,
    PALE,
    SMALL_SIZE,
    VERMILION,
    Drawing,
    new_figure,
    round_axis,
    rounds_to_show,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

DIFFERENCE_COLOURS = "Oranges"
LINE_STYLES = ((BLUE, "o", "-"), (VERMILION, "s", "--"))

Matrix = NDArray[np.float64]


class RelationRound(NamedTuple):
    """The sites' relation matrices of a round.

    Attributes:
        round_number: counts from 1.
        labelled: mean matrix of the sites with labels, shape ``(classes, classes)``; unknown rows are NaN.
        unlabelled: mean matrix of the others, of that shape.
    """

    round_number: int
    labelled: Matrix
    unlabelled: Matrix


def figures(history: RunHistory) -> list[Drawing]:
    """The relation matrices, if labelled and unlabelled sites have sent theirs."""
    rounds = relation_rounds(history.events, len(history.classes))
    if not rounds:
        return []
    picture = relation_figure(rounds, rounds_to_show([entry.round_number for entry in rounds]), history.classes)
    alt = "Relation matrices of sites with labels and of sites without, and their difference"
    caption = (
        "A row is the mean softened prediction for a class's images; grey rows are not known. The smaller the difference, "
        "the more similarly the sites see the classes."
    )
    return [Drawing("relation", picture, alt, caption)]


def relation_rounds(events: Iterable[Event], classes: int) -> list[RelationRound]:
    """The relation matrices of each round in which labelled and unlabelled sites have sent theirs."""
    rounds = []
    for event in events:
        if event["event"] != "relation" or not event.get("matrix") or not event.get("pseudo_relations"):
            continue
        pair = [
            mean_of_rows([np.array(sent["matrix"]) for sent in side], [np.array(sent["support"]) for sent in side])
            for side in ([event], list(event["pseudo_relations"].values()))
        ]
        if all(matrix.shape == (classes, classes) for matrix in pair):
            rounds.append(RelationRound(event["round"], *pair))
    return rounds


def mean_of_rows(matrices: Sequence[Matrix], supports: Sequence[NDArray[np.integer]]) -> Matrix:
    """Average matrices row by row, over those in which the row is known.

    Args:
        matrices: at least one, each of shape ``(classes, classes)``.
        supports: samples or patients behind the rows of each, shape ``(classes,)``; a row is known where it is above zero.

    Returns:
        The mean; rows that are known nowhere are NaN.

    Raises:
        ValueError: if there is no matrix, or not one support for each.

    Example:
        >>> mean_of_rows([np.eye(2), np.full((2, 2), 0.5)], [np.array([3, -1]), np.array([1, 0])])
        array([[0.75, 0.25],
               [ nan,  nan]])
    """
    if not matrices or len(matrices) != len(supports):
        raise ValueError(f"expected a support for each of at least one matrix, got {len(matrices)} and {len(supports)}")
    known = np.stack(supports) > 0
    total = np.where(known[:, :, None], np.stack(matrices), 0.0).sum(axis=0)
    times = known.sum(axis=0)[:, None]
    return np.divide(total, times, out=np.full(total.shape, np.nan), where=times > 0)


def relation_gap(entry: RelationRound) -> float:
    r"""Mean absolute difference of the two matrices over the rows that both know: mean of :math:`|M - M^u|`.

    Returns:
        In [0, 2 / classes]; NaN where no row is known to both.

    Example:
        >>> relation_gap(RelationRound(1, np.array([[0.9, 0.1], [np.nan, np.nan]]), np.full((2, 2), 0.5)))
        0.4
    """
    gap = np.abs(entry.labelled - entry.unlabelled)
    known = gap[~np.isnan(gap)]
    return float(known.mean()) if len(known) else float("nan")


def relation_figure(
    rounds: Sequence[RelationRound],
    shown: Sequence[int],
    classes: Sequence[str],
    without: Sequence[RelationRound] | None = None,
) -> Figure:
    """Matrices of some rounds, one row of panels for each, and under them the difference over all rounds.

    Args:
        rounds: of a run with relation matching, at least one.
        shown: the rounds that are drawn, at least one.
        classes: names of rows and columns.
        without: of a run without relation matching; adds a column with its difference.

    Raises:
        ValueError: if a round to show is not among the rounds, or a matrix does not fit the classes.
    """
    runs = [rounds] + ([without] if without else [])
    by_number = [{entry.round_number: entry for entry in run} for run in runs]
    if not shown or any(not {*shown} <= run.keys() for run in by_number):
        raise ValueError(f"shown must be rounds of every run, {[list(run) for run in by_number]}, got {list(shown)}")
    _require_matrices([entry for run in runs for entry in run], len(classes))
    side = max(1.6, 0.26 * len(classes))
    columns = ["labelled", "unlabelled", "|difference|"] + (["|difference| without"] if without else [])
    figure = new_figure(side * len(columns) + 3.0, (side + 0.2) * len(shown) + 3.4)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=[(side + 0.2) * len(shown) + 0.9, 2.5])[:, 0]
    panels = above.subplots(len(shown), len(columns), sharex=True, sharey=True, squeeze=False)
    highest = _largest_gap(by_number, shown)
    for row, number in zip(panels, shown, strict=True):
        entry = by_number[0][number]
        pictures = [_draw(axes, matrix, 1.0, MATRIX_COLOURS) for axes, matrix in zip(row, entry[1:], strict=False)]
        for axes, run in zip(row[2:], by_number, strict=True):
            difference = np.abs(run[number].labelled - run[number].unlabelled)
            pictures.append(_draw(axes, difference, max(highest, 1e-6), DIFFERENCE_COLOURS))
        row[0].set_ylabel(f"round {number}", fontsize=NORMAL_SIZE)
        row[0].set_yticks(range(len(classes)), classes, fontsize=SMALL_SIZE)
    for axes, title in zip(panels[0], columns, strict=True):
        axes.set_title(title, fontsize=NORMAL_SIZE, loc="left")
    for axes in panels[-1]:
        axes.set_xticks(range(len(classes)), classes, rotation=90, fontsize=SMALL_SIZE)
    above.colorbar(pictures[0], ax=list(panels[:, :2].flatten()), label="probability", aspect=25, location="left")
    above.colorbar(pictures[-1], ax=list(panels[:, 2:].flatten()), label="difference", aspect=25)
    _draw_gaps(below.subplots(), runs)
    return figure


def _require_matrices(entries: Sequence[RelationRound], classes: int) -> None:
    for entry in entries:
        for matrix in (entry.labelled, entry.unlabelled):
            if matrix.shape != (classes, classes):
                raise ValueError(
                    f"expected matrices of {classes} classes, got {matrix.shape} in round {entry.round_number}"
                )


def _largest_gap(runs: Sequence[Mapping[int, RelationRound]], shown: Sequence[int]) -> float:
    gaps = [np.abs(run[number].labelled - run[number].unlabelled) for run in runs for number in shown]
    return max((float(np.nanmax(gap)) for gap in gaps if not np.isnan(gap).all()), default=1.0)


def _draw(axes: Axes, matrix: Matrix, highest: float, colours: str) -> AxesImage:
    axes.set_facecolor(PALE)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return axes.imshow(matrix, cmap=colours, vmin=0, vmax=highest, interpolation="nearest")


def _draw_gaps(axes: Axes, runs: Sequence[Sequence[RelationRound]]) -> None:
    names = ("with relation matching", "without")
    for run, name, (colour, marker, line) in zip(runs, names, LINE_STYLES, strict=False):
        numbers = [entry.round_number for entry in run]
        gaps = [relation_gap(entry) for entry in run]
        axes.plot(numbers, gaps, color=colour, marker=marker, linestyle=line, linewidth=1.8, markersize=4, label=name)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("round", fontsize=NORMAL_SIZE)
    axes.set_ylabel("mean |difference|", fontsize=NORMAL_SIZE)
    round_axis(axes)
    if len(runs) > 1:
        axes.legend(fontsize=SMALL_SIZE, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
