"""Measure how much of the time for drawing views is hidden behind the training, with a process that draws ahead.

Local steps of FedPerl without and with views drawn ahead are taken in turn, on one torch thread. Their difference over the
time that drawing the same views takes alone is the share that is hidden. In CPU time of the training process this is
what an idle second core hides at most, whatever else the machine does; in wall-clock time it needs an idle second core.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from contextlib import closing
from dataclasses import replace
from typing import Any

from benchmarks.measure import Cost, in_child, in_turn, run, spread, table

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
    """Milliseconds of a step without and with a drawing process, and of the drawing alone."""
    import numpy as np
    import torch

    from benchmarks.local_step.case import context_of
    from grandrounds.data.batches import index_batches
    from grandrounds.data.datasets.phantom import PHANTOM_CLASSES
    from grandrounds.data.images.ahead import ViewsAhead
    from grandrounds.data.images.augmentation import draw_views
    from grandrounds.federation.memory import keep_freed_memory
    from grandrounds.federation.site.training import new_optimizer
    from grandrounds.methods.fixmatch.training import SemiSupervisedOptions, train_semi_supervised
    from grandrounds.methods.supervised.training import TrainingOptions
    from grandrounds.models.registry import build_model
    from grandrounds.protocol.problem import Problem

    torch.set_num_threads(1)
    keep_freed_memory()
    problem = Problem("phantom", PHANTOM_CLASSES, side, 3, backbone)
    context = context_of("site-1", problem, 96, 32)
    folder = tempfile.TemporaryDirectory()
    np.save(f"{folder.name}/images.npy", context.data.images)
    images = np.load(f"{folder.name}/images.npy", mmap_mode="r")  # as a site's cache gives them
    context = replace(context, data=replace(context.data, images=images))
    training = TrainingOptions(steps=steps)
    models = {}

    def train(processes: int) -> None:
        network = build_model(problem.model_spec(pretrained=False), seed=1).train()
        optimizer = new_optimizer(network.parameters(), "adam", 1e-4)
        with closing(ViewsAhead(processes)) as ahead:  # every pseudo-label is accepted, so that all views are drawn
            options = SemiSupervisedOptions(threshold=0.0)
            train_semi_supervised(network, optimizer, replace(context, ahead=ahead), training, options)
        models[processes] = network.state_dict()

    def draw() -> None:
        for part, views in (("labelled", ("weak",)), ("unlabelled", ("weak", "strong"))):
            batches = index_batches(context.data.rows(part), training.batch_size, steps, context.generator(part))
            for step, rows in enumerate(batches):
                for view in views:
                    draw_views(context.data.images, rows, view, 1, step)

    costs = in_turn({"without": lambda: train(0), "with": lambda: train(1), "drawing": draw}, repeats)
    if not all(torch.equal(value, models[1][name]) for name, value in models[0].items()):
        raise SystemExit("the models with and without views drawn ahead differ")
    steps_of = {
        kind: {name: [1000 * getattr(cost, kind) / steps for cost in found] for name, found in costs.items()}
        for kind in Cost._fields
    }
    folder.cleanup()
    found: dict[str, Any] = {"case": f"{backbone}, {side} px"}
    for kind, of in steps_of.items():
        drawing, turns = statistics.median(of["drawing"]), zip(of["without"], of["with"], strict=True)
        hidden = spread([(before - after) / drawing for before, after in turns], 2)
        found[kind] = {"hidden": hidden, **{name: spread(values, 2) for name, values in of.items()}}
    return found


def tables(result: dict[str, Any]) -> str:
    rows = [
        {**case, **case[kind], "time": name, "range": "{lowest:.2f} to {highest:.2f}".format(**case[kind]["hidden"])}
        for case in result["cases"]
        for kind, name in {"cpu": "CPU, training process", "wall": "wall clock"}.items()
    ]
    columns = {
        "FedPerl": "case", "time": "time", "ms per step": "without.median", "drawn ahead": "with.median",
        "drawing alone": "drawing.median", "share hidden": "hidden.median", "range": "range", "load": "load",
    }  # fmt: skip
    return table(columns, rows, 2)


if __name__ == "__main__":
    run(__file__, measured, tables, repeats={"type": int, "default": 9})
