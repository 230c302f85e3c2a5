"""Curves over rounds, from the events of a run's record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from grandrounds.ordering import natural_sorted
from grandrounds.reporting.run import Event

VALIDATION = "validation."
Curves = dict[str, dict[int, float]]
"""A value for each site and for some of the rounds."""


def sites_of(events: Iterable[Event]) -> list[str]:
    """All sites of a run: those at its start, those that joined later, and those that never answered."""
    found: set[str] = set()
    for event in events:
        if event["event"] == "start":
            found |= set(event["sites"])
        elif event["event"] in ("answer", "dropped"):
            found.add(event["site"])
    return natural_sorted(found)


def validation_curves(events: Iterable[Event], sites: Sequence[str], metric: str) -> Curves:
    """Each site's validation score by the round after which the scored model was made; sites without any are left out."""
    # A task scores the model that its round starts from.
    return {
        site: {number - 1: score for number, score in curve.items()}
        for site, curve in _answered(events, sites, VALIDATION + metric).items()
    }


def training_curves(events: Iterable[Event], sites: Sequence[str], name: str) -> Curves:
    """A metric of the training by site and round; sites without it are left out."""
    return _answered(events, sites, name)


def round_curve(events: Iterable[Event], *names: str) -> dict[int, float]:
    """A note of the rounds by round.

    Args:
        events: of a run.
        names: of the note, and of an entry in it where it is an object.
    """
    found: dict[int, float] = {}
    for event in events:
        value = event if event["event"] == "round_end" else None
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, (int, float)):
            found[int(event["round"])] = float(value)
    return found


def _answered(events: Iterable[Event], sites: Sequence[str], name: str) -> Curves:
    curves: Curves = {site: {} for site in sites}
    for event in events:
        value = event["metrics"].get(name) if event["event"] == "answer" else None
        if value is not None:
            curves[event["site"]][int(event["round"])] = float(value)
    return {site: curve for site, curve in curves.items() if curve}
