"""The tables of this benchmark's page."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from benchmarks.first_steps.report import SCORES
from benchmarks.report import Part
from benchmarks.results import RE_DIVIDED, Results, pair_by_seed, untested_difference
from benchmarks.tables import markdown_table, mean_and_spread
from grandrounds.federation.server.record import traffic

FIRST = "leave_one_out"
COLUMNS = ["MB to a site", "MB from a site", "CPU seconds", "largest difference from plain sums", "other decisions"]


def parts(results: Results) -> Iterator[Part]:
    """The means of each setting, and each division."""
    yield RE_DIVIDED
    yield from means(results)
    for setting, found in results.settings.items():
        yield f"### {results.configuration['settings'][setting]['title']}"
        rows = [
            [
                results.titles[method],
                seed,
                *_scores(run),
                f"{run['penalty']:g}",
                f"{run['temperature']:.1f}",
                *_costs([run]),
            ]
            for method, runs in found.items()
            for seed, run in sorted(runs.items())
        ]
        yield markdown_table(["sums", "division seed", *SCORES.values(), "penalty", "temperature", *COLUMNS], rows)


def means(results: Results) -> Iterator[str]:
    """Means over divisions for each way, with the difference of the scores from those of left-out sites."""
    rows = []
    for setting, found in results.settings.items():
        data = results.configuration["settings"][setting]["data"]
        for method, runs in found.items():
            scores = [mean_and_spread([run["scores"][name] for run in runs.values()]) for name in SCORES]
            pair = pair_by_seed(runs, found[FIRST], lambda run: run["scores"]["balanced_accuracy"])
            less = "" if method == FIRST else untested_difference(pair)
            rows.append([data, results.titles[method], len(runs), *scores, less, *_costs(list(runs.values()))])
    yield markdown_table(["data", "sums", "divisions", *SCORES.values(), "less the first row", *COLUMNS], rows)


def _scores(run: Any) -> list[str]:
    return [f"{run['scores'][name]:.3f}" for name in SCORES]


def _costs(runs: list[Any]) -> list[str]:
    """Megabytes and seconds on average, and the largest difference."""
    moved = [traffic(run["bytes"]).moved for run in runs]
    down, up = (
        fmean(one[way] / len(run["bytes"]) / 1e6 for one, run in zip(moved, runs, strict=True))
        for way in ("down", "up")
    )
    beside = [run["beside"] for run in runs if run["beside"]]
    difference = f"{max(one['difference'] for one in beside):.1e}" if beside else ""
    decisions = str(sum(one["other_decisions"] for one in beside)) if beside else ""
    seconds = "" if None in (spent := [run["row_cpu_seconds"] for run in runs]) else f"{fmean(spent):.0f}"
    return [f"{down:.2f}", f"{up:.2f}", seconds, difference, decisions]
