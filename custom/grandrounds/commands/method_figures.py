"""Figures of a run's events: those that its method has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from grandrounds.reporting.figures.training import round_curve, training_curves, validation_curves
from grandrounds.reporting.run import Event

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from grandrounds.reporting.figures.relations import RelationRound
    from grandrounds.reporting.figures.run import SimilarityRound

MEGABYTE = 1e6


def drawings(
    events: Sequence[Event], sites: Sequence[str], groups: Mapping[str, str] | None, classes: Sequence[str] = ()
) -> dict[str, Figure]:
    """The figures that can be drawn of these events, by name.

    Args:
        events: of a run.
        sites: all of its sites.
        groups: the community of each site.
        classes: the run's vocabulary, without which there are no relation matrices.
    """
    from grandrounds.evaluation.communities import community_order

    order = community_order(groups) if groups else list(sites)
    drawn = {**_of_peers(events, order, groups), **_of_training(events, order, groups)}
    if relations := relation_rounds(events, len(classes)):
        from grandrounds.reporting.figures.relations import relation_figure

        shown = rounds_to_show([entry.round_number for entry in relations], None)
        drawn["relation"] = relation_figure(relations, shown, classes)
    return drawn | _of_rounds(events, len(classes))


def _of_peers(events: Sequence[Event], sites: Sequence[str], groups: Mapping[str, str] | None) -> dict[str, Figure]:
    from grandrounds.reporting.figures.run import similarity_figure

    first, drawn = first_round_with_peers(events), {}
    if first is not None:
        drawn["peer_frequency"] = _peer_frequency(events, sites, groups)
    rounds = similarities(events)
    if any(len(entry.sites) > 1 for entry in rounds):
        shown = rounds_to_show([entry.round_number for entry in rounds], first)
        drawn["similarity"] = similarity_figure(rounds, shown, sites, groups, first)
    return drawn


def _of_training(events: Sequence[Event], sites: Sequence[str], groups: Mapping[str, str] | None) -> dict[str, Figure]:
    from grandrounds.reporting.figures.run import accuracy_figure, pseudo_label_figure

    drawn = {}
    metric = next((event["metric"] for event in reversed(events) if event["event"] == "score"), None)
    if metric and (scores := validation_curves(events, sites, metric)):
        drawn["accuracy"] = accuracy_figure(scores, metric, groups)
    if accepted := training_curves(events, sites, "accepted"):
        right = training_curves(events, sites, "pseudo_label_accuracy")
        drawn["pseudo_labels"] = pseudo_label_figure(accepted, right, first_round_with_peers(events))
    return drawn


def _of_rounds(events: Sequence[Event], classes: int) -> dict[str, Figure]:
    """How undecided the soft labels are, and what has travelled."""
    from grandrounds.reporting.figures.training import rounds_figure

    entropy = {"mean over public images": round_curve(events, "soft_label_entropy")}
    moved = {
        words: {number: size / MEGABYTE for number, size in round_curve(events, "moved", direction).items()}
        for direction, words in (("down", "to sites"), ("up", "from sites"))
    }
    undecided = rounds_figure(entropy, list(entropy), "entropy, nats", "Soft labels")
    if undecided and classes:
        undecided.axes[0].axhline(math.log(classes), color="black", linewidth=1, linestyle=":")
    figures = {
        "soft_labels": undecided,
        "traffic": rounds_figure(moved, list(moved), "MB of tensors, all sites", "Communication so far"),
    }
    return {name: figure for name, figure in figures.items() if figure}


def _peer_frequency(events: Sequence[Event], sites: Sequence[str], groups: Mapping[str, str] | None) -> Figure:
    from grandrounds.evaluation.communities import chance_within_group, pick_matrix, within_group_share
    from grandrounds.reporting.figures.run import peer_frequency_figure

    made = picks(events)
    own = None
    if groups:
        share, chance = within_group_share(made, groups), chance_within_group(groups)
        own = {site: (share[site], chance[site]) for site in sites}
    return peer_frequency_figure(pick_matrix(made, sites), sites, groups, own)


def picks(events: Sequence[Event]) -> list[tuple[str, str]]:
    """Site and peer, for each time that a peer was given."""
    given = [event.get("peers", {}) for event in events if event["event"] == "round_end"]
    return [(site, peer) for entry in given for site, peers in entry.items() for peer in peers]


def first_round_with_peers(events: Sequence[Event]) -> int | None:
    """The first round in which anybody had peers."""
    rounds = [event["round"] for event in events if event["event"] == "round_end" and picks([event])]
    return min(rounds, default=None)


def similarities(events: Sequence[Event]) -> list[SimilarityRound]:
    """How alike the models were after each round."""
    import numpy as np

    from grandrounds.reporting.figures.run import SimilarityRound

    return [
        SimilarityRound(event["round"], event["sites"], np.array(event["matrix"], dtype=np.float64))
        for event in events
        if event["event"] == "similarity"
    ]


def rounds_to_show(rounds: Sequence[int], first_peers: int | None) -> list[int]:
    """The first round with peers (else the first of all), the last, and those a quarter and half of the way between.

    Example:
        >>> rounds_to_show(range(1, 101), first_peers=11)
        [11, 33, 55, 100]
        >>> rounds_to_show([1, 2], first_peers=None)
        [1, 2]
    """
    later = [number for number in rounds if number >= (first_peers or 0)] or list(rounds[-1:])
    last = len(later) - 1
    return [later[index] for index in sorted({0, last // 4, last // 2, last})]


def relation_rounds(events: Sequence[Event], classes: int) -> list[RelationRound]:
    """The relation matrices of each round in which sites with labels and sites without told theirs."""
    import numpy as np

    from grandrounds.reporting.figures.relations import RelationRound, mean_of_known

    found = []
    for event in events:
        if event["event"] != "relation" or not event.get("matrix") or not event.get("pseudo_relations"):
            continue
        told, own = [event], list(event["pseudo_relations"].values())
        pair = [
            mean_of_known([np.array(one["matrix"]) for one in side], [np.array(one["support"]) for one in side])
            for side in (told, own)
        ]
        if all(matrix.shape == (classes, classes) for matrix in pair):
            found.append(RelationRound(event["round"], *pair))
    return found
