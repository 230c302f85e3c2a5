"""Tables of an article: scores over seeds, of all sites together, of each site and class, images and settings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import stdev
from typing import NamedTuple

from grandrounds.evaluation.score import Score
from grandrounds.reporting.comparison import Comparison
from grandrounds.reporting.model import Method, Report, seeds_score
from grandrounds.reporting.population import population_tables, settings_of
from grandrounds.reporting.run import ReadRun, Row, table_rows
from grandrounds.reporting.tables import CLASS_NAMES, FEW, MISSING, SCORE_NAMES, format_number, format_p

NOT_RECORDED = "not recorded"
"""What stands in place of a fact that a run's record does not have."""

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
        score = self.score
        if score is None or not score.known:
            return score.reason if score and score.reason else MISSING
        mark = f"{FEW if score.few else ''}{f' ({score.of})' if score.of else ''}"
        value = f"{score.value:.{DIGITS}f}"
        if not math.isnan(self.deviation):
            return f"{value} ± {self.deviation:.{DIGITS}f}{mark}"
        # A reference has no cases of its own, so its interval is no interval.
        if math.isnan(score.low) or score.low == score.high == score.value:
            return f"{value}{mark}"
        return f"{value}{mark} [{score.low:.{DIGITS}f}, {score.high:.{DIGITS}f}]"

    @property
    def plain(self) -> list[str]:
        """The cells of ``OVER_SEEDS``; empty for what is not known."""
        if self.score is None:
            return [""] * len(OVER_SEEDS)
        content = self.score.to_json()
        numbers = [content["value"], None if math.isnan(self.deviation) else round(self.deviation, 6)]
        cells = [*numbers, content["low"], content["high"], content["cases"]]
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
    mean = seeds_score(scores)
    several = mean is not None and mean.known and len(known) > 1
    return OverSeeds(mean, stdev(known) if several else math.nan)


def method_rows(runs: Sequence[ReadRun]) -> tuple[list[MethodRow], list[MethodRow]]:
    """The rows of runs that differ in their seed alone: those of sites, and those of all sites together."""
    tables = [(run, table_rows(run)) for run in runs]
    sites = [rows[: len(run.tests.sites)] for run, rows in tables]
    whole = [rows[len(run.tests.sites) :] for run, rows in tables]
    return _joined(sites, runs[0]), _joined(whole, runs[0])


def _joined(tables: Sequence[Sequence[Row]], first: ReadRun) -> list[MethodRow]:
    names = dict.fromkeys(row.name for rows in tables for row in rows)
    parts = []
    for name in names:
        rows = [row for table in tables for row in table if row.name == name]
        scores = {score: over_seeds([row.scores.get(score) for row in rows]) for score in first.task.scores}
        parts.append(MethodRow(name, _range([row.images for row in rows]), len(rows), scores))
    return parts


def _range(counts: Sequence[int | None]) -> str:
    """A number of images, or the smallest and the largest of the seeds; empty where it is not known."""
    known = sorted({count for count in counts if count is not None})
    if len(known) < 2:
        return str(known[0]) if known else ""
    return f"{known[0]} to {known[-1]}"


OF_SEEDS = (
    "Of several seeds: mean ± standard deviation over seeds; of one: with the 95 % interval of its test cases. "
    "*: fewer than ten cases."
)
OF_MODELS = ("mean", "pooled")
"""Rows of all sites together that are a model's; the others are references."""
POPULATION = ("images_by_site", "images_by_class", "images_by_site_and_class")


class PaperTable(NamedTuple):
    """A table of an article.

    Attributes:
        name: of its files, without ending.
        caption: what it shows.
        header: of the printed table.
        rows: printed cells.
        text_columns: how many of the first columns are text; the others are numbers.
        plain_header: of the CSV file; that of the printed table if empty.
        plain_rows: of the CSV file, where it has another header.
    """

    name: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1
    plain_header: Sequence[str] = ()
    plain_rows: Sequence[Sequence[str]] = ()


def paper_tables(report: Report) -> list[PaperTable]:
    """All tables of results, images and settings."""
    rows = {name: method_rows(_runs(method)) for name, method in report.methods.items()}
    whole = [(name, row) for name, (_, found) in rows.items() for row in found]
    by_site = [(name, row) for name, (found, _) in rows.items() for row in found]
    tables = [
        _scores("scores", _references_once(whole), report, "All sites together"),
        _scores("scores_by_site", by_site, report, "Each site"),
        *_classes(report),
        *([_comparison(report.comparison)] if report.comparison else []),
        *_population(report.first.run),
        _settings(report),
    ]
    return [table for table in tables if table.rows]


def _runs(method: Method) -> list[ReadRun]:
    return [reported.run for reported in method.runs]


def _references_once(rows: Sequence[tuple[str, MethodRow]]) -> list[tuple[str, MethodRow]]:
    """The rows of methods, then each reference (ridge, chance) once if all methods have the same."""
    own = [(method, row) for method, row in rows if row.name in OF_MODELS]
    references: dict[str, list[tuple[str, MethodRow]]] = {}
    for method, row in rows:
        if row.name not in OF_MODELS:
            references.setdefault(row.name, []).append((method, row))
    for reference in references.values():
        values = {tuple(score.plain[0] for score in row.scores.values()) for _, row in reference}
        own += (
            reference
            if len(values) > 1
            else [("reference", max((row for _, row in reference), key=lambda row: row.seeds))]
        )
    return own


def _scores(name: str, methods: Sequence[tuple[str, MethodRow]], report: Report, what: str) -> PaperTable:
    names = list(report.task.scores)
    rows, plain = [], []
    for method, row in methods:
        leading = [method, row.name, row.images, str(row.seeds)]
        rows.append([*leading, *(row.scores[score].text for score in names)])
        plain += [[*leading, score, *row.scores[score].plain] for score in names]
    header = ["method", "test images of", "images", "seeds"]
    kinds = {reported.run.tests.model for reported in report.runs.values()}
    whose = {"common": "the federation's selected model", "own": "each site's own choice"}
    caption = (
        f"{what}: scores on test images, of {' or '.join(whose.get(kind, kind) for kind in sorted(kinds))}. {OF_SEEDS} "
        "Pooled: the images of all sites; mean: the unweighted mean over sites."
    )
    titles = [SCORE_NAMES.get(score, score.replace("_", " ")) for score in names]
    return PaperTable(name, caption, [*header, *titles], rows, 2, [*header, "score", *OVER_SEEDS], plain)


def _classes(report: Report) -> Iterator[PaperTable]:
    rows, plain = [], []
    noun, scores = report.task.noun, _scores_of_classes(report)
    known = [key for key in CLASS_NAMES if any(key in seed for seeds in scores.values() for seed in seeds)]
    for names, seeds in scores.items():
        leading = [*names, str(len(seeds))]
        cells = {key: over_seeds([seed.get(key) for seed in seeds]) for key in known}
        rows.append([*leading, *(cell.text for cell in cells.values())])
        plain += [[*leading, key, *cell.plain] for key, cell in cells.items()]
    header = ["method", noun, "seeds"]
    caption = f"Each {noun}, all test images together. {OF_SEEDS}"
    titles = [CLASS_NAMES[key] for key in known]
    yield PaperTable("scores_by_class", caption, [*header, *titles], rows, 2, [*header, "score", *OVER_SEEDS], plain)


def _scores_of_classes(report: Report) -> dict[tuple[str, str], list[Mapping[str, Score]]]:
    """By method and class the scores of each seed that has some."""
    scores = {}
    for method, members in report.methods.items():
        sheets = [run.scores.pooled for run in members.runs if run.scores.pooled]
        for name in report.classes:
            scores[method, name] = [sheet.classes[name] for sheet in sheets if name in sheet.classes]
    return {names: seeds for names, seeds in scores.items() if seeds}


def _comparison(comparison: Comparison) -> PaperTable:
    rows, plain, header = [], [], ["method", "reference"]
    for method, difference in comparison.differences.items():
        row = comparison.row(method)
        header = ["method", "reference", *row]
        interval = f" [{format_number(difference.low, 3)}, {format_number(difference.high, 3)}]"
        known = difference.low == difference.low
        text = f"{format_number(difference.mean, 3)}{interval if known else ''}"
        p_values = format_p(difference.p_value), format_p(comparison.adjusted[method])
        rows.append([method, comparison.reference, str(comparison.seeds[method]), text, *p_values])
        plain.append([method, comparison.reference, *("" if cell is None else str(cell) for cell in row.values())])
    metric = SCORE_NAMES.get(comparison.metric, comparison.metric)
    caption = (
        f"Differences in {metric} to {comparison.reference}, with 95 % intervals. Adjusted p: corrected for the number of "
        "methods (Holm)."
    )
    titles = ["method", "reference", "seeds", "difference", "p", "adjusted p"]
    return PaperTable("comparison", caption, titles, rows, 2, header, plain)


def _population(run: ReadRun) -> Iterator[PaperTable]:
    """The images of the first run; what was not recorded is no table."""
    tables = population_tables(run)[:-1]
    names = POPULATION if len(tables) >= len(POPULATION) else ("images",)
    for name, table in zip(names, tables, strict=False):
        rows = [[cell if isinstance(cell, str) else cell.line for cell in row] for row in table.rows]
        yield PaperTable(name, f"{table.caption}.", table.header, rows, table.text_columns)


def _settings(report: Report) -> PaperTable:
    rows = []
    for name, method in report.methods.items():
        seeds = [reported.run.log.seed for reported in method.runs]
        rows.append([name, "seeds", ", ".join(MISSING if seed is None else str(seed) for seed in seeds)])
        rows += [[name, *pair] for pair in settings_of(method.runs[0].run)]
    caption = "Data, options and software of each method; of several seeds those of the first."
    return PaperTable("settings", caption, ["method", "", "how the models were made"], rows, text_columns=3)
