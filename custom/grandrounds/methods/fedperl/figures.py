"""FedPerl's figures: which peers each site was given, and how similar the models are.

Bdair et al. (FedPerl, MELBA 2022) claim that hospitals whose images come from the same source, a community, find each other
by the similarity of their models. So the figures put the members of a community side by side and compare peer frequency
(their Fig. 3) and similarity within communities with those between them. The figures of pseudo-labels are FixMatch's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.history import Event, RunHistory
from grandrounds.ordering import natural_sorted
from grandrounds.plotting import (
    BLUE,
    GREY,
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

MAX_ROWS_WITH_NUMBERS = 16
MAX_ROWS_WITH_NAMES = 60


class SimilarityRound(NamedTuple):
    """Similarities after a round, shape ``(sites, sites)``, with the sites that have trained in the order of the rows."""

    round_number: int
    sites: Sequence[str]
    matrix: NDArray[np.float64]


def figures(history: RunHistory) -> list[Drawing]:
    """Peer frequency and similarity, as far as the run has them; members of a community are side by side."""
    groups = history.communities
    sites = community_order(groups) if groups else list(history.sites)
    first = min((event["round"] for event in history.events if picks([event])), default=None)
    drawings = []
    if first is not None:
        made = picks(history.events)
        picture = _peer_frequency(made, sites, groups)
        finding = _peers_found(made, sites, groups)
        caption = f"{finding} Rows choose, columns are chosen as peers{'; lines divide communities' if groups else ''}."
        drawings.append(Drawing("peer_frequency", picture, f"Peer frequency. {finding}", caption))
    rounds = similarities(history.events)
    if any(len(entry.sites) > 1 for entry in rounds):
        shown = rounds_to_show([entry.round_number for entry in rounds], first)
        picture = similarity_figure(rounds, shown, sites, groups, first)
        finding = _similarity_found(rounds, groups)
        caption = f"{finding} Above single rounds, below the mean of all pairs over the rounds."
        drawings.append(Drawing("similarity", picture, f"Similarity of models. {finding}", caption))
    return drawings


def _peers_found(made: Sequence[tuple[str, str]], sites: Sequence[str], groups: Mapping[str, str]) -> str:
    """What the picks show: the share in the own community against chance, else who was chosen most."""
    if groups:
        share, chance = within_group_share(made, groups), chance_within_group(groups)
        known = [site for site in sites if chance[site] > 0 and not math.isnan(share[site])]
        if known:
            means = [fmean(values[site] for site in known) for values in (share, chance)]
            return f"{means[0]:.0%} of the picks are in the site's own community, {means[1]:.0%} by chance."
    (most, count), *_ = Counter(peer for _, peer in made).most_common(1)
    return (
        f"{most} is chosen most, in {count / len(made):.0%} of the picks; {1 / max(len(sites), 1):.0%} would be even."
    )


def _similarity_found(rounds: Sequence[SimilarityRound], groups: Mapping[str, str]) -> str:
    """How the mean similarity changes from the first round to the last, within communities and between them."""
    ends = [entry for entry in rounds if len(entry.sites) > 1]
    same = {site: "" for entry in ends for site in entry.sites}
    first, last = (mean_similarity(entry.matrix, entry.sites, groups or same) for entry in (ends[0], ends[-1]))
    number = ends[-1].round_number
    if math.isnan(last[0]) or math.isnan(last[1]):
        kept = [next(value for value in pair if not math.isnan(value)) for pair in (first, last)]
        return f"The mean similarity of two sites is {kept[0]:.2f} at first and {kept[1]:.2f} after round {number}."
    return (
        f"After round {number} the mean similarity is {last[0]:.2f} within communities and {last[1]:.2f} between them."
    )


def picks(events: Iterable[Event]) -> list[tuple[str, str]]:
    """Site and peer, for each time that a peer was given."""
    given = [event.get("peers", {}) for event in events if event["event"] == "round_end"]
    return [(site, peer) for entry in given for site, peers in entry.items() for peer in peers]


def similarities(events: Iterable[Event]) -> list[SimilarityRound]:
    """The similarity matrix of each round."""
    return [
        SimilarityRound(event["round"], event["sites"], np.array(event["matrix"], dtype=np.float64))
        for event in events
        if event["event"] == "similarity"
    ]


def peer_frequency_figure(
    frequency: NDArray[np.float64],
    sites: Sequence[str],
    groups: Mapping[str, str] | None = None,
    own: Mapping[str, tuple[float, float]] | None = None,
) -> Figure:
    """Peer frequency: rows choose, columns are chosen.

    Args:
        frequency: shares of a row's picks, shape ``(sites, sites)``, in [0, 1]; zeros for a site without picks.
        sites: names of rows and columns, communities side by side.
        groups: the community of each site; their boundaries are drawn.
        own: for each site the share of its picks in its own community, and what picking at random would give; drawn
            beside the matrix. NaN where a site had no picks; a site without others in its community is left out.
    """
    side = max(3.2, 0.42 * len(sites))
    widths = [side, 1.7] if own else [side]
    figure = new_figure(sum(widths) + 2.6, side + 1.2)
    axes, *beside = figure.subplots(1, len(widths), sharey=True, squeeze=False, width_ratios=widths)[0]
    percent = np.where(np.eye(len(sites), dtype=bool), np.nan, 100 * frequency)
    highest = max(1.0, 100 * float(frequency.max()))
    picture = axes.imshow(percent, cmap=MATRIX_COLOURS, vmin=0, vmax=highest, aspect="auto")
    axes.set_facecolor(PALE)
    _name_rows_and_columns(axes, sites)
    axes.set_xlabel("is chosen as peer", fontsize=NORMAL_SIZE)
    axes.set_ylabel("chooses", fontsize=NORMAL_SIZE)
    axes.set_title("share of a site's picks, %", fontsize=NORMAL_SIZE, loc="left")
    if len(sites) <= MAX_ROWS_WITH_NUMBERS:
        _write_numbers(axes, picture, percent)
    else:
        figure.colorbar(picture, ax=axes)
    if own:
        _draw_own_share(beside[0], sites, own)
    if groups:
        _draw_boundaries(axes, sites, groups)
        for panel in beside:
            _draw_boundaries(panel, sites, groups, columns=False)
        _name_communities(beside[0] if own else axes, sites, groups)
    return figure


def similarity_figure(
    rounds: Sequence[SimilarityRound],
    shown: Sequence[int],
    sites: Sequence[str],
    groups: Mapping[str, str] | None = None,
    first_peers: int | None = None,
) -> Figure:
    """Similarity of the models: matrices of some rounds on one scale of colours, and means over all rounds.

    Args:
        rounds: all that are known, at least one.
        shown: those of them whose matrices are drawn, at least one.
        sites: names of rows and columns, communities side by side; a site that has not trained yet has an empty row.
        groups: the community of each site; without, the curve is the mean over all pairs.
        first_peers: the first round in which any site had peers.
    """
    by_number = {entry.round_number: entry for entry in rounds}
    matrices = {number: _on_all_sites(by_number[number], sites) for number in shown}
    values = np.concatenate([matrix[~np.isnan(matrix)] for matrix in matrices.values()])
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    side = max(2.2, 0.22 * len(sites))
    figure = new_figure(side * len(shown) + 3.0, side + 3.8)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=[side + 1.0, 2.6])[:, 0]
    panels = above.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for number, axes in zip(shown, panels, strict=True):
        picture = axes.imshow(matrices[number], cmap=MATRIX_COLOURS, vmin=low, vmax=high, interpolation="nearest")
        axes.set_facecolor(PALE)
        axes.set_title(f"after round {number}", fontsize=NORMAL_SIZE, loc="left")
        _name_rows_and_columns(axes, sites, rows=axes is panels[0])
        if groups:
            _draw_boundaries(axes, sites, groups)
    if groups:
        _name_communities(panels[-1], sites, groups)
    above.colorbar(picture, ax=list(panels), label="similarity", pad=0.02, aspect=15)
    _draw_mean_similarity(below.subplots(), rounds, groups, first_peers)
    return figure


def _peer_frequency(made: Sequence[tuple[str, str]], sites: Sequence[str], groups: Mapping[str, str]) -> Figure:
    own = None
    if groups:
        share, chance = within_group_share(made, groups), chance_within_group(groups)
        own = {site: (share[site], chance[site]) for site in sites}
    return peer_frequency_figure(pick_matrix(made, sites), sites, groups, own)


def _draw_own_share(axes: Axes, sites: Sequence[str], own: Mapping[str, tuple[float, float]]) -> None:
    """Share of picks in the own community (dot) and by chance (bar), a row for each site."""
    known = [(row, *own[site]) for row, site in enumerate(sites) if own[site][1] > 0 and not math.isnan(own[site][0])]
    for row, share, chance in known:
        axes.plot([100 * chance, 100 * share], [row, row], color=PALE, linewidth=2, zorder=1)
        axes.plot([100 * chance], [row], "|", color=GREY, markersize=11, markeredgewidth=2)
        axes.plot([100 * share], [row], "o", color=VERMILION, markersize=6, clip_on=False)
    axes.set_xlim(0, 100)
    if known:
        share, chance = (100 * fmean(entry[part] for entry in known) for part in (1, 2))
        axes.plot([], [], "o", color=VERMILION, label=f"own community: {share:.0f} %")
        axes.plot([], [], "|", color=GREY, markersize=11, markeredgewidth=2, label=f"by chance: {chance:.0f} %")
        axes.legend(loc="lower left", bbox_to_anchor=(-0.08, 1), fontsize=SMALL_SIZE, frameon=False, handlelength=1)
    axes.tick_params(left=False, labelleft=False, labelsize=SMALL_SIZE)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("% of picks", fontsize=NORMAL_SIZE)


def _on_all_sites(entry: SimilarityRound, sites: Sequence[str]) -> NDArray[np.float64]:
    """The matrix with a row for every site; NaN for those that have not trained and on the diagonal."""
    matrix = np.full((len(sites), len(sites)), np.nan)
    rows = [list(sites).index(site) for site in entry.sites]
    matrix[np.ix_(rows, rows)] = entry.matrix
    np.fill_diagonal(matrix, np.nan)
    return matrix


def _draw_mean_similarity(
    axes: Axes, rounds: Sequence[SimilarityRound], groups: Mapping[str, str] | None, first_peers: int | None
) -> None:
    numbers = [entry.round_number for entry in rounds]
    same = {site: "" for entry in rounds for site in entry.sites}
    means = np.array([mean_similarity(entry.matrix, entry.sites, groups or same) for entry in rounds])
    if groups:
        axes.plot(numbers, means[:, 0], color=BLUE, linewidth=1.8, label="within communities")
        axes.plot(numbers, means[:, 1], color=VERMILION, linewidth=1.8, linestyle="--", label="between communities")
    else:
        axes.plot(numbers, means[:, 0], color=BLUE, linewidth=1.8, label="all pairs")
    axes.legend(fontsize=SMALL_SIZE, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.set_xlabel("round", fontsize=NORMAL_SIZE)
    axes.set_ylabel("mean similarity", fontsize=NORMAL_SIZE)
    round_axis(axes)
    if first_peers is not None:
        axes.axvline(first_peers, color=GREY, linewidth=1, linestyle=":")
        label, above = f"peers from round {first_peers}", axes.get_xaxis_transform()
        axes.text(first_peers, 1.02, label, ha="center", va="bottom", fontsize=SMALL_SIZE, color=GREY, transform=above)


def _name_rows_and_columns(axes: Axes, sites: Sequence[str], rows: bool = True) -> None:
    """Write the sites' names along a matrix; where there are too many, every second, third or later one."""
    step = 1 + (len(sites) - 1) // MAX_ROWS_WITH_NAMES
    positions, names = range(0, len(sites), step), list(sites[::step])
    axes.set_xticks(positions, names, rotation=90, fontsize=SMALL_SIZE)
    if rows:
        axes.set_yticks(positions, names, fontsize=SMALL_SIZE)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw_boundaries(axes: Axes, sites: Sequence[str], groups: Mapping[str, str], columns: bool = True) -> None:
    """Draw lines between the rows, and the columns, of different communities."""
    for _, first, _ in community_blocks(sites, groups)[1:]:
        for colour, width in (("white", 3), ("black", 1)):
            axes.axhline(first - 0.5, color=colour, linewidth=width)
            if columns:
                axes.axvline(first - 0.5, color=colour, linewidth=width)


def _name_communities(axes: Axes, sites: Sequence[str], groups: Mapping[str, str]) -> None:
    """Write the communities' names on the right, each beside the middle of its rows."""
    blocks = community_blocks(sites, groups)
    right = axes.secondary_yaxis("right")
    right.set_yticks([first + (size - 1) / 2 for _, first, size in blocks], [name for name, _, _ in blocks])
    right.tick_params(length=0, labelsize=SMALL_SIZE)
    right.spines[:].set_visible(False)


def _write_numbers(axes: Axes, picture: AxesImage, values: NDArray[np.float64]) -> None:
    """Write the values of a matrix into its cells, except NaN and what rounds to zero."""
    for row, column in np.argwhere(values >= 0.5).tolist():
        value = float(values[row, column])
        _, highest = picture.get_clim()
        colour = "white" if value > 0.6 * highest else "black"
        axes.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=SMALL_SIZE, color=colour)


def community_order(groups: Mapping[str, str]) -> list[str]:
    """Sites in natural order, with the members of a community side by side; ``groups`` is the community of each site."""
    sites = natural_sorted(groups)
    communities = list(dict.fromkeys(groups[site] for site in sites))
    return sorted(sites, key=lambda site: communities.index(groups[site]))


def community_blocks(sites: Sequence[str], groups: Mapping[str, str]) -> list[tuple[str, int, int]]:
    """Runs of neighbouring sites of one community: its name, the first row and the number of rows.

    Example:
        >>> community_blocks(["a", "b", "c"], {"a": "scanner", "b": "scanner", "c": "camera"})
        [('scanner', 0, 2), ('camera', 2, 1)]
    """
    communities = [groups[site] for site in sites]
    starts = [row for row, name in enumerate(communities) if row == 0 or name != communities[row - 1]]
    ends = [*starts[1:], len(sites)]
    return [(communities[start], start, end - start) for start, end in zip(starts, ends, strict=True)]


def mean_similarity(
    matrix: NDArray[np.float64], sites: Sequence[str], groups: Mapping[str, str]
) -> tuple[float, float]:
    r"""Mean similarity of two sites of one community, and of two sites of different ones; NaN without such a pair.

    .. math:: \bar W_{in} = \operatorname{mean}\{W_{mn} : m \ne n, g_m = g_n\}, \qquad
        \bar W_{out} = \operatorname{mean}\{W_{mn} : g_m \ne g_n\}

    of the matrix :math:`W`, shape ``(sites, sites)``, with the sites in the order of the rows in communities :math:`g`.
    """
    community = np.array([groups[site] for site in sites])
    same = community[:, None] == community[None, :]
    pairs = matrix[same & ~np.eye(len(sites), dtype=bool)], matrix[~same]
    within, between = (float(values.mean()) if len(values) else math.nan for values in pairs)
    return within, between


def chance_within_group(groups: Mapping[str, str]) -> dict[str, float]:
    """The share of other sites in a site's group: what random selection of peers gives; NaN for a single site."""
    others = len(groups) - 1
    members = list(groups.values())
    return {site: (members.count(group) - 1) / others if others else math.nan for site, group in groups.items()}


def within_group_share(picks: Iterable[tuple[str, str]], groups: Mapping[str, str]) -> dict[str, float]:
    """The share of each site's peers that are in its own group; NaN for a site without picks.

    Args:
        picks: pairs of (target, peer), one for each peer sent.
        groups: the group (for example the imaging device) of each site.
    """
    made = list(picks)
    total = Counter(target for target, _ in made)
    own = Counter(target for target, peer in made if groups[target] == groups[peer])
    return {site: own[site] / total[site] if total[site] else math.nan for site in groups}


def pick_matrix(picks: Iterable[tuple[str, str]], sites: Sequence[str]) -> NDArray[np.float64]:
    """How often each site (row) had each other site (column) as a peer, as shares of the row; zero without picks."""
    position = {site: row for row, site in enumerate(sites)}
    counts = np.zeros((len(sites), len(sites)))
    for target, peer in picks:
        counts[position[target], position[peer]] += 1
    totals = counts.sum(axis=1, keepdims=True)
    return np.where(totals > 0, counts / np.maximum(totals, 1), 0.0)
