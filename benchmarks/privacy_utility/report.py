"""The table of what a privacy budget costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.report import Part
from benchmarks.results import Results, Seeds
from benchmarks.tables import markdown_table, mean_and_spread
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import Problem

SCORES = {"auc_macro": "AUC", "balanced_accuracy": "balanced accuracy", "accuracy": "accuracy"}
LOST = "AUC lost, by seed"
HEADER = [
    *("method", "sites", "who is hidden", "epsilon", "noise multiplier", "noise over update"),
    *("seeds", *SCORES.values(), LOST),
]


def parts(results: Results) -> Iterator[Part]:
    """A row for each method and protection, methods together, without protection first."""
    protections = results.configuration["protections"]
    rows = []
    for method, title in results.titles.items():
        unprotected = (found[f"{method}_none"] for found in results.settings.values() if f"{method}_none" in found)
        plain = next(unprotected, Seeds())
        for found in results.settings.values():
            for name, runs in found.items():
                base, _, protection = name.partition("_")
                if base == method:
                    sites = next(iter(runs.values()))["sites"]
                    rows.append([title, sites, protections[protection]["title"], *_row(protection, runs, plain)])
    yield markdown_table(HEADER, rows)
    yield from learning_curves(results)


def learning_curves(results: Results) -> Iterator[Part]:
    """Validation scores by round, of the runs that have them."""
    for found in results.settings.values():
        for name, runs in found.items():
            for seed, run in runs.items():
                curves = run.get("validation", {})
                if any(curves.values()):
                    yield f"{results.titles[name.partition('_')[0]]}, seed {seed}: validation scores, mean over sites:"
                    header = ["after round", *(SCORES[score] for score in curves)]
                    rounds = next(iter(curves.values()))
                    yield markdown_table(header, [[number, *(c[number] for c in curves.values())] for number in rounds])


def _row(protection: str, runs: Seeds, plain: Seeds) -> list[object]:
    contents = list(runs.values())
    scores = [mean_and_spread([run["scores"][score] for run in contents]) for score in SCORES]
    if protection == "none":
        return ["infinite", None, None, len(runs), *scores, None]
    lost = [
        plain[seed]["scores"]["auc_macro"] - run["scores"]["auc_macro"] for seed, run in runs.items() if seed in plain
    ]
    spent = max(run["budget"]["epsilon"] for run in contents)
    multiplier = max(run["noise_multiplier"] for run in contents)
    problem = Problem.from_dict(contents[0]["options"]["controller"]["problem"])
    ratio = f"{noise_over_update(multiplier, contents[0]['sites'], problem):.0f}" if protection == "site" else None
    return [f"{spent:.2f}", f"{multiplier:.2f}", ratio, len(runs), *scores, mean_and_spread(lost) if lost else None]


def noise_over_update(multiplier: float, sites: int, problem: Problem) -> float:
    """Length of the noise in the mean of all sites' updates, over the maximum length of the mean update.

    With the bound C on each update, the noise of one site has the standard deviation 2 C z in each entry of the model.
    """
    spec = replace(problem, weights=problem.weights if problem.has_frozen else None, intensities="scaled").model_spec(
        True
    )
    entries = sum(value.numel() for value in build_model(spec, 0).parameters())
    return 2 * multiplier * math.sqrt(entries / sites)
