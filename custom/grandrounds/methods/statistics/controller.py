"""Collects the sites' statistics once, and summarises them."""

from __future__ import annotations

import re
from statistics import fmean
from typing import Any, ClassVar

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.methods.supervised.controller import LocalController
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import Result

STATISTIC = re.compile(r"images\.((labelled|val|test)\.\d+|unlabelled)|size\.\d+|intensity\.\d+\.\d+")
SHARE = "intensity"
OF_EVERY_TASK = frozenset({"train_seconds", "samples"})
"""Numbers with every answer to a training task; a gate adds the second where updates leave with noise."""


class StatisticsController(LocalController):
    """One round without a model (``rounds`` is 1, ``validate_every`` 0), whose statistics are in the round's record.

    ``sites`` contains the values of each site, ``overall`` the sums of counts and means of shares over the sites that
    report a value, with their number as ``reported_by``: a sum over some of the sites is a lower bound.
    """

    needs_exclusive: ClassVar[bool] = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, value in (("rounds", 1), ("validate_every", 0)):
            if getattr(self.run, name) != value:
                raise ConfigurationError(f"statistics are one round without a model: {name} must be {value}")

    def open_round(self, sites: list[str]) -> None:
        """Start without reports."""
        self._reported: dict[str, dict[str, float]] = {}

    def check(self, site: str, result: Result) -> None:
        """Refuse metrics that are not statistics."""
        unknown = [name for name in result.metrics if name not in OF_EVERY_TASK and not STATISTIC.fullmatch(name)]
        if unknown:
            raise MessageError(f"{unknown[0]!r} is not a statistic of a site's data")

    def absorb(self, site: str, result: Result) -> None:
        """Keep a site's statistics."""
        super().absorb(site, result)
        self._reported[site] = {
            self._named(name): value for name, value in result.metrics.items() if STATISTIC.fullmatch(name)
        }

    def round_notes(self) -> dict[str, Any]:
        """The statistics, for the record."""
        sites = {site: self._reported[site] for site in natural_sorted(self._reported)}
        names = natural_sorted({name for values in sites.values() for name in values})
        given = {name: [values[name] for values in sites.values() if name in values] for name in names}
        overall = {
            name: {"value": fmean(values) if name.startswith(SHARE) else sum(values), "reported_by": len(values)}
            for name, values in given.items()
        }
        return {"statistics": {"sites": sites, "overall": overall}}

    def _named(self, name: str) -> str:
        """The metric's name with the class's name instead of its index."""
        *path, last = name.split(".")
        if path[0] == "images" and last.isdigit() and int(last) < len(self.problem.classes):
            return ".".join([*path, self.problem.classes[int(last)]])
        return name
