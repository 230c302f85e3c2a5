"""Curves over rounds, read from the events of a run's record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from grandrounds.ordering import natural_sorted
from grandrounds.protocol.names import VALIDATION_PREFIX

Event = Mapping[str, Any]
Curves = dict[str, dict[int, float]]
"""A value for each site and for some of the rounds."""


class RunHistory(NamedTuple):
    """What a method's figures are drawn from.

    Attributes:
        events: of the run, in order.
        sites: all of its sites, in natural order.
        communities: the community of each site; empty where it is not known.
        classes: the vocabulary; empty where it is not known.
    """

    events: Sequence[Event]
    sites: Sequence[str]
    communities: Mapping[str, str]
    classes: Sequence[str]


def sites_of(events: Iterable[Event]) -> list[str]:
    """All sites of a run: those at its start, those that joined later, and those that never answered."""
    names: set[str] = set()
    for event in events:
        if event["event"] == "start":
            names |= set(event["sites"])
        elif event["event"] in ("answer", "dropped"):
            names.add(event["site"])
    return natural_sorted(names)


def selection_metric(events: Sequence[Event]) -> str | None:
    """The metric by which the run selects its model; None if no model was scored."""
    return next((event["metric"] for event in reversed(events) if event["event"] == "score"), None)


def validation_curves(events: Iterable[Event], sites: Sequence[str], metric: str) -> Curves:
    """Each site's validation score by the round that made the scored model; sites without a score are left out."""
    # A task scores the model that its round starts from.
    return {
        site: {number - 1: score for number, score in curve.items()}
        for site, curve in training_curves(events, sites, VALIDATION_PREFIX + metric).items()
    }


def training_curves(events: Iterable[Event], sites: Sequence[str], name: str) -> Curves:
    """A metric of the sites' answers by site and round; sites without it are left out."""
    curves: Curves = {site: {} for site in sites}
    for event in events:
        value = event["metrics"].get(name) if event["event"] == "answer" else None
        if value is not None:
            curves[event["site"]][int(event["round"])] = float(value)
    return {site: curve for site, curve in curves.items() if curve}


def round_curve(events: Iterable[Event], *names: str) -> dict[int, float]:
    """A value that the server records at the end of each round, by round; ``names`` are its name and those within it."""
    values: dict[int, float] = {}
    for event in events:
        value = event if event["event"] == "round_end" else None
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, (int, float)):
            values[int(event["round"])] = float(value)
    return values
