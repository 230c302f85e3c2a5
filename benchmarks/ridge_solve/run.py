"""Measure the solve of ridge regression: CPU time and memory of one penalty, of a grid of eight, of a check.

Sums are of drawn features, as many as EfficientNet-Lite0 has at five depths. Memory is the peak above what the process has
when the sums are there. The site's part, adding up images, is beside it. ``--before`` names a checkout of an earlier state,
whose folder ``custom`` is imported in its place, in turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import clocked, in_child, peak_mib, resident_mib, run, spread, table
from grandrounds.deployment.processes import variables_set

FEATURES, CLASSES, IMAGES = 2128, 7, 512
GRID = [1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0]
CASES = (
    "one solve",
    "grid of 8",
    "checks of one site",
    "sums of 256 images",
    "a message unpacked",
    "four sites left out",
)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All cases in either state, in turn."""
    features, repeats = (64, 1) if options.quick else (FEATURES, options.repeats)
    states = {"now": {}, **({"before": {"PYTHONPATH": str(options.before / "custom")}} if options.before else {})}
    turns: dict[str, list[dict[str, dict[str, float]]]] = {state: [] for state in states}
    for _ in range(repeats):
        for state, code in states.items():
            with variables_set(code):
                turns[state].append(in_child("benchmarks.ridge_solve.run.costs", features=features))
    cases = [
        {
            "case": case,
            "state": state,
            "cpu_seconds": spread([turn[case]["cpu_seconds"] for turn in made], 3),
            "mib": spread([turn[case]["mib"] for turn in made], 1),
        }
        for case in CASES
        for state, made in turns.items()
    ]
    return {"features": features, "cases": cases}


def costs(features: int) -> dict[str, dict[str, float]]:
    """CPU seconds of each case, and the peak of memory above the start."""
    import torch

    from grandrounds.models.closed_form.leaving_out import best_penalty
    from grandrounds.models.closed_form.received import wrong_sums
    from grandrounds.models.closed_form.solve import DEFAULT_PENALTIES, solve, solve_grid
    from grandrounds.models.closed_form.sums import Sums, sums_of
    from grandrounds.protocol.tasks import SINGLE

    torch.set_num_threads(1)
    numbers = torch.Generator().manual_seed(0)
    sites = [sums_of([_drawn(256, features, numbers)], features, CLASSES) for _ in range(4)]
    total, message, batch = sites[0] + sites[1], sites[0].packed(), [_drawn(256, features, numbers)]
    works: dict[str, Callable[[], Any]] = {
        CASES[0]: lambda: solve(total, 1.0),
        CASES[1]: lambda: solve_grid(total, GRID),
        CASES[2]: lambda: wrong_sums(total, SINGLE, 1000.0),
        CASES[3]: lambda: sums_of(batch, features, CLASSES),
        CASES[4]: lambda: Sums.unpacked(message),
        CASES[5]: lambda: best_penalty(sites, DEFAULT_PENALTIES),
    }
    torch.linalg.cholesky(torch.eye(8, dtype=torch.float64))  # what the library loads at its first call
    spent = {}
    for case, work in works.items():
        before = resident_mib()
        _reset_peak()
        seconds, _ = clocked(work)
        spent[case] = {"cpu_seconds": seconds.cpu, "mib": max(peak_mib() - before, 0.0)}
    return spent


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
    columns = {"case": "case", "state": "state", "s of CPU": "cpu_seconds.median", "highest": "cpu_seconds.highest"}
    columns |= {"MiB above the start": "mib.median"}
    found = table(columns, [{"state": "now", **case} for case in result["cases"]], 2)
    return f"{found}\n\n({result['features']} features, {CLASSES} classes, float64, one thread)"


if __name__ == "__main__":
    more: dict[str, Any] = {"repeats": {"type": int, "default": 3}, "before": {"type": Path}}
    run(__file__, measured, tables, timed=False, **more)
