"""Measure the effect of half-precision updates on a model: FedAvg on skin lesions of four devices.

Each precision runs with the same seeds: every fourth image of HAM10000 at 32 px, a hospital per imaging device, the network
``compact``, twenty rounds of twelve steps. The result has the balanced accuracy of the last model on all test images, its
difference from the single-precision run with the same seed, and the share of test images with another predicted class. The
control is single precision with updates changed by two units of their last digit. A run takes about two minutes of CPU time.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
from nvflare.apis.dxo import from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from sklearn.metrics import balanced_accuracy_score

from benchmarks import measure
from benchmarks.experiment import DATA
from benchmarks.measure import spread, table
from grandrounds.data.datasets.dermoscopy import HAM10000_CLASSES, read_ham10000
from grandrounds.data.partition.divide import by_source
from grandrounds.data.partition.files import write_partition
from grandrounds.data.partition.splits import assign_splits
from grandrounds.deployment.jobs import load_job, with_options
from grandrounds.deployment.simulate import choose_sites, simulate
from grandrounds.protocol.messages import UPDATE
from grandrounds.protocol.tensors import DTYPES, FULL
from grandrounds.seeding import numpy_generator

SEEDS, ROUNDS, EVERY, DEVICES = (1, 2), 20, 4, 4
OPTIONS = (
    *("controller.validate_every=0", "executor.steps=12", "executor.batch_size=16", "executor.learning_rate=0.001"),
    *("executor.cpu_threads=1", "executor.device=cpu", "problem.image_size=32", "problem.backbone=compact"),
)
NUDGED = "float32, nudged"


class Nudge(Filter):
    """Makes an update greater by two units of its last digit."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """FLARE's hook: an answer that goes out."""
        answer = from_shareable(shareable)
        part = answer.data[UPDATE]
        part.data = {name: value * (1 + 2**-22) for name, value in part.data.items()}
        return answer.update_shareable(shareable)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    seeds, rounds, every = ((1,), 2, 25) if options.quick else (SEEDS, ROUNDS, EVERY)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in (*DTYPES, NUDGED)}
    records, images = read_ham10000(options.root)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GRANDROUNDS_CACHE"] = f"{folder}/cache"
        for seed in seeds:
            sites_dir = Path(folder) / f"sites_{seed}"
            divided = by_source(records[::every], DEVICES, numpy_generator(seed, "sites"))
            sites = {
                n: assign_splits(own, numpy_generator(seed, n), site=n, labelled=1.0) for n, own in divided.items()
            }
            write_partition(sites, sites_dir, "skin", images, HAM10000_CLASSES, {})
            found = {name: run(name, seed, rounds, sites_dir, Path(folder) / f"{name}_{seed}") for name in runs}
            for name, (result, classes) in found.items():
                difference = round(result["balanced_accuracy"] - found[FULL][0]["balanced_accuracy"], 5)
                changed = round(float((classes != found[FULL][1]).mean()), 5)
                runs[name].append({**result, "difference": difference, "changed": changed})
    return {"rounds": rounds, "options": list(OPTIONS), "runs": runs}


def run(precision: str, seed: int, rounds: int, sites_dir: Path, place: Path) -> tuple[dict[str, Any], pd.Series]:
    """One run: its score and its bytes per site and round to the server, and the predicted classes of all test images."""
    names, problem = choose_sites(None, sites_dir)
    job = load_job("fedavg")
    job.options("problem").update(problem)
    chosen = [*OPTIONS, f"controller.rounds={rounds}", f"controller.seed={seed}"]
    if precision == NUDGED:
        filters = [{"path": "benchmarks.wire.precision.Nudge", "args": {}}]
        job.client["task_result_filters"].append({"tasks": ["train"], "filters": filters})
    else:
        chosen.append(f"controller.update_precision={precision}")
    summary = simulate(with_options(job, chosen), place, names, sites_dir=sites_dir)
    files = [place / "results" / name / "predictions_common.csv" for name in names]
    found = pd.concat(map(pd.read_csv, files), ignore_index=True)
    up = sum(parts["up.update"] for parts in summary["bytes"].values()) / len(names) / rounds
    score = round(float(balanced_accuracy_score(found["label"], found["predicted"])), 5)
    return {"seed": seed, "balanced_accuracy": score, "bytes_up": round(up)}, found["predicted"]


def tables(result: dict[str, Any]) -> str:
    cases = []
    for precision, runs in result["runs"].items():
        frame = 100 * pd.DataFrame(runs)
        scores = {name: spread(frame[name].tolist()) for name in ("balanced_accuracy", "changed", "difference")}
        cases.append({"updates in": precision, "KiB up": runs[0]["bytes_up"] / 1024, **scores})
    columns = {"balanced accuracy, %": "balanced_accuracy.median", "least difference": "difference.lowest"}
    columns |= {"greatest": "difference.highest", "% put elsewhere": "changed.median"}
    return table({"updates in": "updates in", "KiB up": "KiB up", **columns}, cases, 2)


if __name__ == "__main__":
    root = {"type": Path, "default": DATA / "ham10000", "help": "folder of HAM10000"}
    measure.run(__file__, measured, tables, root=root)
