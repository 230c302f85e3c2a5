"""The first screen: task, training, sites, score, comparison, privacy, communication and the main caveats."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from grandrounds.evaluation.comparisons import MIN_SEEDS, Difference
from grandrounds.evaluation.score import Score, ScoreSheet
from grandrounds.protocol.task import Task
from grandrounds.reporting.comparison import Comparison
from grandrounds.reporting.format import SCORE_NAMES, format_bytes, format_list, format_number, format_p, pluralize
from grandrounds.reporting.model import Report, ReportedRun, seeds_score
from grandrounds.reporting.parts import Cell, PageTable, estimate_cell, format_estimate
from grandrounds.reporting.run import MODELS, ReadRun, RunLog, Spent
from grandrounds.reporting.scores import ALWAYS_AT_SITES, RunScores
from grandrounds.reporting.tables import class_titles

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
    """The area under the ROC curve, where it is known and not the headline."""
    known = [area for sheet in seeds if (area := sheet.best(AREA)).known]
    return [f"{SCORE_NAMES[AREA]} {format_estimate(seeds_score(known))}"] if known and headline != AREA else []


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
        f"delta {worst.delta:g}, per {worst.unit}, at {worst.site}: the largest of {pluralize(len(finite), 'ledger')}"
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
