"""The parts of the page below the first screen: comparison, and single runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from grandrounds.evaluation.clinical.suppression import count_text, shown_counts
from grandrounds.evaluation.score import Score, ScoreSheet
from grandrounds.federation.server.record import traffic
from grandrounds.reporting.format import MISSING, SCORE_NAMES, format_bytes, format_items, format_number
from grandrounds.reporting.model import MAX_DETAILED_RUNS, Operation, Report, ReportedRun
from grandrounds.reporting.overview import MAX_CAVEATS
from grandrounds.reporting.parts import Cell, PageFigure, PageTable
from grandrounds.reporting.population import population_tables
from grandrounds.reporting.run import MODELS, RunLog, Spent
from grandrounds.reporting.scores import RunScores
from grandrounds.reporting.tables import TABLE_SCORES, OperatingRow, class_table, groups_table, operating_table

OF_SITES = (
    "Test images of each site, with 95 % intervals. “Always” is predicting the site's most frequent class for every image. "
    "Sites with different classes cannot be compared by means over classes."
)
BY_CLASS = (
    "Each {noun}, all test images together; by site they are in tables/classes.csv. What guessing gives is below."
)
OF_POINTS = (
    "Operating points: the threshold of each {noun} that finds nine in ten of its validation images, and what it does on "
    "test images, which had no part in the choice"
)


class ComparisonSection(NamedTuple):
    """Methods against each other: whether any two are compared, and what a page of many runs leaves out."""

    paired: bool
    reduced: str
    figures: Sequence[PageFigure]


class RunSection(NamedTuple):
    """One run in detail: tables of its ``scores``, of the ``population`` and settings, and ``records`` of the rounds."""

    name: str
    note: str
    caveats: Sequence[str]
    scores: Sequence[PageTable]
    population: Sequence[PageTable]
    figures: Sequence[PageFigure]
    records: Sequence[PageTable]


def comparison_section(report: Report, figures: Sequence[PageFigure]) -> ComparisonSection:
    """Methods against each other."""
    reduced = (
        f"With more than {MAX_DETAILED_RUNS} runs each of them has only its main figures below: precision and recall, risk "
        "and coverage, learning curves, budgets and the figures of its method are left out. A report on that run alone has "
        "them."
    )
    crowded = len(report.runs) > MAX_DETAILED_RUNS
    return ComparisonSection(report.comparison is not None, reduced if crowded else "", figures)


def run_section(reported: ReportedRun, figures: Sequence[PageFigure], several: bool) -> RunSection:
    """One run in detail; the first caveats of one that is alone are on the first screen."""
    run, noun = reported.run, reported.run.task.noun
    whose = f" Scores are of {MODELS[run.tests.model]}." if run.tests.questions else ""
    tables = _score_tables(noun, reported.scores, run.origin.minimum, bool(run.tests.curves))
    return RunSection(
        run.name,
        f"{_course(run.log)}{whose} {format_items(run.log.versions)}",
        reported.caveats if several else reported.caveats[MAX_CAVEATS:],
        [*tables, *_operating_tables(noun, reported.points)],
        population_tables(run),
        figures,
        [_traffic_table(run.log, run.origin.communities), *_privacy_tables(run.origin.spent)],
    )


def _course(log: RunLog) -> str:
    seed = "" if log.seed is None else f", seed {log.seed}"
    reason = f" ({log.reason})" if log.reason else ""
    return f"Method {log.method}{seed}; {log.rounds_done} of {log.rounds} rounds, {log.status}{reason}."


def _score_tables(noun: str, scores: RunScores, minimum: int, has_curves: bool) -> Iterator[PageTable]:
    """Scores by site and by class; where only means are known, these."""
    pooled, sites = scores.pooled, scores.sites
    if pooled and sites and pooled.counted:
        yield _site_table(scores, pooled)
        yield class_table(noun, pooled, sites.values(), BY_CLASS.format(noun=noun))
    elif sites:
        yield _reported_table(sites, minimum, has_curves)
    elif pooled:
        known = {SCORE_NAMES[name]: score for name, score in pooled.scores.items() if name in SCORE_NAMES}
        rows = [[name, format_number(score.value, 3)] for name, score in known.items()]
        yield PageTable(["score", "value"], rows, "All test images together, as the result gives them")


def _site_table(scores: RunScores, pooled: ScoreSheet) -> PageTable:
    groups = {
        **scores.sites,
        **{f"community {name}": sheet for name, sheet in scores.communities.items()},
        "all images together": pooled,
    }
    others: dict[str, Mapping[str, Score | float]] = {
        **{f"{name}, all images": reference for name, reference in pooled.references.items()},
        "mean over sites": {name: score for name in TABLE_SCORES if (score := scores.best_mean(name))},
        **{f"{name}, mean over sites": reference for name, reference in scores.mean_references.items()},
    }
    return groups_table("site", groups, others, OF_SITES)


def _reported_table(sites: Mapping[str, ScoreSheet], minimum: int, has_curves: bool) -> PageTable:
    names = [name for name in SCORE_NAMES if any(sheet.score(name).known for sheet in sites.values())]
    counts = shown_counts({site: sheet.images or 0 for site, sheet in sites.items()}, minimum)
    rows = [
        [site, count_text(counts[site], minimum), *(format_number(sheet.score(name).value) for name in names)]
        for site, sheet in sites.items()
    ]
    without = "intervals" if has_curves else "intervals and no curves"
    caption = f"Means that the sites have reported; their predictions stayed there, so there are no {without}"
    return PageTable(["site", "images", *(SCORE_NAMES[name] for name in names)], rows, caption)


def _operating_tables(noun: str, points: Mapping[str, Operation]) -> Iterator[PageTable]:
    rows = [OperatingRow(name, *point[:3], test) for name, (point, test) in points.items()]
    if rows:
        yield operating_table(noun, rows, OF_POINTS.format(noun=noun))


def _traffic_table(log: RunLog, communities: Mapping[str, str]) -> PageTable:
    dropped, unknown = log.dropped(), "none" if log.contributions else MISSING
    rows: list[list[Cell | str]] = []
    for site in log.sites:
        parts = log.bytes.get(site, {})
        moved = traffic({site: parts})
        sent = ", ".join(sorted(name.removeprefix("up.") for name in parts if name.startswith("up."))) or "nothing"
        rounds = str(log.contributions.get(site, 0)) if log.contributions else MISSING
        missed = ", ".join(str(number) for number in dropped.get(site, [])) or unknown
        sizes = format_bytes(moved.down_global + moved.down_extra), format_bytes(moved.up)
        rows.append([site, communities.get(site, MISSING), sent, rounds, missed, *sizes])
    header = ["site", "community", "sent", "rounds", "dropped in", "received", "sent bytes"]
    caption = "Communication: parts that each site sent beside scores, rounds it contributed to, bytes of tensors"
    return PageTable(header, rows, caption, text_columns=3)


def _privacy_tables(spent: Sequence[Spent]) -> Iterator[PageTable]:
    rows = [
        [one.site, one.unit, "infinite" if one.epsilon is None else format_number(one.epsilon), f"{one.delta:g}"]
        for one in spent
    ]
    if rows:
        header = ["site", "protects", "epsilon", "delta"]
        yield PageTable(header, rows, "Privacy ledgers: all releases together", text_columns=2)
