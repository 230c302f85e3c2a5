"""Tables of FedPerl's proof of concept on CIFAR-10 and Fashion-MNIST, beside the paper's figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.report import Part
from benchmarks.results import EXPLAINED, Methods, Results, Seeds, difference_table, pair_by_seed
from benchmarks.tables import markdown_table, mean_and_spread

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
    yield f"FedPerl with an anonymised peer less each other method (percentage points, best round). {EXPLAINED}"
    rows = []
    for method in (method for method in methods if method != REFERENCE):
        runs = [[found.get(name, Seeds()) for name in (REFERENCE, method)] for found in chosen.values()]
        rows.append([f"to {methods[method]['title']}", *(pair_by_seed(*pair, _accuracy) for pair in runs)])
    yield difference_table(["difference", *chosen], rows, digits=2)


def _accuracies(methods: Mapping[str, Any], chosen: Mapping[str, Methods], results: Results) -> str:
    settings = results.configuration["settings"].values()
    names = {content["title"]: content["distribution"] for content in settings}
    header = [
        column for title in chosen for column in (f"{title}: seeds", "ours, best round", "ours, last round", "paper")
    ]
    rows = []
    for method, entry in methods.items():
        row: list[object] = [entry["title"]]
        for title, found in chosen.items():
            runs = found.get(method, Seeds()).values()
            row += [len(runs), *(mean_and_spread([_accuracy(run, m) for run in runs], 2) for m in ("selected", "last"))]
            paper = entry["paper"].get(names[title])
            row.append(f"{paper} §" if paper and entry.get("quoted") else paper)
        rows.append(row)
    # Both data sets have ten classes of equal size.
    rows.append(["guessing, or one class for all", *([None, "10.00", "10.00", None] * len(chosen))])
    return markdown_table(["method", *header], rows)


def _accuracy(run: Mapping[str, Any], model: str = "selected") -> float:
    return 100 * float(run["accuracy"][model])
