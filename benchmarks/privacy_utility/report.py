"""The table of what a privacy budget costs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from benchmarks.report import Part
from benchmarks.results import Results, Seeds
from benchmarks.tables import markdown_table, mean_and_spread
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec

SCORES = {"auc_macro": "AUC", "balanced_accuracy": "balanced accuracy", "accuracy": "accuracy"}
HEADER = ["method", "who is hidden", "epsilon", "noise multiplier", "noise over update", "seeds", *SCORES.values()]


def parts(results: Results) -> Iterator[Part]:
    """A row for each method and protection, methods together, without protection first."""
    protections = results.configuration["protections"]
    rows = []
    for method, title in results.titles.items():
        for found in results.settings.values():
            for name, runs in found.items():
                base, _, protection = name.partition("_")
                if base == method:
                    rows.append([title, protections[protection]["title"], *_row(protection, runs)])
    yield markdown_table(HEADER, rows)


def _row(protection: str, runs: Seeds) -> list[object]:
    contents = list(runs.values())
    scores = [mean_and_spread([run["scores"][score] for run in contents]) for score in SCORES]
    if protection == "none":
        return ["infinite", None, None, len(runs), *scores]
    spent = max(run["budget"]["epsilon"] for run in contents)
    multiplier = max(run["noise_multiplier"] for run in contents)
    ratio = f"{noise_over_update(multiplier, contents[0]['sites']):.0f}" if protection == "site" else None
    return [f"{spent:.2f}", f"{multiplier:.2f}", ratio, len(runs), *scores]


def noise_over_update(multiplier: float, sites: int) -> float:
    """Length of the noise in the mean of all sites' updates, over the maximum length of the mean update.

    With the bound C on each update, the noise of one site has the standard deviation 2 C z in each entry of the model.
    """
    entries = sum(value.numel() for value in build_model(ModelSpec("compact", 7, norm="group"), 0).parameters())
    return 2 * multiplier * math.sqrt(entries / sites)
