"""The rows of a method's table of scores: of one run its own, of several seeds their mean and standard deviation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import stdev
from typing import NamedTuple

from grandrounds.evaluation.score import Score
from grandrounds.reporting.format import MISSING
from grandrounds.reporting.model import seeds_score
from grandrounds.reporting.parts import FEW
from grandrounds.reporting.run import ReadRun
from grandrounds.reporting.scores import Row, table_rows

DIGITS = 3
OVER_SEEDS = ("value", "sd", "low", "high", "cases", "of", "few_cases")
"""Columns of a score in a CSV file."""


class OverSeeds(NamedTuple):
    """A score of a method.

    Attributes:
        score: of one run its own with the interval of its cases; of several the mean over seeds, from three seeds with
            Student's interval; None without any.
        deviation: the sample's standard deviation over seeds; NaN for fewer than two.
    """

    score: Score | None
    deviation: float = math.nan

    @property
    def text(self) -> str:
        """The score as a cell of a printed table."""
        found = self.score
        if found is None or not found.known:
            return found.reason if found and found.reason else MISSING
        mark = f"{FEW if found.few else ''}{f' ({found.of})' if found.of else ''}"
        value = f"{found.value:.{DIGITS}f}"
        if not math.isnan(self.deviation):
            return f"{value} ± {self.deviation:.{DIGITS}f}{mark}"
        # A reference has no cases of its own, so its interval is no interval.
        if math.isnan(found.low) or found.low == found.high == found.value:
            return f"{value}{mark}"
        return f"{value}{mark} [{found.low:.{DIGITS}f}, {found.high:.{DIGITS}f}]"

    @property
    def plain(self) -> list[str]:
        """The cells of ``OVER_SEEDS``; empty for what is not known."""
        if self.score is None:
            return [""] * len(OVER_SEEDS)
        found = self.score.to_json()
        numbers = [found["value"], None if math.isnan(self.deviation) else round(self.deviation, 6)]
        cells = [*numbers, found["low"], found["high"], found["cases"]]
        few = "yes" if self.score.few else ""
        return [*("" if cell is None else str(cell) for cell in cells), self.score.of, few]


class MethodRow(NamedTuple):
    """One row of a method: a site, ``mean``, ``pooled`` or a reference; images, the seeds that have it, and its scores."""

    name: str
    images: str
    seeds: int
    scores: Mapping[str, OverSeeds]


def over_seeds(scores: Sequence[Score | None]) -> OverSeeds:
    """One score of several seeds."""
    known = [score.value for score in scores if score and score.known]
    found = seeds_score(scores)
    several = found is not None and found.known and len(known) > 1
    return OverSeeds(found, stdev(known) if several else math.nan)


def method_rows(runs: Sequence[ReadRun]) -> tuple[list[MethodRow], list[MethodRow]]:
    """The rows of runs that differ in their seed alone: those of sites, and those of all sites together."""
    tables = [(run, table_rows(run)) for run in runs]
    sites = [rows[: len(run.tests.sites)] for run, rows in tables]
    whole = [rows[len(run.tests.sites) :] for run, rows in tables]
    return _joined(sites, runs[0]), _joined(whole, runs[0])


def _joined(tables: Sequence[Sequence[Row]], first: ReadRun) -> list[MethodRow]:
    names = dict.fromkeys(row.name for rows in tables for row in rows)
    found = []
    for name in names:
        rows = [row for table in tables for row in table if row.name == name]
        scores = {score: over_seeds([row.scores.get(score) for row in rows]) for score in first.task.scores}
        found.append(MethodRow(name, _range([row.images for row in rows]), len(rows), scores))
    return found


def _range(counts: Sequence[int | None]) -> str:
    """A number of images, or the smallest and the largest of the seeds; empty where it is not known."""
    known = sorted({count for count in counts if count is not None})
    if len(known) < 2:
        return str(known[0]) if known else ""
    return f"{known[0]} to {known[-1]}"
