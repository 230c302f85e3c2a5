"""One table of what a local step costs in every method, from the results of the scripts that measure each.

FedPerl's is measured here, FedIRM's by ``fedirm_ham10000/step.py``, Fed-Align-CL's by ``fed_align_step``, MDH-FL's by
``mdhfl_step``. All of them compare with a plain loop that makes the same update, and check in the same run that it does.

    python -m benchmarks.local_step.table
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grandrounds.evaluation.tables import markdown_table

BENCHMARKS = Path(__file__).parents[1]
HEADER = ["method", "step", "ms here", "ms plainly", "plainly / here", "greatest difference of the updates"]


def main() -> None:
    """Print the table."""
    print(table())


def table() -> str:
    """A row for each measured step."""
    return markdown_table(HEADER, [*_fedperl(), *_fedirm(), *_fed_align(), *_mdhfl()], 2)


def _fedperl() -> Iterator[list[Any]]:
    for case in _read("local_step/result.json")["cases"]:
        times = case["ms_per_step_cpu"]
        yield [
            "FedPerl",
            f"{case['backbone']}, {case['image_size']} px, peers: {case['peers']}",
            *(times[name]["median"] for name in ("package", "textbook", "textbook_over_package")),
            f"{case['relative_difference_of_gradients']:.0e} of the first gradient, single precision",
        ]


def _fedirm() -> Iterator[list[Any]]:
    result = _read("fedirm_ham10000/step.json")
    seconds = result["seconds"]
    for ours, plain in (("head, 8 draws", "released loop"), ("full, 8 draws", "released loop")):
        place = f"{result['backbone']}, {result['image_size']} px, no labels, dropout: {ours}"
        difference = result["largest_difference_from_the_slow_way_float64"]
        yield ["FedIRM", place, *_pair(seconds[ours], seconds[plain]), f"{difference:.0e}" if "head" in ours else None]


def _fed_align() -> Iterator[list[Any]]:
    result = _read("fed_align_step/result.json")["iteration"]
    seconds = result["seconds"]
    yield [
        "Fed-Align-CL",
        f"resnet22, {result['image_size']} px, {result['hospitals']} hospitals",
        *_pair(seconds["summed"], seconds["textbook"]),
        f"{result['largest_difference']:.0e}",
    ]


def _mdhfl() -> Iterator[list[Any]]:
    whole = _read("mdhfl_step/result.json")
    result, difference = whole["alignment"], whole["gradients"]["largest_relative_difference"]
    batches = result["images"] / result["batch"]
    seconds = {name: value / batches for name, value in result["seconds"].items()}
    for plain, title in (("textbook", "textbook"), ("least", "nothing but forward, backward, Adam")):
        place = f"{result['backbone']}, {result['sites']} sites, alignment, beside {title}"
        yield ["MDH-FL", place, *_pair(seconds["ours"], seconds[plain]), f"{difference:.0e} of the gradient"]


def _pair(ours: float, plain: float) -> tuple[float, float, float]:
    return 1000 * ours, 1000 * plain, plain / ours


def _read(path: str) -> dict[str, Any]:
    return dict(json.loads((BENCHMARKS / path).read_text()))


if __name__ == "__main__":
    main()
