"""The table of the default: each division, the mean of all, and the mean difference from ridge with its interval."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.first_steps.report import SCORES
from benchmarks.report import Part
from benchmarks.results import RE_DIVIDED, Results, pair_by_seed, untested_difference
from benchmarks.tables import markdown_table, mean_and_spread

RIDGE = "ridge"


def parts(results: Results) -> Iterator[Part]:
    """A table for each setting, with a row for each method and seed, and the mean of a method's seeds."""
    yield RE_DIVIDED
    for setting, found in results.settings.items():
        if not found:
            continue
        yield f"### {results.configuration['settings'][setting]['title']}"
        rows = []
        for method, runs in found.items():
            for seed, run in sorted(runs.items()):
                figures = [f"{run['scores'][score]:.3f}" for score in SCORES]
                spent = run["cpu_seconds"]
                rows.append([results.titles[method], seed, *figures, "" if spent is None else f"{spent:.0f}"])
            means = [mean_and_spread([run["scores"][score] for run in runs.values()]) for score in SCORES]
            each = [run["cpu_seconds"] for run in runs.values()]
            seconds = "" if None in each else mean_and_spread(each, 0)
            rows.append([results.titles[method], "mean", *means, seconds])
            if method != RIDGE:
                less = [
                    untested_difference(pair_by_seed(runs, found[RIDGE], lambda run, name=score: run["scores"][name]))
                    for score in SCORES
                ]
                rows.append([f"{results.titles[method]} - ridge at 112 pixels", "mean", *less, ""])
        yield markdown_table(["method", "division seed", *SCORES.values(), "CPU seconds"], rows)
