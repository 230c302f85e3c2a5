"""The table of the README's first steps."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.report import Part
from benchmarks.results import Results
from benchmarks.tables import markdown_table, mean_and_spread

SCORES = {"balanced_accuracy": "balanced accuracy", "auc_macro": "AUC", "f1_macro": "macro F1", "accuracy": "accuracy"}


def parts(results: Results) -> Iterator[Part]:
    """A row for each method."""
    for found in results.settings.values():
        rows = []
        for method, runs in found.items():
            scores = [mean_and_spread([run["scores"][score] for run in runs.values()]) for score in SCORES]
            rows.append([results.titles[method], len(runs), *scores])
        yield markdown_table(["method", "seeds", *SCORES.values()], rows)
