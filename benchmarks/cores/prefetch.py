"""Measure how much of the time for drawing views is hidden behind the training, with a thread that draws ahead.

Local steps of FedPerl without and with views drawn ahead are taken in turn in one process, on one torch thread. Their
difference over the time that drawing the same views takes alone is the share that is hidden. It needs an idle second core.
"""

from __future__ import annotations

import argparse
import os
import statistics
from contextlib import closing
from dataclasses import replace
from typing import Any

from benchmarks.measure import in_child, in_turn, run, spread, table

CASES = (("compact", 64, 26), ("efficientnet_b0", 96, 4))


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All networks, each in a process of its own."""
    cases = [("compact", 32, 3)] if options.quick else CASES
    repeats = 1 if options.quick else options.repeats
    found = []
    for backbone, side, steps in cases:
        load = round(os.getloadavg()[0], 2)
        arguments = {"backbone": backbone, "side": side, "steps": steps, "repeats": repeats}
        found.append({"load": load, **in_child("benchmarks.cores.prefetch.case", **arguments)})
    return {"cases": found}


def case(backbone: str, side: int, steps: int, repeats: int) -> dict[str, Any]:
    """Seconds of the steps without and with a drawing thread, and of the drawing alone."""
    import torch

    from benchmarks.local_step.case import context_of
    from grandrounds.data.batches import index_batches
    from grandrounds.data.datasets.phantom import PHANTOM_CLASSES
    from grandrounds.data.images.ahead import ViewsAhead
    from grandrounds.data.images.views import draw_views
    from grandrounds.federation.site.training import new_optimizer
    from grandrounds.federation.site.worker import keep_freed_memory
    from grandrounds.methods.fixmatch.training import SemiSupervisedOptions, train_semi_supervised
    from grandrounds.methods.supervised.training import TrainingOptions
    from grandrounds.models.registry import build_model
    from grandrounds.protocol.problem import Problem

    torch.set_num_threads(1)
    keep_freed_memory()
    problem = Problem("phantom", PHANTOM_CLASSES, side, 3, backbone)
    context = context_of("site-1", problem, 96, 32)
    training = TrainingOptions(steps=steps)
    models = {}

    def train(threads: int) -> None:
        network = build_model(problem.model_spec(pretrained=False), seed=1).train()
        optimizer = new_optimizer(network.parameters(), "adam", 1e-4)
        with closing(ViewsAhead(threads)) as ahead:  # every pseudo-label is accepted, so that all views are drawn
            options = SemiSupervisedOptions(threshold=0.0)
            train_semi_supervised(network, optimizer, replace(context, ahead=ahead), training, options)
        models[threads] = network.state_dict()

    def draw() -> None:
        for part, views in (("labelled", ("weak",)), ("unlabelled", ("weak", "strong"))):
            batches = index_batches(context.data.rows(part), training.batch_size, steps, context.generator(part))
            for step, rows in enumerate(batches):
                for view in views:
                    draw_views(context.data.images, rows, view, 1, step)

    costs = in_turn({"without": lambda: train(0), "with": lambda: train(1), "drawing": draw}, repeats)
    if not all(torch.equal(value, models[1][name]) for name, value in models[0].items()):
        raise SystemExit("the models with and without views drawn ahead differ")
    turns = zip(costs["without"], costs["with"], strict=True)
    drawing = statistics.median(cost.wall for cost in costs["drawing"])
    return {
        "case": f"{backbone}, {side} px",
        "milliseconds_per_step": {
            name: spread([1000 * cost.wall / steps for cost in found], 2) for name, found in costs.items()
        },
        "hidden": spread([(before.wall - after.wall) / drawing for before, after in turns], 2),
        "cpu_ratio": round(
            statistics.median(c.cpu for c in costs["with"]) / statistics.median(c.cpu for c in costs["without"]), 3
        ),
    }


def tables(result: dict[str, Any]) -> str:
    rows = [
        {**case, "range": f"{case['hidden']['lowest']:.2f} to {case['hidden']['highest']:.2f}"}
        for case in result["cases"]
    ]
    columns = {
        "FedPerl": "case", "ms per step": "milliseconds_per_step.without.median",
        "drawn ahead": "milliseconds_per_step.with.median", "drawing alone": "milliseconds_per_step.drawing.median",
        "share hidden": "hidden.median", "range": "range", "CPU time, of that without": "cpu_ratio", "load": "load",
    }  # fmt: skip
    return table(columns, rows, 2)


if __name__ == "__main__":
    run(__file__, measured, tables, repeats={"type": int, "default": 9})
