"""Asks every site for its figures once, and puts them side by side."""

from __future__ import annotations

import re
from statistics import fmean
from typing import Any

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.methods.supervised.controller import LocalController
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import Result

FIGURE = re.compile(r"images\.((labelled|val|test)\.\d+|unlabelled)|size\.\d+|intensity\.\d+\.\d+")
SHARE = "intensity"


class StatisticsController(LocalController):
    """One round in which sites tell figures of their data; they are in the record's entry of the round.

    ``sites`` has what each has told. ``together`` has sums of images over the sites that gave a figure, and means of shares;
    a sum to which not all sites have given is a lower bound, and ``given_by`` says how many have.

    Args:
        options: those of :class:`~grandrounds.federation.server.controller.RoundController`; ``rounds`` is 1 and
            ``validate_every`` 0, because there is no model.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, value in (("rounds", 1), ("validate_every", 0)):
            if getattr(self.run, name) != value:
                raise ConfigurationError(f"statistics are one round without a model: {name} must be {value}")

    def open_round(self, sites: list[str]) -> None:
        """Nobody has told anything yet."""
        self._told: dict[str, dict[str, float]] = {}

    def check(self, site: str, result: Result) -> None:
        """Refuse what is no figure."""
        unknown = [name for name in result.metrics if name != "train_seconds" and not FIGURE.fullmatch(name)]
        if unknown:
            raise MessageError(f"{unknown[0]!r} is no figure of a site's data")

    def absorb(self, site: str, result: Result) -> None:
        """Note a site's figures."""
        super().absorb(site, result)
        told = {name: value for name, value in result.metrics.items() if FIGURE.fullmatch(name)}
        self._told[site] = {self._named(name): value for name, value in told.items()}

    def round_notes(self) -> dict[str, Any]:
        """The figures, for the record."""
        sites = {site: self._told[site] for site in natural_sorted(self._told)}
        names = natural_sorted({name for told in sites.values() for name in told})
        given = {name: [told[name] for told in sites.values() if name in told] for name in names}
        together = {
            name: {"value": fmean(values) if name.startswith(SHARE) else sum(values), "given_by": len(values)}
            for name, values in given.items()
        }
        return {"statistics": {"sites": sites, "together": together}}

    def _named(self, name: str) -> str:
        """Classes by name and not by index."""
        *path, last = name.split(".")
        if path[0] == "images" and last.isdigit() and int(last) < len(self.problem.classes):
            return ".".join([*path, self.problem.classes[int(last)]])
        return name
