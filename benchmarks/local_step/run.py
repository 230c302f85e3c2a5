"""Measure a local step of each method beside plain loops that make the same update.

The plain loops (``loops.py``) are those of the papers and those of the published code. The script stops unless two compared
updates are equal in double precision. Rounds of a few steps are taken in turn, on one thread, each loop in a process of
its own. The result has the rate of floating-point operations in convolutions and matrix products beside that of large
matrix products, which are timed between the rounds, and a profile of the package's time. A run takes some three minutes of
CPU time.

    python -m benchmarks.local_step.run --only FedIRM  # measures these cases again, and keeps the rest of result.json
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.local_step.case import Case, Measured, Work, in_turn
from benchmarks.local_step.fed_align import AverageCase, FedAlignCase, PredictionsCase, ReleasedCase
from benchmarks.local_step.fedirm import FedIRMCase
from benchmarks.local_step.fedperl import FedPerlCase
from benchmarks.local_step.mutual import MDHFLCase, RowsCase
from benchmarks.measure import clocked, milliseconds, run, spread, table

LARGEST_DIFFERENCE = 1e-8
MATRIX_SIDE, MATRIX_PRODUCTS = 1024, 10
KINDS = {"convolutions and matrix products": ("conv", "mm"), "batch norm": ("batch_norm",), "other operations": ("",)}
CASES: Mapping[str, Callable[[], Case]] = {
    "FedPerl, compact": partial(FedPerlCase, "compact", 64, steps=6),
    "FedPerl, EfficientNet": partial(FedPerlCase, "efficientnet_b0", 96, steps=2),
    "FedIRM, unlabelled, compact": partial(FedIRMCase, "unlabelled", "compact", 64, 48, steps=3),
    "FedIRM, unlabelled, DenseNet": partial(FedIRMCase, "unlabelled", "densenet121", 64, 12, steps=2),
    "FedIRM, labelled, compact": partial(FedIRMCase, "labelled", "compact", 64, 48, steps=2),
    "Fed-Align-CL": partial(FedAlignCase, 192, steps=2),
    "Fed-Align-CL, as released": partial(ReleasedCase, 256, steps=2),
    "Fed-Align-CL predictions": partial(PredictionsCase, 256, 32),
    "Fed-Align-CL average": AverageCase,
    "MDH-FL": partial(MDHFLCase, "resnet10", steps=1),
    "MDH-FL rows, ResNet": partial(RowsCase, "resnet10", batches=4),
    "MDH-FL rows, MobileNet": partial(RowsCase, "mobilenetv2", batches=4),
}

Shape = Sequence[int]


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All cases, or the chosen ones beside those that the result already has."""
    chosen = {name: make for name, make in CASES.items() if options.only in name}
    if options.quick:
        chosen = dict(list(chosen.items())[:1])
    found = json.loads(options.out.read_text())["cases"] if options.only and options.out.is_file() else {}
    for name, make in chosen.items():
        found[name] = compared(make(), 1 if options.quick else options.repeats)
        print(f"measured: {name}", flush=True)
    return {"cases": {name: found[name] for name in CASES if name in found}}


def compared(case: Case, repeats: int) -> dict[str, Any]:
    differences = {pair: checked_difference(case, *pair) for pair in case.comparisons}
    forward = operations(case.forward())
    rates: list[float] = []
    found = in_turn(case, repeats, lambda: rates.append(matrix_product_rate()))
    rate = statistics.median(rates)
    return {
        "method": case.method,
        "title": case.title,
        "steps": case.steps,
        "mflop_of_a_forward_pass": round(forward / 1e6, 1),
        "matrix_product_gflops": round(rate / 1e9, 2),
        "loops": {loop: figures(case, loop, taken, forward, rate) for loop, taken in found.items()},
        "percent_of_time": time_by_kind(case.prepare(case.loops[0])),
        "comparisons": [
            {
                "ours": ours,
                "other": other,
                "difference_float64": difference,
                "other_over_ours": spread(
                    [b.cpu / a.cpu for a, b in zip(found[ours].costs, found[other].costs, strict=True)], 3
                ),
            }
            for (ours, other), difference in differences.items()
        ],
    }


def checked_difference(case: Case, ours: str, other: str) -> float:
    difference = case.difference(ours, other)
    if not difference < LARGEST_DIFFERENCE:
        raise SystemExit(f"{case.method}, {case.title}: {ours} and {other} differ by {difference:.1e} of the update")
    return float(f"{difference:.1e}")


def figures(case: Case, loop: str, taken: Measured, forward: float, rate: float) -> dict[str, Any]:
    costs = [cost.over(case.steps) for cost in taken.costs]
    done = operations(case.prepare(loop)) / case.steps
    achieved = done / statistics.median(cost.cpu for cost in costs)
    return {
        "ms_per_step": milliseconds(costs),
        "s_of_first_round": round(taken.first.cpu, 2),
        "peak_mib": round(taken.mib, 1),
        "mflop_per_step": round(done / 1e6, 1),
        "forward_passes": round(done / forward, 2),
        "gflops": round(achieved / 1e9, 2),
        "share_of_matrix_product_rate": round(achieved / rate, 3),
    }


def time_by_kind(work: Work) -> dict[str, float]:
    """Percent of a round's time in each kind of operation; the rest is outside torch."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        cost, _ = clocked(work)
    percent = dict.fromkeys(KINDS, 0.0)
    for operation in profiled.key_averages():
        kind = next(kind for kind, parts in KINDS.items() if any(part in operation.key for part in parts))
        percent[kind] += operation.self_cpu_time_total / 1e4 / cost.wall
    percent["outside torch"] = 100 - sum(percent.values())
    return {kind: round(value, 1) for kind, value in percent.items()}


def operations(work: Work) -> float:
    """Floating-point operations of convolutions and matrix products; a multiply-add is two."""
    counted = {torch.ops.aten.convolution_backward: operations_of_convolution_backward}
    with FlopCounterMode(display=False, custom_mapping=counted) as counter:
        work()
    return float(counter.get_total_flops())


def operations_of_convolution_backward(
    gradient: Shape, images: Shape, weight: Shape, *others: Any, **options: Any
) -> int:
    """As many as forward for each gradient; torch's own count ignores groups."""
    forward = 2 * gradient[0] * math.prod(gradient[2:]) * math.prod(weight)
    return forward * sum(others[-1][:2])


def matrix_product_rate() -> float:
    """Floating-point operations per second of processor time in float32 matrix products on one thread."""
    a, b = torch.rand(2, MATRIX_SIDE, MATRIX_SIDE)
    torch.mm(a, b)
    began = time.process_time()
    for _ in range(MATRIX_PRODUCTS):
        torch.mm(a, b)
    return MATRIX_PRODUCTS * 2 * MATRIX_SIDE**3 / (time.process_time() - began)


def tables(result: Mapping[str, Any]) -> str:
    cases, pairs, loops = list(result["cases"].values()), [], []
    for case in cases:
        ms = {name: loop["ms_per_step"]["cpu"]["median"] for name, loop in case["loops"].items()}
        for pair in case["comparisons"]:
            error = f"{pair['difference_float64']:.0e}"
            pairs.append({**case, **pair, "error": error, "here": ms[pair["ours"]], "there": ms[pair["other"]]})
        for name, loop in case["loops"].items():
            loops.append({**case, **loop, "loop": name, "percent": 100 * loop["share_of_matrix_product_rate"]})
    pair_columns = {
        "beside": "other", "ms here": "here", "ms there": "there", "there / here": "other_over_ours.median",
        "lowest": "other_over_ours.lowest", "highest": "other_over_ours.highest", "difference": "error",
    }  # fmt: skip
    loop_columns = {
        "loop": "loop", "ms": "ms_per_step.cpu.median", "forward passes": "forward_passes", "GFLOP/s": "gflops",
        "% of matrix products": "percent", "MiB": "peak_mib", "s of first round": "s_of_first_round",
    }  # fmt: skip
    kinds = {f"% {kind}": f"percent_of_time.{kind}" for kind in cases[0]["percent_of_time"]}
    parts = ((pair_columns, pairs, 2), (loop_columns, loops, 2), (kinds, cases, 1))
    step = {"method": "method", "step": "title"}
    return "\n\n".join(table({**step, **columns}, rows, digits) for columns, rows, digits in parts)


if __name__ == "__main__":
    run(
        __file__,
        measured,
        tables,
        repeats={"type": int, "default": 7},
        only={"default": "", "help": "cases whose name has this in it"},
    )
