"""Figures of a run: who learns from whom, how alike the models are, and how the sites fare meanwhile.

The first three are those by which Bdair et al. (FedPerl, MELBA 2022) judge whether communities form: peer frequency
(their Fig. 3), similarity, and the accuracy of each client during training (their Fig. 4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.communities import mean_similarity, require_square
from grandrounds.reporting.figures.drawing import (
    BLUE,
    GREY,
    MATRIX_COLOURS,
    NORMAL,
    PALE,
    SMALL,
    VERMILION,
    draw_boundaries,
    mark_round,
    name_communities,
    name_rows_and_columns,
    new_figure,
    over_rounds,
    write_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_ROWS_WITH_NUMBERS = 16
PANELS_PER_ROW = 5

Curves = Mapping[str, Mapping[int, float]]
"""A value for each site and for some of the rounds."""


class SimilarityRound(NamedTuple):
    """How alike the models were after a round.

    Attributes:
        round_number: counts from 1.
        sites: those that have trained, in the order of the rows.
        matrix: similarities, shape ``(sites, sites)``.
    """

    round_number: int
    sites: Sequence[str]
    matrix: NDArray[np.float64]


def peer_frequency_figure(
    frequency: NDArray[np.float64],
    sites: Sequence[str],
    groups: Mapping[str, str] | None = None,
    own: Mapping[str, tuple[float, float]] | None = None,
) -> Figure:
    """Which peers each site was given: rows choose, columns are chosen.

    Args:
        frequency: shares of a row's picks, shape ``(sites, sites)``, in [0, 1]; zeros for a site without picks.
        sites: names of rows and columns, communities side by side.
        groups: the community of each site; their boundaries are drawn.
        own: for each site the share of its picks in its own community, and what picking at random would give; drawn
            beside the matrix. NaN where a site had no picks; a site without others in its community is left out.

    Raises:
        ValueError: if the matrix does not fit the sites.
    """
    require_square(frequency, sites)
    side = max(3.2, 0.42 * len(sites))
    widths = [side, 1.7] if own else [side]
    figure = new_figure(sum(widths) + 2.6, side + 1.2)
    axes, *beside = figure.subplots(1, len(widths), sharey=True, squeeze=False, width_ratios=widths)[0]
    percent = np.where(np.eye(len(sites), dtype=bool), np.nan, 100 * frequency)
    most = max(1.0, 100 * float(frequency.max()))
    picture = axes.imshow(percent, cmap=MATRIX_COLOURS, vmin=0, vmax=most, aspect="auto")
    axes.set_facecolor(PALE)
    name_rows_and_columns(axes, sites)
    axes.set_xlabel("is chosen as peer", fontsize=NORMAL)
    axes.set_ylabel("chooses", fontsize=NORMAL)
    axes.set_title("share of a site's picks, %", fontsize=NORMAL, loc="left")
    if len(sites) <= MAX_ROWS_WITH_NUMBERS:
        write_numbers(axes, picture, percent)
    else:
        figure.colorbar(picture, ax=axes)
    if own:
        _draw_own_share(beside[0], sites, own)
    if groups:
        draw_boundaries(axes, sites, groups)
        for panel in beside:
            draw_boundaries(panel, sites, groups, columns=False)
        name_communities(beside[0] if own else axes, sites, groups)
    return figure


def similarity_figure(
    rounds: Sequence[SimilarityRound],
    shown: Sequence[int],
    sites: Sequence[str],
    groups: Mapping[str, str] | None = None,
    first_peers: int | None = None,
) -> Figure:
    """How alike the models are: matrices of some rounds on one scale of colours, and means over all rounds.

    Args:
        rounds: all that are known, at least one.
        shown: the rounds whose matrices are drawn, at least one.
        sites: names of rows and columns, communities side by side; a site that has not trained yet has an empty row.
        groups: the community of each site; without, the curve is the mean over all pairs.
        first_peers: the first round in which anybody had peers.

    Raises:
        ValueError: if a matrix does not fit its sites, or a round that is to be shown is not among them.
    """
    by_number = {entry.round_number: entry for entry in rounds}
    if not shown or any(number not in by_number for number in shown):
        raise ValueError(f"shown must be rounds with a similarity matrix, {list(by_number)}, got {list(shown)}")
    matrices = {number: _placed(by_number[number], sites) for number in shown}
    values = np.concatenate([matrix[~np.isnan(matrix)] for matrix in matrices.values()])
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    side = max(2.2, 0.22 * len(sites))
    figure = new_figure(side * len(shown) + 3.0, side + 3.8)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=[side + 1.0, 2.6])[:, 0]
    panels = above.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for number, axes in zip(shown, panels, strict=True):
        picture = axes.imshow(matrices[number], cmap=MATRIX_COLOURS, vmin=low, vmax=high, interpolation="nearest")
        axes.set_facecolor(PALE)
        axes.set_title(f"after round {number}", fontsize=NORMAL, loc="left")
        name_rows_and_columns(axes, sites, rows=axes is panels[0])
        if groups:
            draw_boundaries(axes, sites, groups)
    if groups:
        name_communities(panels[-1], sites, groups)
    above.colorbar(picture, ax=list(panels), label="similarity", pad=0.02, aspect=15)
    _draw_mean_similarity(below.subplots(), rounds, groups, first_peers)
    return figure


def accuracy_figure(curves: Curves, metric: str, groups: Mapping[str, str] | None = None) -> Figure:
    """How well the model does at each site during training: a panel for each site, the others behind it in grey.

    Args:
        curves: the site's score on its own validation images, in [0, 1], by the round after which the model was made;
            at least one for each site. Panels come in this order.
        metric: what the score is called.
        groups: the community of each site.

    Raises:
        ValueError: if there is no site, or a site has no score.
    """
    if not curves or not all(curves.values()):
        raise ValueError("every site must have at least one score, and there must be a site")
    columns = min(PANELS_PER_ROW, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure = new_figure(max(4.0, 2.3 * columns), 2.0 * rows + 0.8)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axes in panels[len(curves) :]:
        axes.set_visible(False)
    for position, (axes, (site, curve)) in enumerate(zip(panels, curves.items(), strict=False)):
        for other in curves.values():
            axes.plot(*_line(other), color=PALE, linewidth=0.7)
        axes.plot(*_line(curve), color=BLUE, linewidth=1.8)
        best = max(sorted(curve, reverse=True), key=lambda number: curve[number])
        axes.plot([best], [curve[best]], "o", color=VERMILION, markersize=5)
        name = f"{site}, {groups[site]}" if groups else site
        axes.set_title(f"{name}\nbest {curve[best]:.2f}, round {best}", fontsize=SMALL, loc="left")
        over_rounds(axes)
        # Where the last row is not full, the panels above its gap are the lowest of their columns.
        axes.tick_params(labelbottom=position + columns >= len(curves))
    figure.supxlabel("round", fontsize=NORMAL)
    figure.supylabel(f"{metric.replace('_', ' ')}, validation", fontsize=NORMAL)
    return figure


def pseudo_label_figure(accepted: Curves, accuracy: Curves, first_peers: int | None = None) -> Figure:
    """How many pseudo-labels are accepted, and how many of those are right: sites as dots, their mean as a line.

    Args:
        accepted: accepted share of the unlabelled images, in [0, 1], for each site and the rounds it took part in.
        accuracy: share of the accepted ones that are right, where the hidden labels are known; may be empty.
        first_peers: the first round in which anybody had peers.

    Raises:
        ValueError: if nothing is known of any round.
    """
    if not any(accepted.values()):
        raise ValueError("accepted must have at least one value")
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
        axes.set_title(title, fontsize=NORMAL, loc="left", color=colour)
        over_rounds(axes)
        if first_peers is not None:
            axes.axvline(first_peers, color=GREY, linewidth=1, linestyle=":")
    legend = "dots: sites, line: their mean" + (", dotted: first peers" if first_peers is not None else "")
    panels[-1].set_xlabel(f"round ({legend})", fontsize=NORMAL)
    return figure


def _draw_own_share(axes: Axes, sites: Sequence[str], own: Mapping[str, tuple[float, float]]) -> None:
    """Share of picks in the own community (dot) and by chance (bar), a row for each site."""
    known = [(row, *own[site]) for row, site in enumerate(sites) if own[site][1] > 0 and not math.isnan(own[site][0])]
    for row, share, chance in known:
        axes.plot([100 * chance, 100 * share], [row, row], color=PALE, linewidth=2, zorder=1)
        axes.plot([100 * chance], [row], "|", color=GREY, markersize=11, markeredgewidth=2)
        axes.plot([100 * share], [row], "o", color=VERMILION, markersize=6)
    axes.set_xlim(0, 100)
    if known:
        share, chance = (100 * fmean(entry[part] for entry in known) for part in (1, 2))
        axes.plot([], [], "o", color=VERMILION, label=f"own community: {share:.0f} %")
        axes.plot([], [], "|", color=GREY, markersize=11, markeredgewidth=2, label=f"by chance: {chance:.0f} %")
        axes.legend(loc="lower left", bbox_to_anchor=(-0.08, 1), fontsize=SMALL, frameon=False, handlelength=1)
    axes.tick_params(left=False, labelleft=False, labelsize=SMALL)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("% of picks", fontsize=NORMAL)


def _placed(entry: SimilarityRound, sites: Sequence[str]) -> NDArray[np.float64]:
    """The matrix with a row for every site; NaN for those that have not trained and on the diagonal."""
    require_square(entry.matrix, entry.sites)
    matrix = np.full((len(sites), len(sites)), np.nan)
    rows = [list(sites).index(site) for site in entry.sites]
    matrix[np.ix_(rows, rows)] = entry.matrix
    np.fill_diagonal(matrix, np.nan)
    return matrix


def _draw_mean_similarity(
    axes: Axes, rounds: Sequence[SimilarityRound], groups: Mapping[str, str] | None, first_peers: int | None
) -> None:
    numbers = [entry.round_number for entry in rounds]
    one = {site: "" for entry in rounds for site in entry.sites}
    means = np.array([mean_similarity(entry.matrix, entry.sites, groups or one) for entry in rounds])
    if groups:
        axes.plot(numbers, means[:, 0], color=BLUE, linewidth=1.8, label="within communities")
        axes.plot(numbers, means[:, 1], color=VERMILION, linewidth=1.8, linestyle="--", label="between communities")
    else:
        axes.plot(numbers, means[:, 0], color=BLUE, linewidth=1.8, label="all pairs")
    axes.legend(fontsize=SMALL, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.set_xlabel("round", fontsize=NORMAL)
    axes.set_ylabel("mean similarity", fontsize=NORMAL)
    over_rounds(axes)
    if first_peers is not None:
        mark_round(axes, first_peers, f"peers from round {first_peers}")


def _line(curve: Mapping[int, float]) -> tuple[list[int], list[float]]:
    rounds = sorted(curve)
    return rounds, [curve[number] for number in rounds]


def _means(curves: Curves) -> dict[int, float]:
    """Mean over the sites that have a value, for each round."""
    rounds = sorted({number for curve in curves.values() for number in curve})
    return {number: fmean(curve[number] for curve in curves.values() if number in curve) for number in rounds}
