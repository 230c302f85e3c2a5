"""Measure FedAvg over ten sites in one process beside a bare PyTorch loop with the same local updates.

The script stops unless the final weights of both are equal to the bit. The two are repeated in turn.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import clocked, run, spread, table
from benchmarks.parties import site_names
from grandrounds.data.batches import index_batches
from grandrounds.data.images.augmentation import draw_views
from grandrounds.data.images.tensors import to_tensor
from grandrounds.data.site import load_site_data, read_site_config
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import simulate
from grandrounds.evaluation.prediction import predict, tensors_of
from grandrounds.methods.supervised.loss import median_class_weights
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.tasks import SINGLE
from grandrounds.seeding import derive_seed, numpy_generator

SITES, ROUNDS, STEPS, IMAGE_SIZE = 10, 8, 26, 64
OPTIONS = ("controller.validate_every=0", f"problem.image_size={IMAGE_SIZE}", f"executor.steps={STEPS}")


def measured(options: argparse.Namespace) -> dict[str, Any]:
    rounds, pairs = 1 if options.quick else ROUNDS, []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GRANDROUNDS_CACHE"] = f"{folder}/cache"
        place = Path(folder) / "run"
        run_job(place, 1)  # draws the phantoms and decodes them
        for _ in range(1 if options.quick else options.repeats):
            shutil.rmtree(place)
            engine, _ = clocked(lambda: run_job(place, rounds))
            loop, weights = clocked(lambda: bare_loop(rounds))
            saved = torch.load(place / "results" / "last.pt", weights_only=True)
            if not all(torch.equal(saved[name], value) for name, value in weights.items()):
                raise SystemExit("the bare loop and the engine do not give the same weights")
            pairs.append((engine, loop))
    return {
        "in_process": {
            **{"sites": SITES, "rounds": rounds, "steps": STEPS, "image_size": IMAGE_SIZE},
            "engine_over_loop_wall": spread([engine.wall / loop.wall for engine, loop in pairs]),
            "engine_over_loop_cpu": spread([engine.cpu / loop.cpu for engine, loop in pairs]),
            "loop_seconds": spread([loop.wall for _, loop in pairs]),
        }
    }


def run_job(workspace: Path, rounds: int) -> None:
    options = [*OPTIONS, f"controller.rounds={rounds}", "executor.cpu_threads=1"]
    simulate(with_options(load_job("fedavg"), options), workspace, site_names(SITES))


def bare_loop(rounds: int) -> dict[str, Any]:
    """FedAvg as one would write it in a notebook, with the job's data, seeds and settings."""
    job = load_job("fedavg")
    problem = Problem.from_dict({**job.options("problem"), "image_size": IMAGE_SIZE})
    seed = job.options("controller")["seed"]
    cache = Path(os.environ["GRANDROUNDS_CACHE"])
    data = {}
    for name in site_names(SITES):
        location = read_site_config(cache / "phantom" / name / "grandrounds.json")["phantom"]
        data[name] = load_site_data(location, problem, cache)
    network = build_model(problem.model_spec(pretrained=False), seed)
    state = {key: value.clone() for key, value in network.state_dict().items()}
    for number in range(1, rounds + 1):
        total: dict[str, Any] = {}
        for name, site in data.items():
            labels, rows = site.labels, site.rows("labelled")
            weights = median_class_weights(torch.from_numpy(np.bincount(labels[rows], minlength=len(problem.classes))))
            network.load_state_dict(state)
            network.train()
            optimizer = torch.optim.Adam(network.parameters(), lr=0.001, fused=True)
            purpose = (seed, "site", name, number)
            batches = index_batches(rows, 16, STEPS, numpy_generator(*purpose, "labelled batches"))
            for step, batch in enumerate(batches):
                views = draw_views(site.images, batch, "weak", derive_seed(*purpose, "labelled views"), step)
                loss = SINGLE.loss(network(to_tensor(views)), torch.from_numpy(labels[batch]), weights)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            for key, value in network.state_dict().items():
                if value.is_floating_point():
                    update = value - state[key]
                    total[key] = total[key] + update if key in total else update
        state = {key: value + total[key] / SITES if key in total else value for key, value in state.items()}
    network.load_state_dict(state)
    for site in data.values():  # the job's final test
        predict(network, tensors_of(site.images), site.rows("test"))
    return state


def tables(result: dict[str, Any]) -> str:
    clocks = {"wall-clock time": "wall", "CPU time": "cpu"}
    cases = [{"clock": title, **result["in_process"][f"engine_over_loop_{name}"]} for title, name in clocks.items()]
    columns = {"engine over bare loop": "clock", "median": "median", "lowest": "lowest", "highest": "highest"}
    return table(columns, cases, 3)


if __name__ == "__main__":
    run(__file__, measured, tables, repeats={"type": int, "default": 3})
