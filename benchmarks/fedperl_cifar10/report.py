"""Write this benchmark's report from its committed results: our figures beside the paper's.

    python benchmarks/fedperl_cifar10/report.py

writes ``report.md`` beside the configuration, for each size of which there are results. ``--benchmark`` names another
folder with a configuration and results.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.evaluation.tables import format_interval, markdown_table
from grandrounds.evaluation.tests import paired_difference

HERE = Path(__file__).parent
REFERENCE = "fedperl_pa"

Results = dict[tuple[str, str, int], dict[str, Any]]


def main() -> None:
    """Write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", type=Path, default=HERE, help="folder with the configuration and the results")
    folder = parser.parse_args().benchmark
    configuration = json.loads((folder / "configuration.json").read_text())
    parts = [f"# FedPerl's proof of concept on {configuration['title']}", _explanation(configuration)]
    for size, entry in configuration["sizes"].items():
        results = read_results(folder / "results" / size)
        if results:
            parts += [f"## Size {size}: {entry['title']}", *tables(configuration, results)]
    (folder / "report.md").write_text("\n\n".join(parts) + "\n")


def read_results(folder: Path) -> Results:
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return {(result["method"], result["distribution"], result["seed"]): result for result in found}


def tables(configuration: Any, results: Results) -> Iterator[str]:
    """All tables of one size."""
    yield _accuracies(configuration, results)
    yield (
        "Paired differences of FedPerl with an anonymised peer to each other method (percentage points, best round, one "
        "pair per seed, 95 % Student interval; fewer than three seeds give none):"
    )
    yield _differences(configuration, results)
    yield "Course and cost of a run (means over seeds):"
    yield _costs(configuration, results)
    yield _machine(results)


def _explanation(configuration: Any) -> str:
    points = "\n".join(f"* {point};" for point in configuration["differences"])
    return (
        "Accuracy in % over the test images, mean and standard deviation over seeds. *Paper* is Table 1 of Bdair et al., "
        "MELBA 2022, as printed: of how many runs, and whether of the best or the last round, is not said. Figures with † "
        "are quoted there from FedMatch's paper (Jeong et al., ICLR 2021), the others are its own runs with code that is "
        "not published. They stand here for orientation: neither network, schedule nor images need be the same, so a "
        "difference between our figures and theirs says nothing about either. What is known to differ:\n\n" + points
    )


def _values(results: Results, method: str, distribution: str, model: str) -> dict[int, float]:
    """Accuracy in % by seed."""
    return {
        seed: 100 * result["accuracy"][model]
        for (name, where, seed), result in results.items()
        if (name, where) == (method, distribution)
    }


def _mean_deviation(values: list[float]) -> str | float:
    if not values:
        return math.nan
    deviation = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{deviation} (n={len(values)})"


def _accuracies(configuration: Any, results: Results) -> str:
    header = ["method"]
    for title in configuration["distributions"].values():
        header += [f"{title}: ours, best round", "ours, last round", "paper"]
    rows = []
    for method, entry in configuration["methods"].items():
        row: list[object] = [entry["title"]]
        for distribution in configuration["distributions"]:
            for model in ("selected", "last"):
                row.append(_mean_deviation(list(_values(results, method, distribution, model).values())))
            paper = entry["paper"].get(distribution)
            row.append(f"{paper} †" if paper and entry.get("quoted") else paper)
        rows.append(row)
    return markdown_table(header, rows)


def _differences(configuration: Any, results: Results) -> str:
    rows = []
    for method, entry in configuration["methods"].items():
        if method == REFERENCE:
            continue
        row: list[object] = [f"to {entry['title']}"]
        for distribution in configuration["distributions"]:
            ours = _values(results, REFERENCE, distribution, "selected")
            theirs = _values(results, method, distribution, "selected")
            seeds = sorted(ours.keys() & theirs.keys())
            difference = paired_difference([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])
            row.append(format_interval(difference.mean, difference.low, difference.high, digits=2))
        rows.append(row)
    return markdown_table(["difference", *configuration["distributions"].values()], rows)


def _costs(configuration: Any, results: Results) -> str:
    header = ["method", "distribution", "accepted, last ten rounds", "of them right", "down, MB", "minutes"]
    rows = []
    for method, entry in configuration["methods"].items():
        for distribution, title in configuration["distributions"].items():
            own = [result for (name, where, _), result in results.items() if (name, where) == (method, distribution)]
            if own:
                rows.append([entry["title"], title, *np.mean([_cost(result) for result in own], axis=0)])
    return markdown_table(header, rows, digits=2)


def _cost(result: dict[str, Any]) -> tuple[float, ...]:
    down = sum(size for name, size in result["bytes"].items() if name.startswith("down."))
    return (_at_end(result["accepted"]), _at_end(result["pseudo_label_accuracy"]), down / 1e6, result["seconds"] / 60)


def _at_end(course: dict[str, float]) -> float:
    """The mean over the last ten rounds in which there was something."""
    return course[max(course, key=int)] if course else math.nan


def _machine(results: Results) -> str:
    peak = max(result["peak_memory_mib"] for result in results.values())
    machines = sorted({f"{r['machine']['processor']}, {r['machine']['cores']} cores" for r in results.values()})
    return f"Largest memory of a run: {peak} MiB. Machines: {'; '.join(machines)}."


if __name__ == "__main__":
    main()
