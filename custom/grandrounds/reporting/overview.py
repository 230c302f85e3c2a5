"""The first screen: task, training, sites, score, comparison, privacy, communication and the main caveats."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from grandrounds.evaluation.comparisons import MIN_SEEDS, Difference
from grandrounds.evaluation.record import ALWAYS
from grandrounds.evaluation.score import Score
from grandrounds.reporting.comparison import Comparison
from grandrounds.reporting.format import (
    SCORE_NAMES,
    Cell,
    Table,
    estimate_cell,
    format_bytes,
    format_estimate,
    format_list,
    format_number,
    format_p,
    pluralize,
)
from grandrounds.reporting.model import Report, over_seeds, seeds_score
from grandrounds.reporting.run import MODELS, Run
from grandrounds.reporting.scores import ALWAYS_AT_SITES, RunScores

MAX_CAVEATS = 5
MAX_OF_RUNS = 3
"""Caveats of single runs on the first screen of several."""
NO_PRIVACY = "There is no privacy ledger: nothing bounds what the sent updates reveal about a patient."


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
    methods: Table | None


def overview(report: Report) -> Overview:
    """The first screen of a report."""
    facts = [
        Fact("Trained", *_trained(report)),
        Fact("Sites", *_sites(report)),
        Fact("Score", *_score(report)),
        Fact("Compared to", *_against(report)),
        Fact("Privacy", *_privacy(report)),
        Fact("Communication", *_communication(report)),
    ]
    return Overview(
        _lead(report.runs), facts, _main_caveats(report), _methods_table(report) if report.several else None
    )


def _lead(runs: Sequence[Run]) -> str:
    classes = runs[0].classes
    sizes = _different(runs, "image_size")
    pixels = f"{' or '.join(f'{size} by {size}' for size in sizes)} pixels, " if sizes else ""
    task = runs[0].task
    return (
        f"{task.activity.capitalize()} {pluralize(len(classes), task.noun)} "
        f"({', '.join(classes)}); {pixels}data set “{' or '.join(_different(runs, 'dataset')) or 'unknown'}”, "
        f"network {' or '.join(_different(runs, 'backbone')) or 'unknown'}."
    )


def _different(runs: Sequence[Run], name: str) -> list[str]:
    """What the runs have for an entry of their problem."""
    return list(dict.fromkeys(str(run.log.problem[name]) for run in runs if name in run.log.problem))


def _trained(report: Report) -> tuple[str, list[str]]:
    run = report.runs[0]
    if report.several:
        unfinished = sum(not other.log.complete for other in report.runs)
        lines = [f"{pluralize(len(report.methods), 'method')}: {', '.join(report.methods)}"]
        return pluralize(len(report.runs), "run"), [*lines, *([f"{unfinished} not finished"] if unfinished else [])]
    chosen = run.log.selected
    lines = [f"{run.log.rounds_done} of {run.log.rounds} rounds, {run.log.status}"]
    if chosen.get("metric"):
        metric = SCORE_NAMES.get(chosen["metric"], chosen["metric"])
        lines.append(f"model after round {chosen['round']}, chosen by validation {metric}")
    return run.log.method, lines


def _sites(report: Report) -> tuple[str, list[str]]:
    run = report.runs[0]
    scores = report.scores[run.name]
    lines = []
    if run.origin.communities:
        lines.append(f"in {pluralize(len(set(run.origin.communities.values())), 'community')}")
    if scores.pooled and not scores.sites:
        lines.append(f"tested on {scores.pooled.images} images together")
    elif scores.pooled:
        cases = f", {scores.pooled.cases} cases by {run.tests.unit}" if run.tests.unit != "image" else ""
        counted = "too few images to count" if scores.pooled.masked else f"{scores.pooled.images} images{cases}"
        lines.append(f"tested on {counted} at {pluralize(len(scores.sites), 'site')}")
    else:
        lines.append("not tested")
    dropped = sum(bool(other.log.dropped()) for other in report.runs)
    if dropped:
        lines.append(
            "a site dropped out" if not report.several else f"sites dropped out in {pluralize(dropped, 'run')}"
        )
    return pluralize(len(report.sites), "site"), lines


def _score(report: Report) -> tuple[str, list[str]]:
    found = {method: over_seeds(report, method) for method in report.methods}
    known = {method: estimate for method, estimate in found.items() if estimate and estimate.known}
    if not known:
        return "not known", _last_validation(report)
    best = max(known, key=lambda method: known[method].value)
    seeds = len(report.methods[best])
    scores = report.scores[report.methods[best][0].name]
    lines = [f"{SCORE_NAMES[report.metric]}, {_whole(report)}{f', mean of {seeds} seeds' if seeds > 1 else ''}"]
    lines += _references(report, best)
    if len(known) > 1:
        lines.append(f"highest of {len(known)} methods: {best}")
    if not report.several:
        lines += _second_view(report, scores)
        lines.append(f"model: {MODELS[report.runs[0].tests.model]}")
    return format_estimate(known[best]), lines


def _whole(report: Report) -> str:
    pooled = any(scores.pooled and scores.pooled.best(report.metric).known for scores in report.scores.values())
    return "all test images together" if pooled else "mean over sites"


def _references(report: Report, method: str) -> list[str]:
    """The same score of guessing, and accuracy beside that of the most frequent class."""
    lines = [f"{report.chance:.2f} by guessing"]
    pooled = [report.scores[run.name].pooled for run in report.methods[method]]
    if pooled[0] and (majority := pooled[0].majority):
        always = pooled[0].references[f"{ALWAYS}{majority}"]["accuracy"]
        accuracy = format_estimate(seeds_score([group.score("accuracy") for group in pooled if group]))
        lines.append(f"accuracy {accuracy}, {always:.2f} by always predicting {majority}")
    return lines


def _second_view(report: Report, scores: RunScores) -> list[str]:
    """The mean over sites beside the score of all images."""
    mean = scores.best_mean(report.metric)
    if mean is None or not scores.pooled:
        return []
    always = scores.mean_references.get(ALWAYS_AT_SITES, {}).get(report.metric)
    beside = "" if always is None else f", {always:.2f} by always predicting each site's most frequent class"
    return [f"mean over sites {format_estimate(mean)}{beside}"]


def _last_validation(report: Report) -> list[str]:
    run = report.runs[0]
    scored = [event for event in run.log.events if event["event"] == "score"]
    if not scored:
        return ["no model was scored"]
    last = scored[-1]
    metric = SCORE_NAMES.get(last["metric"], last["metric"])
    return [f"validation {metric} {last['mean']:.2f} after round {last['round']}; no test"]


def _against(report: Report) -> tuple[str, list[str]]:
    comparison = report.comparison
    if comparison is None:
        return f"{report.chance:.2f} by guessing", ["no other run was given, so the benefit of federation is not known"]
    best = max(comparison.differences, key=lambda method: comparison.differences[method].mean)
    difference = comparison.differences[best]
    lines = [f"{best} less {comparison.reference}, {_units(difference)}"]
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


def _units(difference: Difference) -> str:
    """What the difference is over."""
    if difference.unit == "seed":
        return f"paired by {pluralize(difference.n, 'seed')}"
    return f"of fixed models, not of seeds, on {pluralize(difference.n, 'case')}"


def _interval(difference: Difference) -> str:
    if math.isnan(difference.low):
        return ""
    return f"[{format_number(difference.low, 3)}, {format_number(difference.high, 3)}]"


def _privacy(report: Report) -> tuple[str, list[str]]:
    spent = [entry for run in report.runs for entry in run.origin.spent]
    if not spent:
        if all(not run.log.traffic.up for run in report.runs):
            return "nothing left a site", ["except the model's scores"]
        return "no guarantee", [NO_PRIVACY]
    finite = [entry for entry in spent if entry.epsilon is not None]
    if len(finite) < len(spent):
        return "unbounded", ["A release without noise is in a ledger: its epsilon is infinite."]
    worst = max(finite, key=lambda entry: entry.epsilon or 0)
    lines = [
        f"delta {worst.delta:g}, per {worst.unit}, at {worst.site}: the largest of {pluralize(len(finite), 'ledger')}"
    ]
    unbounded = [run.name for run in report.runs if not run.origin.spent and run.log.traffic.up]
    if unbounded:
        lines.append(f"no guarantee in {', '.join(unbounded)}")
    return f"epsilon {worst.epsilon:.2f}", lines


def _communication(report: Report) -> tuple[str, list[str]]:
    totals = [run.log.traffic for run in report.runs]
    sums = [sum(entry) for entry in totals]
    if not any(sums):
        return "none", ["no model was sent"]
    if report.several:
        highest = format_bytes(max(sums))
        lowest = format_bytes(min(size for size in sums if size))
        silent = [run.name for run, size in zip(report.runs, sums, strict=True) if not size]
        lines = ["of tensors in a run, all sites and rounds", *([f"none in {', '.join(silent)}"] if silent else [])]
        return highest if lowest == highest else f"{lowest} to {highest}", lines
    entry, run = totals[0], report.runs[0]
    lines = [f"{format_bytes(entry.down_global + entry.down_extra)} to the sites, {format_bytes(entry.up)} from them"]
    each = sum(run.log.contributions.values())
    if each:
        lines.append(f"{format_bytes(sums[0] / each)} for each site and round")
    return format_bytes(sums[0]), lines


def _main_caveats(report: Report) -> list[str]:
    """The most serious caveats: of one run, or of the runs and of their comparison."""
    if not report.several:
        run = report.runs[0]
        seed = f"This is one run with one seed ({run.log.seed}): another seed gives other numbers, which are not known here."
        return [*report.caveats[run.name], seed][:MAX_CAVEATS]
    # Caveats that differ in the numbers in their parentheses alone are one.
    by_caveat: dict[str, dict[str, str]] = {}
    for run in report.runs:
        for caveat in report.caveats[run.name][:1]:
            by_caveat.setdefault(re.sub(r" \([^)]*\)", "", caveat), {})[run.name] = caveat
    of_runs = []
    for text, caveats in by_caveat.items():
        same = text if len(set(caveats.values())) > 1 else next(iter(caveats.values()))
        of_runs.append(same if len(caveats) == len(report.runs) else f"{format_list(list(caveats))}: {same}")
    found = [*of_runs[:MAX_OF_RUNS], *report.shared_caveats, *of_runs[MAX_OF_RUNS:]]
    return found[:MAX_CAVEATS]


def _methods_table(report: Report) -> Table:
    comparison = report.comparison
    repeated = any(len(runs) > 1 for runs in report.methods.values())
    rows: list[list[Cell | str]] = []
    for method, runs in report.methods.items():
        pooled = [report.scores[run.name].pooled for run in runs]
        accuracies = [found.best(report.second_metric) if found else None for found in pooled]
        rows.append(
            [
                method,
                str(len(runs)),
                estimate_cell(over_seeds(report, method)),
                *([_range([report.scores[run.name].headline(report.metric) for run in runs])] if repeated else []),
                estimate_cell(seeds_score(accuracies)),
                *_difference(comparison, method),
                format_bytes(fmean(sum(run.log.traffic) for run in runs)),
                ", ".join(sorted({run.log.status for run in runs})),
            ]
        )
    rows += _reference_rows(report, len(rows[0]), repeated)
    header = ["method", "runs", SCORE_NAMES[report.metric], *(["lowest to highest"] if repeated else [])]
    header.append(SCORE_NAMES[report.second_metric])
    if comparison:
        header += [f"less {comparison.reference}", "adjusted p", "detectable", "relative, %"]
    paired = (
        f" Differences are paired by seed; of fewer than {MIN_SEEDS} seeds they are of two fixed models on the same test "
        "cases, which says nothing about other seeds. Adjusted p: corrected for the number of methods (Holm). Detectable: "
        "the smallest difference that would have been found with a probability of 80 %."
        if comparison
        else ""
    )
    caption = (
        f"Methods on test images, {_whole(report)}. Of {MIN_SEEDS} seeds or more: their mean with Student's 95 % interval "
        f"over seeds; of one seed: with the 95 % interval of these sites' cases.{paired}"
    )
    return Table([*header, "communication", "status"], rows, caption)


def _reference_rows(report: Report, columns: int, repeated: bool) -> list[list[Cell | str]]:
    """Always predicting the most frequent class, and guessing; of the first run with test predictions."""
    groups = [group for run in report.runs if (group := report.scores[run.name].pooled)]
    rows: list[list[Cell | str]] = []
    for name, scores in groups[0].references.items() if groups else ():
        values = [format_number(scores.get(report.metric)), *([""] if repeated else [])]
        row: list[Cell | str] = [name, "", *values, format_number(scores.get(report.second_metric))]
        rows.append([*row, *[""] * (columns - len(row))])
    return rows


def _range(estimates: Sequence[Score | None]) -> str:
    values = [estimate.value for estimate in estimates if estimate and estimate.known]
    return f"{min(values):.2f} to {max(values):.2f}" if len(values) > 1 else ""


def _difference(comparison: Comparison | None, method: str) -> list[Cell | str]:
    if comparison is None:
        return []
    found = comparison.differences.get(method)
    if found is None:
        return ["reference" if method == comparison.reference else "not comparable", "", "", ""]
    values = (format_p(comparison.adjusted[method]), format_number(found.detectable, 3))
    return [
        Cell(f"{found.mean:+.3f}", _interval(found)),
        *values,
        format_number(comparison.relative[method], 1),
    ]
