"""The report's folder: one page that needs nothing else, the figures, the tables and all numbers.

The first screen has task, training, sites, score, comparison, privacy, communication and the main caveats; below are the
comparison of methods and single runs.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from grandrounds import __version__
from grandrounds.csv_files import write_csv
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.evaluation.clinical.suppression import count_text, shown_counts
from grandrounds.evaluation.comparisons import MIN_SEEDS, Difference
from grandrounds.evaluation.score import MIN_CASES, Score, ScoreSheet
from grandrounds.evaluation.within import WITHIN
from grandrounds.federation.server.record import traffic
from grandrounds.files import read_json_object, write_bytes, write_json
from grandrounds.folders import file_names, written_together
from grandrounds.plotting import Drawing
from grandrounds.protocol.task import Task
from grandrounds.reporting.comparison import Comparison
from grandrounds.reporting.external.result import ExternalResult
from grandrounds.reporting.external.section import ExternalSection, drawings_of, external_section
from grandrounds.reporting.figures.runs import comparison_drawings, file_name, run_drawings
from grandrounds.reporting.model import MAX_DETAILED_RUNS, Operation, Report, ReportedRun, seeds_score
from grandrounds.reporting.population import population_tables
from grandrounds.reporting.run import ALWAYS_AT_SITES, MODELS, ReadRun, RunLog, RunScores, Spent
from grandrounds.reporting.tables import (
    MISSING,
    SCORE_NAMES,
    TABLE_SCORES,
    Cell,
    PageFigure,
    PageTable,
    class_table,
    class_titles,
    confidence_tables,
    estimate_cell,
    format_bytes,
    format_estimate,
    format_items,
    format_list,
    format_number,
    format_p,
    groups_table,
    operating_table,
    page_template,
    pluralize,
    within_table,
)

AREA = "auc_macro"
MAX_CAVEATS = 5
MAX_OF_RUNS = 3
"""Caveats of single runs on the first screen of several."""
OF_METHODS = (
    f"Of {MIN_SEEDS} seeds or more: their mean with Student's 95 % interval over seeds; of one seed: with the 95 % interval "
    "of these sites' cases. An interval over seeds is of other runs with these data, not of other patients or hospitals; if "
    "each seed divides the images anew, the divisions share images and it is too narrow."
)
PAIRED = (
    f" Differences are paired by seed; of fewer than {MIN_SEEDS} seeds they are of two fixed models on the same test cases, "
    "which says nothing about other seeds. Adjusted p: corrected for the number of methods (Holm). Detectable: the smallest "
    "difference that would have been found with a probability of 80 %."
)
NO_PRIVACY = "The record of the run has no epsilon: nothing bounds what the sent updates reveal about a patient."


class Fact(NamedTuple):
    """One box of the first screen: a name, a value in large print, and lines below it."""

    name: str
    value: str
    lines: Sequence[str]


class Overview(NamedTuple):
    """The task in one sentence, the boxes, the main caveats, and the methods with their scores (None for one run)."""

    lead: str
    facts: Sequence[Fact]
    caveats: Sequence[str]
    methods: PageTable | None


def overview(report: Report) -> Overview:
    """The first screen of a report."""
    runs = [reported.run for reported in report.runs.values()]
    alone = None if report.several else report.first
    facts = [
        Fact("Trained", *(_trained(alone.run.log) if alone else _trained_methods(runs, list(report.methods)))),
        Fact("Sites", *_sites(report.first, len(report.sites), _dropouts([run.log for run in runs]))),
        Fact("Score", *_score(report)),
        Fact("Compared to", *_against(report)),
        Fact(
            "Privacy",
            *_privacy({run.name: run.origin.spent for run in runs}, [run.name for run in runs if run.log.traffic.up]),
        ),
        Fact("Communication", *(_communication(alone.run.log) if alone else _traffic_range(runs))),
    ]
    caveats = _main_caveats(report.first) if alone else _shared_caveats(report.runs, report.caveats)
    lead = _lead(report.task, report.classes, [run.log.problem for run in runs])
    return Overview(lead, facts, caveats, _methods_table(report) if report.several else None)


def _lead(task: Task, classes: Sequence[str], problems: Sequence[Mapping[str, Any]]) -> str:
    def stated(name: str) -> str:
        """What the runs have for an entry of their problem."""
        return " or ".join(dict.fromkeys(str(problem[name]) for problem in problems if name in problem))

    sizes = " or ".join(f"{size} by {size}" for size in stated("image_size").split(" or ") if size)
    pixels = f"{sizes} pixels, " if sizes else ""
    named = ", ".join(class_titles(classes).values())
    return (
        f"{task.activity.capitalize()} {pluralize(len(classes), task.noun)} ({named}); {pixels}data set "
        f"“{stated('dataset') or 'unknown'}”, network {stated('backbone') or 'unknown'}."
    )


def _trained_methods(runs: Sequence[ReadRun], methods: Sequence[str]) -> tuple[str, list[str]]:
    unfinished = sum(not run.log.complete for run in runs)
    lines = [f"{pluralize(len(methods), 'method')}: {', '.join(methods)}"]
    return pluralize(len(runs), "run"), [*lines, *([f"{unfinished} not finished"] if unfinished else [])]


def _trained(log: RunLog) -> tuple[str, list[str]]:
    lines = [f"{log.rounds_done} of {log.rounds} rounds, {log.status}"]
    if log.selected.get("metric"):
        metric = SCORE_NAMES.get(log.selected["metric"], log.selected["metric"])
        lines.append(f"model after round {log.selected['round']}, chosen by validation {metric}")
    return log.method, lines


def _dropouts(logs: Sequence[RunLog]) -> list[str]:
    dropped = sum(bool(log.dropped()) for log in logs)
    if not dropped:
        return []
    return ["a site dropped out" if len(logs) == 1 else f"sites dropped out in {pluralize(dropped, 'run')}"]


def _sites(first: ReportedRun, sites: int, dropouts: Sequence[str]) -> tuple[str, list[str]]:
    pooled, tested, unit = first.scores.pooled, first.scores.sites, first.run.tests.unit
    communities = set(first.run.origin.communities.values())
    lines = [f"in {pluralize(len(communities), 'community')}"] if communities else []
    if pooled is None:
        lines.append("not tested")
    elif not tested:
        lines.append(f"tested on {pooled.images} images together")
    else:
        cases = f", {pooled.cases} cases by {unit}" if unit != "image" and pooled.cases is not None else ""
        counted = "too few images to count" if pooled.images is None else f"{pooled.images} images{cases}"
        lines.append(f"tested on {counted} at {pluralize(len(tested), 'site')}")
    return pluralize(sites, "site"), [*lines, *dropouts]


def _score(report: Report) -> tuple[str, list[str]]:
    known = {name: method.score for name, method in report.methods.items() if method.score and method.score.known}
    if not known:
        return "not known", [_last_validation(report.first.run.log), _why_no_score(report)]
    best = max(known, key=lambda name: known[name].value)
    method = report.methods[best]
    seeds = f", mean of {len(method.runs)} seeds" if len(method.runs) > 1 else ""
    lines = [f"{SCORE_NAMES[report.metric]}, {_whole(report)}{seeds}", f"{report.chance:.2f} by guessing"]
    sheets = [run.scores.pooled for run in method.runs if run.scores.pooled]
    lines += [*_beside_majority(sheets), *_ranking(sheets, report.metric)]
    if len(known) > 1:
        lines.append(f"highest of {len(known)} methods: {best}")
    if not report.several:
        lines += _second_view(method.runs[0].scores, report.metric)
        lines.append(f"model: {MODELS[method.runs[0].run.tests.model]}")
    return format_estimate(known[best]), lines


def _whole(report: Report) -> str:
    sheets = [run.scores.pooled for run in report.runs.values()]
    pooled = any(sheet and sheet.best(report.metric).known for sheet in sheets)
    return "all test images together" if pooled else "mean over sites"


def _beside_majority(seeds: Sequence[ScoreSheet]) -> list[str]:
    """Accuracy beside that of the most frequent class."""
    if not seeds or not seeds[0].always:
        return []
    accuracy = format_estimate(seeds_score([sheet.score("accuracy") for sheet in seeds]))
    return [f"accuracy {accuracy}, {seeds[0].always['accuracy']:.2f} by always predicting {seeds[0].majority}"]


def _ranking(seeds: Sequence[ScoreSheet], headline: str) -> list[str]:
    """The area under the ROC curve, where it is known and not the headline, and that within sites."""
    lines = []
    for name in (AREA, WITHIN):
        known = [area for sheet in seeds if (area := sheet.best(name)).known]
        lines += [f"{SCORE_NAMES[name]} {format_estimate(seeds_score(known))}"] if known and headline != name else []
    return lines


def _second_view(scores: RunScores, metric: str) -> list[str]:
    """The mean over sites beside the score of all images."""
    mean = scores.best_mean(metric)
    if mean is None or not scores.pooled:
        return []
    always = scores.mean_references.get(ALWAYS_AT_SITES, {}).get(metric)
    beside = "" if always is None else f", {always:.2f} by always predicting each site's most frequent class"
    return [f"mean over sites {format_estimate(mean)}{beside}"]


def _last_validation(log: RunLog) -> str:
    scored = [event for event in log.events if event["event"] == "score"]
    if not scored:
        return "no model was scored"
    last = scored[-1]
    name, value = (last["metric"], last["mean"]) if "mean" in last else (last["by"], last["score"])
    return f"validation {SCORE_NAMES.get(name, name)} {value:.2f} after round {last['round']}"


def _why_no_score(report: Report) -> str:
    """Whether there was no test, or why the tested images have no such score."""
    pooled = report.first.scores.pooled
    return f"no test {SCORE_NAMES[report.metric]}: {pooled.score(report.metric).reason}" if pooled else "no test"


def _against(report: Report) -> tuple[str, list[str]]:
    comparison = report.comparison
    if comparison is None:
        return _against_references(report)
    best = max(comparison.differences, key=lambda method: comparison.differences[method].mean)
    difference = comparison.differences[best]
    lines = [f"{best} minus {comparison.reference}, {_units(difference)}"]
    if math.isnan(difference.low):
        return f"{difference.mean:+.3f}", [*lines, f"no interval: fewer than {MIN_SEEDS} seeds"]
    return (
        f"{difference.mean:+.3f}",
        [
            *lines,
            f"95 % interval {_interval(difference)}, adjusted p {format_p(comparison.adjusted[best])}",
            f"smallest detectable difference {format_number(difference.detectable, 3)}",
        ],
    )


def _against_references(report: Report) -> tuple[str, list[str]]:
    """A model beside the run's, where one was computed; else guessing."""
    first, alone = report.first, "no other run was given, so the benefit of federation is not known"
    sheet, reference = first.scores.pooled, [first.run.origin.reference] if first.run.origin.reference else []
    for name in sheet.models_beside if sheet else ():
        if report.metric in (scores := sheet.references[name] if sheet else {}):
            return f"{scores[report.metric]:.2f} by {name}", [f"{report.chance:.2f} by guessing", *reference]
    return f"{report.chance:.2f} by guessing", [*reference, alone]


def _units(difference: Difference) -> str:
    """What the difference is over."""
    if difference.unit == "seed":
        return f"paired by {pluralize(difference.n, 'seed')}"
    return f"of fixed models, not of seeds, on {pluralize(difference.n, 'case')}"


def _interval(difference: Difference) -> str:
    if math.isnan(difference.low):
        return ""
    return f"[{format_number(difference.low, 3)}, {format_number(difference.high, 3)}]"


def _privacy(spent_in: Mapping[str, Sequence[Spent]], sending: Sequence[str]) -> tuple[str, list[str]]:
    """The largest budget of all ledgers; ``sending`` are the runs in which something left a site."""
    spent = [entry for entries in spent_in.values() for entry in entries]
    if not spent:
        return ("no guarantee", [NO_PRIVACY]) if sending else ("nothing left a site", ["except the model's scores"])
    finite = [entry for entry in spent if entry.epsilon is not None]
    if len(finite) < len(spent):
        return "unbounded", ["A release without noise is in a ledger: its epsilon is infinite."]
    worst = max(finite, key=lambda entry: entry.epsilon or 0)
    lines = [
        f"delta {worst.delta:g}, per {worst.protects}, at {worst.site}: the largest of {pluralize(len(finite), 'ledger')}"
    ]
    unbounded = [name for name in sending if not spent_in[name]]
    return f"epsilon {worst.epsilon:.2f}", [*lines, *([f"no guarantee in {', '.join(unbounded)}"] if unbounded else [])]


def _traffic_range(runs: Sequence[ReadRun]) -> tuple[str, list[str]]:
    sums = {run.name: sum(run.log.traffic) for run in runs}
    if not any(sums.values()):
        return "none", ["no model was sent"]
    lowest, highest = format_bytes(min(filter(None, sums.values()))), format_bytes(max(sums.values()))
    silent = [name for name, size in sums.items() if not size]
    lines = ["of tensors in a run, all sites and rounds", *([f"none in {', '.join(silent)}"] if silent else [])]
    return highest if lowest == highest else f"{lowest} to {highest}", lines


def _communication(log: RunLog) -> tuple[str, list[str]]:
    moved, each = log.traffic, sum(log.contributions.values())
    if not sum(moved):
        return "none", ["no model was sent"]
    lines = [f"{format_bytes(moved.down_global + moved.down_extra)} to the sites, {format_bytes(moved.up)} from them"]
    if each:
        lines.append(f"{format_bytes(sum(moved) / each)} for each site and round")
    return format_bytes(sum(moved)), lines


def _main_caveats(only: ReportedRun) -> list[str]:
    sentence = f"This is one run with one seed ({only.run.log.seed})"
    return [*only.caveats, f"{sentence}: another seed gives other numbers, which are not known here."][:MAX_CAVEATS]


def _shared_caveats(runs: Mapping[str, ReportedRun], shared: Sequence[str]) -> list[str]:
    """The most serious caveats of the runs and of their comparison; those that differ in parentheses alone are one."""
    by_caveat: dict[str, dict[str, str]] = {}
    for name, reported in runs.items():
        for caveat in reported.caveats[:1]:
            by_caveat.setdefault(re.sub(r" \([^)]*\)", "", caveat), {})[name] = caveat
    of_runs = []
    for text, caveats in by_caveat.items():
        same = text if len(set(caveats.values())) > 1 else next(iter(caveats.values()))
        of_runs.append(same if len(caveats) == len(runs) else f"{format_list(list(caveats))}: {same}")
    return [*of_runs[:MAX_OF_RUNS], *shared, *of_runs[MAX_OF_RUNS:]][:MAX_CAVEATS]


def _methods_table(report: Report) -> PageTable:
    comparison, second = report.comparison, report.task.second_metric
    repeated = any(len(method.runs) > 1 for method in report.methods.values())
    header = ["method", "runs", SCORE_NAMES[report.metric], *(["lowest to highest"] if repeated else [])]
    header.append(SCORE_NAMES[second])
    if comparison:
        header += [f"minus {comparison.reference}", "adjusted p", "detectable", "relative, %"]
    header += ["communication", "status"]
    rows: list[list[Cell | str]] = [
        [
            name,
            str(len(method.runs)),
            estimate_cell(method.score),
            *([_range(method.seeds)] if repeated else []),
            estimate_cell(method.second),
            *(_difference(comparison, name) if comparison else []),
            format_bytes(sum(method.traffic)),
            ", ".join(sorted({reported.run.log.status for reported in method.runs})),
        ]
        for name, method in report.methods.items()
    ]
    # Models beside the runs', always predicting the most frequent class, and guessing: means over the runs with tests.
    sheets = [run.scores.pooled.references for run in report.runs.values() if run.scores.pooled]
    for name in sheets[0] if sheets else ():
        first, other = (_known(sheet.get(name, {}).get(key) for sheet in sheets) for key in (report.metric, second))
        values = [_mean(first), *([_lowest_to_highest(first)] if repeated else []), _mean(other)]
        rows.append([name, "", *values, *[""] * (len(header) - 2 - len(values))])
    return PageTable(
        header, rows, f"Methods on test images, {_whole(report)}. {OF_METHODS}{PAIRED if comparison else ''}"
    )


def _range(seeds: Sequence[Score]) -> str:
    return _lowest_to_highest([score.value for score in seeds])


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and not math.isnan(value)]


def _mean(values: Sequence[float]) -> str:
    return format_number(sum(values) / len(values) if values else None)


def _lowest_to_highest(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}" if len(values) > 1 else ""


def _difference(comparison: Comparison, method: str) -> list[Cell | str]:
    difference = comparison.differences.get(method)
    if difference is None:
        return ["reference" if method == comparison.reference else "not comparable", "", "", ""]
    values = (format_p(comparison.adjusted[method]), format_number(difference.detectable, 3))
    return [
        Cell(f"{difference.mean:+.3f}", _interval(difference)),
        *values,
        format_number(comparison.relative[method], 1),
    ]


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
TOO_FEW_VALIDATED = f"none: fewer than {MIN_CASES} validation cases of this class, or of the others"


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
        [*tables, *_operating_tables(noun, run.classes, reported.points)],
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
        yield from _site_tables(scores, pooled)
        yield class_table(noun, pooled, sites.values(), BY_CLASS.format(noun=noun))
        if pooled.within:
            yield within_table(noun, pooled)
    elif sites:
        yield _reported_table(sites, minimum, has_curves)
    elif pooled:
        known = {SCORE_NAMES[name]: score for name, score in pooled.scores.items() if name in SCORE_NAMES}
        rows = [[name, format_number(score.value, 3)] for name, score in known.items()]
        yield PageTable(["score", "value"], rows, "All test images together, as the result gives them")


def _site_tables(scores: RunScores, pooled: ScoreSheet) -> Iterator[PageTable]:
    groups = {
        **scores.sites,
        **{f"community {name}": sheet for name, sheet in scores.communities.items()},
        "all images together": pooled,
    }
    others: dict[str, Mapping[str, Score | float]] = {
        **({"within sites": {AREA: pooled.best(WITHIN)}} if pooled.within else {}),
        **{f"{name}, all images": reference for name, reference in pooled.references.items()},
        "mean over sites": {name: score for name in TABLE_SCORES if (score := scores.best_mean(name))},
        **{f"{name}, mean over sites": scores.mean_references.get(name, {}) for name in pooled.models_beside},
    }
    table = groups_table("site", groups, others, OF_SITES)
    yield table._replace(apart=len(table.rows) - len(scores.sites))
    yield from confidence_tables("site", groups)


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


def _operating_tables(noun: str, names: Sequence[str], points: Mapping[str, Operation]) -> Iterator[PageTable]:
    if points:
        table = operating_table(noun, points, OF_POINTS.format(noun=noun))
        known, none = dict(zip(points, table.rows, strict=True)), [Cell(TOO_FEW_VALIDATED, missing=True)]
        blank = [""] * (len(table.header) - 2)
        yield table._replace(rows=[known.get(name, [name, *none, *blank]) for name in names])


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
        [one.site, one.protects, "infinite" if one.epsilon is None else format_number(one.epsilon), f"{one.delta:g}"]
        for one in spent
    ]
    if rows:
        header = ["site", "protects", "epsilon", "delta"]
        yield PageTable(header, rows, "Privacy ledgers: all releases together", text_columns=2)


PAGE, NUMBERS, WRITTEN = "report.html", "report.json", "files"
ESTIMATE = ("value", "low", "high", "cases")
# Text stays text: it can be searched and read aloud, and the file is smaller. Ids do not depend on chance.
SVG_OPTIONS = {"svg.fonttype": "none", "svg.hashsalt": "grandrounds", "font.family": "sans-serif"}


def write_report(report: Report, folder: Path, step: Callable[[str], None] = lambda _: None) -> Path:
    """Write a report, replacing an earlier one, when all of it is there: neither an error nor another command mixes two.

    ``step`` is called with what is done next.

    Raises:
        ConfigurationError: if two runs would have the same files.
    """
    _require_different_files(list(report.runs))
    with written_together(folder, lambda: _files_of(folder)) as new:
        figures = new / "figures"
        together = _all_written(comparison_drawings(report), figures, "of all runs", step)
        of_runs = {
            name: _all_written(run_drawings(report, reported), figures, f"of {name}", step)
            for name, reported in report.runs.items()
        }
        places = [
            external_section(place, _all_written(_of_place(place), figures, f"of {place.place}", step))
            for place in report.places
        ]
        step("writing the page")
        header = ["run", "group", "kind", "images", "score", *ESTIMATE]
        write_csv(new / "tables" / "sites.csv", header, _group_rows(report.runs))
        header = ["run", "group", "kind", "class", "score", *ESTIMATE]
        write_csv(new / "tables" / "classes.csv", header, _class_rows(report.runs))
        if report.comparison:
            differences = {method: report.comparison.row(method) for method in report.comparison.differences}
            header = ["method", "reference", *next(iter(differences.values()))]
            rows = [[method, report.comparison.reference, *row.values()] for method, row in differences.items()]
            write_csv(new / "tables" / "comparison.csv", header, rows)
        page = render_page(report, together, of_runs, places)
        write_bytes(new / PAGE, page.encode(), private=bool(report.examples))
        write_json(new / NUMBERS, {**report.to_json(), WRITTEN: file_names(new)})
    return folder / PAGE


def _files_of(folder: Path) -> list[str]:
    """The figures and tables that an earlier report has written, and says so in its numbers."""
    path = folder / NUMBERS
    try:
        named = read_json_object(path).get(WRITTEN, []) if path.is_file() else []
    except GrandRoundsError:  # what a person has changed names nothing
        return []
    places = {"figures": ".svg", "tables": ".csv"}
    paths = [PurePosixPath(name) for name in named if isinstance(name, str)] if isinstance(named, list) else []
    return [str(one) for one in paths if len(one.parts) == 2 and places.get(one.parts[0]) == one.suffix]


def render_page(
    report: Report,
    together: Sequence[PageFigure],
    of_runs: Mapping[str, Sequence[PageFigure]],
    places: Sequence[ExternalSection] = (),
) -> str:
    """The page as HTML, from ``templates/report.html``, with figures of all runs and of each; all text is escaped."""
    script = page_template("report.js").render()
    return page_template("report.html").render(
        title=report.title,
        overview=overview(report),
        comparison=comparison_section(report, together) if report.several else None,
        runs=[run_section(reported, of_runs.get(name, ()), report.several) for name, reported in report.runs.items()],
        places=places,
        min_cases=MIN_CASES,
        classes=len(report.classes),
        examples=report.examples,
        script=script,
        script_digest=base64.b64encode(sha256(script.encode()).digest()).decode(),
        version=__version__,
    )


def svg_of(drawing: Drawing) -> bytes:
    """A figure as SVG without a date: the same figure gives the same bytes."""
    import matplotlib

    stream = io.BytesIO()
    with matplotlib.rc_context(SVG_OPTIONS):
        drawing.figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def _of_place(place: ExternalResult) -> list[Drawing]:
    prefix = f"external-{file_name(place.place)}-"
    return [drawing._replace(name=f"{prefix}{drawing.name}") for drawing in drawings_of(place)]


def _all_written(
    drawings: Sequence[Drawing], folder: Path, whose: str, step: Callable[[str], None]
) -> list[PageFigure]:
    figures = []
    for drawing in drawings:
        step(f"drawing {drawing.name.replace('_', ' ')} {whose}")
        figures.append(_written(drawing, folder))
    return figures


def _written(drawing: Drawing, folder: Path) -> PageFigure:
    """Write a figure as ``NAME.svg``."""
    svg = svg_of(drawing)
    write_bytes(folder / f"{drawing.name}.svg", svg)
    width = round(drawing.figure.get_size_inches()[0] * 96)
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    return PageFigure(source, width, drawing.alt, drawing.caption)


def _require_different_files(names: Sequence[str]) -> None:
    """Refuse names of runs whose files would overwrite each other."""
    seen: dict[str, str] = {}
    for name in names:
        earlier = seen.setdefault(file_name(name).casefold(), name)
        if earlier != name:
            raise ConfigurationError(f"the runs {earlier!r} and {name!r} would have the same files; rename one of them")


def _group_rows(runs: Mapping[str, ReportedRun]) -> Iterator[list[Any]]:
    for run, reported in runs.items():
        for kind, name, sheet in _all_sheets(reported.scores):
            images = "" if sheet.images is None else sheet.images
            for score, found in sheet.scores.items():
                yield [run, name, kind, images, score, *_cells(found)]
            for score, value in sheet.confidence.items():
                yield [run, name, kind, images, score, *_cells(Score(value, math.nan, math.nan, sheet.cases))]
        for score, found in reported.scores.mean.items():
            yield [run, "mean", "mean over sites", "", score, *_cells(found)]


def _class_rows(runs: Mapping[str, ReportedRun]) -> Iterator[list[Any]]:
    for run, reported in runs.items():
        for kind, name, sheet in _all_sheets(reported.scores):
            for class_name, scores in sheet.classes.items():
                for score, value in scores.items():
                    yield [run, name, kind, class_name, score, *_cells(value)]


def _all_sheets(scores: RunScores) -> Iterator[tuple[str, str, ScoreSheet]]:
    yield from (("site", name, sheet) for name, sheet in scores.sites.items())
    yield from (("community", name, sheet) for name, sheet in scores.communities.items())
    if scores.pooled:
        yield "pooled", "all", scores.pooled


def _cells(score: Score) -> list[Any]:
    content = score.to_json()
    return ["" if content[name] is None else content[name] for name in ESTIMATE]
