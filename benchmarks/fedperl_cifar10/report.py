"""Tables of FedPerl's proof of concept on CIFAR-10 and Fashion-MNIST, beside the paper's figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.report import Part
from benchmarks.results import EXPLAINED, Methods, Pair, Results, Seeds, difference_table, shared_seeds
from benchmarks.tables import markdown_table

REFERENCE = "fedperl_pa"


def parts(results: Results) -> Iterator[Part]:
    """All tables of each size of which there are results."""
    for size, title in results.configuration["sizes"].items():
        chosen = {
            content["title"]: results.settings[setting]
            for setting, content in results.configuration["settings"].items()
            if content["size"] == size
        }
        if any(chosen.values()):
            yield f"## Size {size}: {title}"
            yield from _tables(results, chosen)


def _tables(results: Results, chosen: Mapping[str, Methods]) -> Iterator[Part]:
    methods = results.configuration["methods"]
    yield _accuracies(methods, chosen, results)
    yield (f"FedPerl with an anonymised peer less each other method (percentage points, best round). {EXPLAINED}")
    rows = []
    for method in (method for method in methods if method != REFERENCE):
        cells = []
        for found in chosen.values():
            ours, theirs = found.get(REFERENCE, {}), found.get(method, {})
            seeds = shared_seeds(ours, theirs)
            cells.append(Pair(*([_accuracy(runs[seed]) for seed in seeds] for runs in (ours, theirs))))
        rows.append([f"to {methods[method]['title']}", *cells])
    yield difference_table(["difference", *chosen], rows, digits=2)
    yield "Course and cost of a run (means over seeds):"
    costs = [
        [entry["title"], title, *np.mean([_cost(run) for run in found[method].values()], axis=0)]
        for method, entry in methods.items()
        for title, found in chosen.items()
        if method in found
    ]
    header = ["method", "distribution", "accepted, last ten rounds", "of them right", "down, MB", "minutes"]
    yield markdown_table(header, costs, digits=2)
    runs = [run for found in chosen.values() for seeds in found.values() for run in seeds.values()]
    machines = sorted({f"{run['machine']['processor']}, {run['machine']['cores']} cores" for run in runs})
    yield f"Largest memory of a run: {max(r['peak_memory_mib'] for r in runs)} MiB. Machines: {'; '.join(machines)}."


def _accuracies(methods: Mapping[str, Any], chosen: Mapping[str, Methods], results: Results) -> str:
    settings = results.configuration["settings"].values()
    names = {content["title"]: content["distribution"] for content in settings}
    header = [column for title in chosen for column in (f"{title}: ours, best round", "ours, last round", "paper")]
    rows = []
    for method, entry in methods.items():
        row: list[object] = [entry["title"]]
        for title, found in chosen.items():
            row += [_mean_deviation(found.get(method, {}), model) for model in ("selected", "last")]
            paper = entry["paper"].get(names[title])
            row.append(f"{paper} †" if paper and entry.get("quoted") else paper)
        rows.append(row)
    return markdown_table(["method", *header], rows)


def _accuracy(run: Mapping[str, Any], model: str = "selected") -> float:
    return 100 * float(run["accuracy"][model])


def _mean_deviation(runs: Seeds, model: str) -> str | float:
    values = [_accuracy(run, model) for run in runs.values()]
    if not values:
        return math.nan
    deviation = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{deviation} (n={len(values)})"


def _cost(run: Mapping[str, Any]) -> tuple[float, ...]:
    down = sum(size for name, size in run["bytes"].items() if name.startswith("down."))
    # The mean over the last ten rounds in which there was something.
    courses = (run["accepted"], run["pseudo_label_accuracy"])
    ends = (course[max(course, key=int)] if course else math.nan for course in courses)
    return (*ends, down / 1e6, run["seconds"] / 60)
