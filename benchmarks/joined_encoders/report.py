"""The table of joined encoders beside the default, and their mean differences."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.report import Part
from benchmarks.results import EXPLAINED, Content, Results, difference_table, pair_by_seed
from benchmarks.tables import markdown_table, mean_and_spread

SCORES = {"balanced_accuracy": "balanced accuracy", "auc_macro": "AUC", "auc_within": "AUC within devices"}
DEFAULT = "ridge"


def parts(results: Results) -> Iterator[Part]:
    """For each setting its rows and the mean of each method, and differences from the default."""
    yield EXPLAINED
    for setting, methods in results.settings.items():
        if not methods:
            continue
        yield f"### {results.configuration['settings'][setting]['title']}"
        rows, differences = [], []
        for method, runs in methods.items():
            title = results.titles[method]
            for seed, run in sorted(runs.items()):
                rows.append(
                    [title, seed, *(f"{_score(run, name):.3f}" for name in SCORES), f"{run['cpu_seconds']:.0f}"]
                )
            means = [mean_and_spread([_score(run, name) for run in runs.values()]) for name in SCORES]
            rows.append([title, "mean", *means, mean_and_spread([run["cpu_seconds"] for run in runs.values()], 0)])
            if method != DEFAULT:
                pairs = [pair_by_seed(runs, methods[DEFAULT], partial(_score, name=name)) for name in SCORES]
                differences.append([f"{title} - {results.titles[DEFAULT]}", len(pairs[0].ours), *pairs])
        yield markdown_table(["method", "division seed", *SCORES.values(), "CPU seconds"], rows)
        if differences:
            yield difference_table(["difference", "seeds", *SCORES.values()], differences)


def _score(run: Content, name: str) -> float:
    return float(run["scores"][name])
