"""``grandrounds figures``: pictures of what a run's record says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grandrounds.commands.output import results, say
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.ordering import natural_sorted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from grandrounds.evaluation.figures import SimilarityRound

Event = Mapping[str, Any]
HELP = """Draw figures from the record of a run.

Peer frequency, similarity of the models, scores of each site during training, and pseudo-labels: those that the run's
method has. With --groups the sites of a community stand side by side, and within is compared with between.

[bold]Examples[/bold]

\b
  grandrounds figures runs/fedperl --out runs/fedperl/figures
  grandrounds figures runs/ham --out runs/ham/figures --groups runs/ham/sites
"""


def figures(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A simulation's workspace, or the folder of events.jsonl.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the figures; it is made when missing.")],
    groups: Annotated[
        Path | None,
        typer.Option(help="Communities: a partition (each site's commonest source), or a JSON file {SITE: NAME}."),
    ] = None,
) -> None:
    """Draw the figures and say where they are."""
    events = events_of(run)
    sites = sites_of(events)
    drawn = drawings(events, sites, groups_of(groups, sites) if groups else None)
    if not drawn:
        raise ConfigurationError(
            f"{run}: there is nothing to draw yet: no site has sent a score or trained with others"
        )
    out.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        place = out / f"{name}.png"
        figure.savefig(place)
        say(results(), str(place))


def events_of(run: Path) -> list[Event]:
    """The events of a run, without the void ones.

    Raises:
        ConfigurationError: if there is no record.
        DataError: if it is damaged.
    """
    from grandrounds.federation.record import EVENTS, read_events

    for folder in (run, run / "results"):
        if (folder / EVENTS).is_file():
            try:
                return list(read_events(folder))
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{folder / EVENTS} is damaged ({error!r}); restore it or run the job again") from error
    raise ConfigurationError(
        f"{run} has no record of a run: neither it nor its folder results has {EVENTS}; give the workspace of a "
        "simulation or the results of a downloaded job"
    )


def sites_of(events: Sequence[Event]) -> list[str]:
    """All sites of a run: those at its start, and those that joined later."""
    at_start = {site for event in events if event["event"] == "start" for site in event["sites"]}
    return natural_sorted(at_start | {event["site"] for event in events if event["event"] == "answer"})


def groups_of(path: Path, sites: Sequence[str]) -> dict[str, str]:
    """The community of each site: from a partition the commonest source of its images.

    The clients of FedPerl's paper are in one community when they are of one data set, whatever devices it has; for them
    only the part of a source before the slash counts.

    Args:
        path: a folder with ``partition.json``, this file, or one with a JSON object of communities by site.
        sites: who must have a community.

    Raises:
        ConfigurationError: if there is no such file, or a site has no community in it.
    """
    from grandrounds.data.partition_files import DESCRIPTION_FILE

    place = path / DESCRIPTION_FILE if path.is_dir() else path
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigurationError(f"{place} is not there; give a partition or a JSON file of communities") from error
    except ValueError as error:
        raise ConfigurationError(f"{place} is not valid JSON: {error}") from error
    named = content
    if isinstance(content, dict) and isinstance(content.get("sites"), dict):
        named = _communities(content)
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
        raise ConfigurationError(f"{place} must be an object with a community's name for each site")
    missing = [site for site in sites if not named.get(site)]
    if missing:
        raise ConfigurationError(
            f"{place} has no community of {', '.join(missing)}; add it, or give the run's partition"
        )
    return {site: named[site] for site in sites}


def _communities(description: Mapping[str, Any]) -> dict[str, str]:
    """What ``partition.json`` says, without a data set's name that all sources have in front."""
    of_data_set = description.get("scheme") == "fedperl"
    named: dict[str, str] = {}
    for site, summary in description["sites"].items():
        counts: Counter[str] = Counter()
        for source, count in summary.get("sources", {}).items():
            counts[source.partition("/")[0] if of_data_set else source] += count
        # Of equally common ones the first by name.
        named[site] = min(counts, key=lambda source: (-counts[source], source), default="")
    fronts = {name.partition("/")[0] for name in named.values()}
    common = f"{fronts.pop()}/" if len(fronts) == 1 else ""
    return {site: name.removeprefix(common) for site, name in named.items()}


def drawings(events: Sequence[Event], sites: Sequence[str], groups: Mapping[str, str] | None) -> dict[str, Figure]:
    """The figures that can be drawn of these events, by name."""
    from grandrounds.evaluation.communities import community_order
    from grandrounds.evaluation.figures import accuracy_figure, pseudo_label_figure, similarity_figure

    order = community_order(groups) if groups else list(sites)
    first = first_round_with_peers(events)
    drawn: dict[str, Figure] = {}
    if first is not None:
        drawn["peer_frequency"] = _peer_frequency(events, order, groups)
    rounds = similarities(events)
    if any(len(entry.sites) > 1 for entry in rounds):
        shown = rounds_to_show([entry.round_number for entry in rounds], first)
        drawn["similarity"] = similarity_figure(rounds, shown, order, groups, first)
    metric = next((event["metric"] for event in reversed(events) if event["event"] == "score"), None)
    if metric and (scores := score_curves(events, order, metric)):
        drawn["accuracy"] = accuracy_figure(scores, metric, groups)
    accepted = training_curves(events, order, "accepted")
    if accepted:
        drawn["pseudo_labels"] = pseudo_label_figure(
            accepted, training_curves(events, order, "pseudo_label_accuracy"), first
        )
    return drawn


def _peer_frequency(events: Sequence[Event], sites: Sequence[str], groups: Mapping[str, str] | None) -> Figure:
    from grandrounds.evaluation.figures import peer_frequency_figure
    from grandrounds.methods.fedperl.peers import chance_within_group, pick_matrix, within_group_share

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

    from grandrounds.evaluation.figures import SimilarityRound

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


def score_curves(events: Sequence[Event], sites: Sequence[str], metric: str) -> dict[str, dict[int, float]]:
    """Each site's score by the round after which the scored model was made; sites without any are left out."""
    from grandrounds.federation.messages import VALIDATION_PREFIX

    curves: dict[str, dict[int, float]] = {site: {} for site in sites}
    for event in events:
        score = event["metrics"].get(VALIDATION_PREFIX + metric) if event["event"] == "answer" else None
        if score is not None:
            # A task scores the model that its round starts from.
            curves[event["site"]][event["round"] - 1] = score
    return {site: curve for site, curve in curves.items() if curve}


def training_curves(events: Sequence[Event], sites: Sequence[str], name: str) -> dict[str, dict[int, float]]:
    """A metric of the training by site and round; sites without it are left out."""
    curves: dict[str, dict[int, float]] = {site: {} for site in sites}
    for event in events:
        if event["event"] == "answer" and name in event["metrics"]:
            curves[event["site"]][event["round"]] = event["metrics"][name]
    return {site: curve for site, curve in curves.items() if curve}
