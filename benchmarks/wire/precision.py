"""What half-precision updates do to a model: FedAvg on real skin lesions of four devices, the same seeds in each precision.

Every fourth image of HAM10000 at 32 px, a hospital for each imaging device, the network ``compact``, twenty rounds of
twelve steps. Reported are balanced accuracy of the last model on all hospitals' test images, its difference to the run in
single precision with the same seed, and the share of test images with another predicted class. The control is single
precision with updates off by two units of their last digit. About two minutes of CPU time.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.dxo import from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from benchmarks.experiment import DATA
from benchmarks.measure import run as run_measurement
from benchmarks.measure import spread, table
from grandrounds.data.datasets.dermoscopy import HAM10000_CLASSES, read_ham10000
from grandrounds.data.partition.divide import by_source
from grandrounds.data.partition.files import write_partition
from grandrounds.data.partition.splits import assign_splits
from grandrounds.deployment.jobs import load_job, with_options
from grandrounds.deployment.simulate import choose_sites, simulate
from grandrounds.evaluation.metrics import confusion_matrix
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
    """Every precision with every seed in turn."""
    seeds, rounds, every = ((1,), 2, 25) if options.quick else (SEEDS, ROUNDS, EVERY)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in (*DTYPES, NUDGED)}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GRANDROUNDS_CACHE"] = str(Path(folder) / "cache")
        for seed in seeds:
            sites = hospitals(options.root, Path(folder) / f"sites_{seed}", seed, every)
            found = {name: run(name, seed, rounds, sites, Path(folder) / f"{name}_{seed}") for name in runs}
            for name, (result, classes) in found.items():
                changed = float((classes != found[FULL][1]).mean())
                difference = result["balanced_accuracy"] - found[FULL][0]["balanced_accuracy"]
                runs[name].append({**result, "difference": round(difference, 5), "changed": round(changed, 5)})
    return {"rounds": rounds, "options": list(OPTIONS), "runs": runs}


def hospitals(root: Path, out: Path, seed: int, every: int) -> Path:
    """Divide the images by imaging device."""
    records, images = read_ham10000(root)
    divided = by_source(records[::every], DEVICES, numpy_generator(seed, "sites"))
    sites = {
        name: assign_splits(part, numpy_generator(seed, name), site=name, labelled=1.0)
        for name, part in divided.items()
    }
    write_partition(sites, out, "skin", images, HAM10000_CLASSES, {})
    return out


def run(precision: str, seed: int, rounds: int, sites_dir: Path, place: Path) -> tuple[dict[str, Any], np.ndarray]:
    """One run: its scores and the bytes that it sent up, and the predicted classes of all test images."""
    names, problem = choose_sites(None, sites_dir)
    job = load_job("fedavg")
    job.options("problem").update(problem)
    chosen = [f"controller.rounds={rounds}", f"controller.seed={seed}"]
    if precision == NUDGED:
        filters = [{"path": "benchmarks.wire.precision.Nudge", "args": {}}]
        job.client["task_result_filters"].append({"tasks": ["train"], "filters": filters})
    else:
        chosen.append(f"controller.update_precision={precision}")
    summary = simulate(with_options(job, [*OPTIONS, *chosen]), place, names, sites_dir=sites_dir)
    confusion, classes = _tested(place / "results", names)
    recalls = confusion.diagonal() / confusion.sum(axis=1).clip(min=1)
    up = sum(parts["up.update"] for parts in summary["bytes"].values()) / len(names) / rounds
    scores = {"seed": seed, "balanced_accuracy": round(float(recalls[confusion.sum(axis=1) > 0].mean()), 5)}
    return {**scores, "accuracy": round(float(confusion.trace() / confusion.sum()), 5), "bytes_up": round(up)}, classes


def _tested(results: Path, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    rows = []
    for name in names:
        with (results / name / "predictions_common.csv").open(newline="") as stream:
            rows += list(csv.DictReader(stream))
    labels, classes = (np.array([HAM10000_CLASSES.index(row[key]) for row in rows]) for key in ("label", "predicted"))
    return confusion_matrix(labels, classes, len(HAM10000_CLASSES)), classes


def tables(result: dict[str, Any]) -> str:
    cases = []
    for precision, runs in result["runs"].items():
        differences = [100 * run["difference"] for run in runs]
        medians = {
            name: spread([100 * run[key] for run in runs])["median"]
            for name, key in (("balanced accuracy, %", "balanced_accuracy"), ("% put elsewhere", "changed"))
        }
        sizes = {"updates in": precision, "KiB up": runs[0]["bytes_up"] / 1024}
        cases.append({**sizes, **medians, "least difference": min(differences), "greatest": max(differences)})
    header = ("updates in", "KiB up", "balanced accuracy, %", "least difference", "greatest", "% put elsewhere")
    return table({name: name for name in header}, cases, 2)


if __name__ == "__main__":
    root = {"type": Path, "default": DATA / "ham10000", "help": "folder of HAM10000"}
    run_measurement(__file__, measured, tables, root=root)
