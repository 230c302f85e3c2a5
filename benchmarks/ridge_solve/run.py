"""Measure the solve of ridge regression: CPU time and memory of one penalty, of a grid of eight, of a check.

Sums are of drawn features, as many as EfficientNet-Lite0 has at five depths. Each case is a process of its own; memory is
the peak above what it has when the sums are there. The site's part, adding up images, is beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from benchmarks.measure import clocked, in_child, peak_mib, resident_mib, run, spread, table

FEATURES, CLASSES, IMAGES = 2128, 7, 512
GRID = [1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0]
CASES = ("one solve", "grid of 8", "checks of one site", "sums of 256 images")


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All cases, in turn."""
    features, repeats = (64, 1) if options.quick else (FEATURES, options.repeats)
    turns = [
        {case: in_child("benchmarks.ridge_solve.run.cost", case=case, features=features) for case in CASES}
        for _ in range(repeats)
    ]
    cases = [
        {
            "case": case,
            "cpu_seconds": spread([turn[case]["cpu_seconds"] for turn in turns], 3),
            "mib": spread([turn[case]["mib"] for turn in turns], 1),
        }
        for case in CASES
    ]
    return {"features": features, "cases": cases}


def cost(case: str, features: int) -> dict[str, float]:
    """CPU seconds of a case, and the peak of memory above the start."""
    import torch

    from grandrounds.models.closed_form.solve import solve, solve_grid
    from grandrounds.models.closed_form.sums import sums_of, wrong_sums
    from grandrounds.protocol.tasks import SINGLE

    torch.set_num_threads(1)
    numbers = torch.Generator().manual_seed(0)
    total = sums_of([_drawn(256, features, numbers) for _ in range(IMAGES // 256)], features, CLASSES)
    batch = [_drawn(256, features, numbers)]
    works: dict[str, Callable[[], Any]] = {
        CASES[0]: lambda: solve(total, 1.0),
        CASES[1]: lambda: solve_grid(total, GRID),
        CASES[2]: lambda: wrong_sums(total, SINGLE, 1000.0),
        CASES[3]: lambda: sums_of(batch, features, CLASSES),
    }
    torch.linalg.cholesky(torch.eye(8, dtype=torch.float64))  # what the library loads at its first call
    before = resident_mib()
    _reset_peak()
    spent, _ = clocked(works[case])
    return {"cpu_seconds": spent.cpu, "mib": max(peak_mib() - before, 0.0)}


def _reset_peak() -> None:
    """Forget the peak of drawing the sums."""
    with open("/proc/self/clear_refs", "w") as stream:
        stream.write("5")


def _drawn(images: int, features: int, numbers: Any) -> tuple[Any, Any, Any]:
    import torch

    labels = torch.randint(CLASSES, (images,), generator=numbers)
    values = torch.randn(images, features, generator=numbers) + 0.1 * labels[:, None]
    return values, torch.eye(CLASSES)[labels], torch.ones(images)


def tables(result: dict[str, Any]) -> str:
    columns = {"case": "case", "s of CPU": "cpu_seconds.median", "highest": "cpu_seconds.highest"}
    columns |= {"MiB above the start": "mib.median"}
    found = table(columns, result["cases"], 2)
    return f"{found}\n\n({result['features']} features, {CLASSES} classes, float64, one thread)"


if __name__ == "__main__":
    run(__file__, measured, tables, repeats={"type": int, "default": 3})
