"""The first screen: what was trained, on whom, how well against what, at what cost, and what to distrust."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from grandrounds.evaluation.estimates import Estimate
from grandrounds.evaluation.tests import MIN_PAIRS
from grandrounds.reporting.comparison import MIN_SEEDS, Comparison
from grandrounds.reporting.format import (
    SCORE_NAMES,
    bytes_words,
    counted,
    estimate_cell,
    estimate_words,
    number_words,
    p_words,
)
from grandrounds.reporting.html import Child, Html, table, tag
from grandrounds.reporting.model import Report, moved, over_seeds
from grandrounds.reporting.run import MODELS, Run

MAX_CAVEATS = 4
NO_PRIVACY = "No privacy ledger lies with the run: nothing bounds what the sent updates tell about a patient."


def overview(report: Report) -> Html:
    """The first screen of a report."""
    first = report.runs[0]
    return tag(
        "section",
        tag("h1", report.title),
        tag("p", _question(first), class_="lead"),
        _facts(report),
        distrust_box(_gravest(report), "What to distrust"),
        _methods_table(report) if report.several else None,
        id="overview",
    )


def distrust_box(doubts: Sequence[str], title: str, level: str = "h2") -> Html | None:
    """A list of doubts; nothing if there is none."""
    if not doubts:
        return None
    return tag("div", tag(level, title), tag("ul", [tag("li", doubt) for doubt in doubts]), class_="distrust")


def _question(run: Run) -> str:
    problem = run.problem
    pixels = f"{problem['image_size']} by {problem['image_size']} pixels, " if "image_size" in problem else ""
    return (
        f"Classification of images into {counted(len(run.classes), 'class').replace('classs', 'classes')} "
        f"({', '.join(run.classes)}); {pixels}data set “{problem.get('dataset', 'unknown')}”, "
        f"network {problem.get('backbone', 'unknown')}."
    )


def _facts(report: Report) -> Html:
    facts: list[tuple[str, str, Sequence[str]]] = [
        ("Trained", *_trained(report)),
        ("On whom", *_on_whom(report)),
        ("How well", *_how_well(report)),
        ("Against what", *_against(report)),
        ("Privacy", *_privacy(report)),
        ("Communication", *_communication(report)),
    ]
    return tag("dl", [_fact(name, big, small) for name, big, small in facts], class_="facts")


def _fact(name: str, big: str, small: Sequence[str]) -> Html:
    lines: list[Child] = [tag("span", big, class_="big"), *(tag("span", line, tag("br")) for line in small)]
    return tag("div", tag("dt", name), tag("dd", lines))


def _trained(report: Report) -> tuple[str, list[str]]:
    run = report.runs[0]
    if report.several:
        unfinished = sum(not other.complete for other in report.runs)
        lines = [f"{counted(len(report.methods), 'method')}: {', '.join(report.methods)}"]
        return counted(len(report.runs), "run"), [*lines, *([f"{unfinished} not finished"] if unfinished else [])]
    chosen = run.selected
    lines = [f"{run.rounds_done} of {run.rounds} rounds, {run.status}"]
    if chosen.get("metric"):
        metric = SCORE_NAMES.get(chosen["metric"], chosen["metric"])
        lines.append(f"model after round {chosen['round']}, chosen by validation {metric}")
    return run.method, lines


def _on_whom(report: Report) -> tuple[str, list[str]]:
    run = report.runs[0]
    scores = report.scores[run.name]
    lines = []
    if run.communities:
        lines.append(
            f"in {counted(len(set(run.communities.values())), 'community').replace('communitys', 'communities')}"
        )
    if scores.told:
        lines.append(f"tested on {scores.told[report.metric].cases} images together")
    elif scores.pooled:
        cases = f", {scores.pooled.cases} cases by {run.unit}" if run.unit != "image" else ""
        lines.append(f"tested on {scores.pooled.images} images{cases} at {counted(len(scores.sites), 'site')}")
    elif scores.sent:
        lines.append(f"tested at {counted(len(scores.sent), 'site')}, where the predictions stayed")
    else:
        lines.append("not tested")
    dropped = sum(bool(other.dropped()) for other in report.runs)
    if dropped:
        lines.append("a site dropped out" if not report.several else f"sites dropped out in {counted(dropped, 'run')}")
    return counted(len(report.sites), "site"), lines


def _how_well(report: Report) -> tuple[str, list[str]]:
    found = {method: over_seeds(report, method) for method in report.methods}
    known = {method: estimate for method, estimate in found.items() if estimate and estimate.enough}
    if not known:
        return "not known", _last_validation(report)
    best = max(known, key=lambda method: known[method].value)
    seeds = len(report.methods[best])
    scores = report.scores[report.methods[best][0].name]
    whole = "mean over sites" if scores.mean else "all test images together"
    lines = [f"{SCORE_NAMES[report.metric]}, {whole}{f', mean of {seeds} seeds' if seeds > 1 else ''}"]
    if len(known) > 1:
        lines.append(f"highest of {len(known)} methods: {best}")
    if not report.several:
        weighted = scores.mean.get("f1_weighted") or scores.told.get("f1_weighted")
        lines += [f"weighted F1 {estimate_words(weighted)}"] if weighted else []
        lines.append(f"model: {MODELS[report.runs[0].model]}")
    return estimate_words(known[best]), lines


def _last_validation(report: Report) -> list[str]:
    run = report.runs[0]
    scored = [event for event in run.events if event["event"] == "score"]
    if not scored:
        return ["no model was scored"]
    last = scored[-1]
    metric = SCORE_NAMES.get(last["metric"], last["metric"])
    return [f"validation {metric} {last['mean']:.2f} after round {last['round']}; no test"]


def _against(report: Report) -> tuple[str, list[str]]:
    comparison = report.comparison
    if comparison is None:
        return f"{report.chance:.2f} by guessing", ["no other run was given: nothing says that federation helped"]
    best = max(comparison.differences, key=lambda method: comparison.differences[method].paired.mean)
    difference = comparison.differences[best]
    paired = difference.paired
    return (
        f"{paired.mean:+.3f}",
        [
            f"{best} less {comparison.reference}, {counted(len(comparison.blocks), comparison.kind)}",
            f"no interval: fewer than {MIN_PAIRS} {comparison.kind}s"
            if math.isnan(paired.low)
            else f"95 % interval [{number_words(paired.low, 3)}, {number_words(paired.high, 3)}], adjusted p "
            f"{p_words(difference.adjusted_p)}",
        ],
    )


def _privacy(report: Report) -> tuple[str, list[str]]:
    spent = [entry for run in report.runs for entry in run.spent]
    if not spent:
        if all(not moved(run).up for run in report.runs):
            return "nothing left a site", ["but numbers about the model's quality"]
        return "no guarantee", [NO_PRIVACY]
    finite = [entry for entry in spent if entry.epsilon is not None]
    if len(finite) < len(spent):
        return "unbounded", ["A release without noise is in a ledger: its epsilon is infinite."]
    worst = max(finite, key=lambda entry: entry.epsilon or 0)
    lines = [f"delta {worst.delta:g}, per {worst.unit}, at {worst.site}: the most of {counted(len(finite), 'ledger')}"]
    unbounded = [run.name for run in report.runs if not run.spent and moved(run).up]
    if unbounded:
        lines.append(f"no guarantee in {', '.join(unbounded)}")
    return f"epsilon {worst.epsilon:.2f}", lines


def _communication(report: Report) -> tuple[str, list[str]]:
    totals = [moved(run) for run in report.runs]
    sums = [sum(entry) for entry in totals]
    if not any(sums):
        return "none", ["no model travelled"]
    if report.several:
        most = bytes_words(max(sums))
        least = bytes_words(min(size for size in sums if size))
        silent = [run.name for run, size in zip(report.runs, sums, strict=True) if not size]
        lines = ["of tensors in a run, all sites and rounds", *([f"none in {', '.join(silent)}"] if silent else [])]
        return most if least == most else f"{least} to {most}", lines
    entry, run = totals[0], report.runs[0]
    lines = [f"{bytes_words(entry.down_global + entry.down_extra)} to the sites, {bytes_words(entry.up)} from them"]
    each = sum(run.contributions.values())
    if each:
        lines.append(f"{bytes_words(sums[0] / each)} for each site and round")
    return bytes_words(sums[0]), lines


def _gravest(report: Report) -> list[str]:
    """All doubts about the comparison, and about runs those that are not of each of them."""
    if not report.several:
        return [*report.doubts[report.runs[0].name], *_one_seed(report)]
    found = list(report.shared_doubts)
    by_doubt: dict[str, list[str]] = {}
    for run in report.runs:
        for doubt in report.doubts[run.name]:
            by_doubt.setdefault(doubt, []).append(run.name)
    everywhere = [doubt for doubt, names in by_doubt.items() if len(names) == len(report.runs)]
    some = [(doubt, names) for doubt, names in by_doubt.items() if doubt not in everywhere]
    found += everywhere
    found += [f"{', '.join(names)}: {doubt}" for doubt, names in some[:MAX_CAVEATS]]
    if len(some) > MAX_CAVEATS:
        found.append(f"{len(some) - MAX_CAVEATS} more doubts about single runs stand with those runs.")
    return found


def _one_seed(report: Report) -> list[str]:
    seed = report.runs[0].seed
    return [f"This is one run with one seed ({seed}): another seed gives other numbers, by how much is not known here."]


def _methods_table(report: Report) -> Html:
    comparison = report.comparison
    repeated = any(len(runs) > 1 for runs in report.methods.values())
    rows: list[list[Child]] = []
    for method, runs in report.methods.items():
        rows.append(
            [
                method,
                str(len(runs)),
                estimate_cell(over_seeds(report, method)),
                *([_range([report.scores[run.name].headline(report.metric) for run in runs])] if repeated else []),
                *_difference(comparison, method),
                bytes_words(fmean(sum(moved(run)) for run in runs)),
                _statuses(runs),
            ]
        )
    header = ["method", "runs", SCORE_NAMES[report.metric], *(["lowest to highest"] if repeated else [])]
    if comparison:
        header += [f"less {comparison.reference}", "adjusted p", "relative, %"]
    whole = "mean over sites" if any(scores.mean for scores in report.scores.values()) else "all images together"
    paired = f" Differences are paired by {comparison.kind}, with Student's 95 % interval." if comparison else ""
    caption = (
        f"Methods on test images, {whole}. Of {MIN_SEEDS} seeds or more: their mean with Student's 95 % interval over "
        f"seeds; of one seed: with the 95 % bootstrap interval of these sites' cases.{paired}"
    )
    return table([*header, "communication", "status"], rows, caption)


def _range(estimates: Sequence[Estimate | None]) -> str:
    values = [estimate.value for estimate in estimates if estimate and estimate.enough]
    return f"{min(values):.2f} to {max(values):.2f}" if len(values) > 1 else ""


def _difference(comparison: Comparison | None, method: str) -> list[Child]:
    if comparison is None:
        return []
    found = comparison.differences.get(method)
    if found is None:
        return ["reference" if method == comparison.reference else "not comparable", "", ""]
    paired = found.paired
    interval = "" if math.isnan(paired.low) else f" [{number_words(paired.low, 3)}, {number_words(paired.high, 3)}]"
    value = Html(tag("span", f"{paired.mean:+.3f}") + tag("span", interval, class_="ci"))
    return [value, p_words(found.adjusted_p), number_words(found.relative, 1)]


def _statuses(runs: Sequence[Run]) -> str:
    return ", ".join(sorted({run.status for run in runs}))
