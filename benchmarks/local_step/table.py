"""The tables of what local steps cost, from ``result.json``.

python -m benchmarks.local_step.table
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grandrounds.evaluation.tables import markdown_table

RESULT = Path(__file__).with_name("result.json")
COMPARED = ["method", "step", "beside", "ms here", "ms there", "there / here", "lowest", "highest", "difference"]
COST = ["method", "step", "loop", "ms", "forward passes", "GFLOP/s", "% of matrix products", "MiB", "s of first round"]


def main() -> None:
    """Print the tables."""
    print(table())


def table() -> str:
    """The tables of the committed result, and where it is from."""
    result = json.loads(RESULT.read_text())
    machine, versions = result["machine"], result["versions"]
    load = f"load {machine['load_before']:g} before and {machine['load_after']:g} after"
    where = f"{machine['processor']}, {machine['cores']} cores, one thread, {load}, torch {versions['torch']}"
    return f"{tables(result)}\n\n({where})"


def tables(result: Mapping[str, Any]) -> str:
    """What is compared, what each loop takes, and where the time of the package's goes."""
    cases = list(result["cases"].values())
    compared = markdown_table(COMPARED, [row for case in cases for row in _comparisons(case)], 2)
    costs = markdown_table(COST, [row for case in cases for row in _costs(case)], 2)
    header = ["method", "step", *(f"% {kind}" for kind in cases[0]["percent_of_time"])]
    times = [[case["method"], case["title"], *case["percent_of_time"].values()] for case in cases]
    return "\n\n".join([compared, costs, markdown_table(header, times, 1)])


def _comparisons(case: Mapping[str, Any]) -> Iterator[list[Any]]:
    for pair in case["comparisons"]:
        ours, other = (case["loops"][pair[name]]["ms_per_step"]["cpu"]["median"] for name in ("ours", "other"))
        ratio = pair["other_over_ours"]
        yield [
            case["method"],
            case["title"],
            pair["other"],
            ours,
            other,
            *(ratio[name] for name in ("median", "lowest", "highest")),
            f"{pair['difference_float64']:.0e}",
        ]


def _costs(case: Mapping[str, Any]) -> Iterator[list[Any]]:
    for name, loop in case["loops"].items():
        yield [
            case["method"],
            case["title"],
            name,
            loop["ms_per_step"]["cpu"]["median"],
            loop["forward_passes"],
            loop["gflops"],
            100 * loop["share_of_matrix_product_rate"],
            loop["peak_mib"],
            loop["s_of_first_round"],
        ]


if __name__ == "__main__":
    main()
