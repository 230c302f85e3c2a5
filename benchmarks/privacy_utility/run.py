"""What a privacy budget costs: FedAvg, FedPerl and FedIRM on HAM10000 at epsilon 2, 8 and without a limit.

Every site has a policy and a ledger of its own, as a hospital would, and its gate treats what it sends. The epsilon of the
table is the one that the ledgers say, not the one that was aimed at. Two guarantees are compared, which promise different
things: ``record`` hides one image by noise in every step of training; ``site`` hides all that a site has, by noise on
its clipped updates. The model of the last round is scored, because validation scores would be a release without noise.

    python benchmarks/fedperl_ham10000/pretrain.py --norm group --side 32 --cifar10 CIFAR10_NPZ \
        --out runs/privacy_utility/start.pt
    python benchmarks/privacy_utility/run.py --root HAM10000_FOLDER --workspace runs/privacy_utility --workers 2
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grandrounds.deployment.jobs import Job, load_job, with_options
from grandrounds.deployment.processes import machine, run_all
from grandrounds.deployment.simulate import choose_sites, simulate
from grandrounds.files import write_json
from grandrounds.privacy.accounting.accountant import min_noise_multiplier
from grandrounds.privacy.accounting.conversions import gaussian_noise_multiplier
from grandrounds.privacy.gate.policy_file import GATE
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.protocol.spending import Unit

HERE = Path(__file__).parent
RESULTS = HERE / "results"
CONFIGURATION = json.loads((HERE / "configuration.json").read_text())
DELTA = CONFIGURATION["delta"]


def main() -> None:
    """Run what has no result yet, a few runs at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of HAM10000")
    parser.add_argument("--workspace", type=Path, default=Path("runs/privacy_utility"))
    parser.add_argument("--workers", type=int, default=1, help="runs at once; each uses one CPU thread")
    parser.add_argument("--trial", nargs="*", default=[], help="options to try; results go to the workspace")
    parser.add_argument("--only", help="setting:method:seed, such as eps8:fedavg_record:1, run in this process")
    arguments = parser.parse_args()
    results = arguments.workspace / "trial_results" if arguments.trial else RESULTS
    if arguments.only:
        run(arguments.only, arguments.root, arguments.workspace, results, arguments.trial)
        return
    command = [sys.executable, __file__, "--root", str(arguments.root), "--workspace", str(arguments.workspace)]
    command += ["--trial", *arguments.trial] if arguments.trial else []
    run_all(
        ([*command, "--only", task] for task in tasks() if not result_of(task, results).exists()), arguments.workers
    )


def tasks() -> Iterator[str]:
    """All runs, all rows of a seed before those of the next."""
    for seed in CONFIGURATION["seeds"]:
        for setting, rows in CONFIGURATION["rows"].items():
            for method, protection in rows:
                yield f"{setting}:{method}_{protection}:{seed}"


def result_of(task: str, folder: Path) -> Path:
    """The file with a run's result."""
    return folder / f"{task.replace(':', '_')}.json"


def run(task: str, root: Path, workspace: Path, results: Path, trial: list[str]) -> None:
    """Run one row with one seed and write its result."""
    os.environ.setdefault("GRANDROUNDS_CACHE", str((workspace / "cache").absolute()))
    setting, row, seed = task.split(":")
    method, protection = row.split("_")
    partition = _partition(method, int(seed), root, workspace)
    sites, problem = choose_sites(None, partition)
    job = _job(method, int(seed), problem, workspace / "start.pt", trial)
    place = workspace / "runs" / task.replace(":", "_")
    # From the beginning: a resumed run would have spent more than one that was not interrupted.
    shutil.rmtree(place, ignore_errors=True)
    epsilon = CONFIGURATION["epsilons"][setting]
    job, multiplier = _protect(job, protection, epsilon, sites, partition, place)
    started = time.process_time()
    summary = simulate(job, place, sites, sites_dir=partition)
    result = {
        "setting": setting,
        "method": method,
        "protection": protection,
        "seed": int(seed),
        "sites": len(sites),
        "epsilon_aimed_at": epsilon,
        "delta": DELTA,
        "noise_multiplier": multiplier,
        "budget": _budget(protection, place, sites),
        "contributions": summary["contributions"],
        "scores": _scores(job, place / "results" / "last.pt", partition, sites),
        "bytes": summary["bytes"],
        "cpu_seconds": round(time.process_time() - started, 1),
        "options": {
            "controller": {**job.options("controller"), "problem": {**job.options("problem"), "weights": "start.pt"}},
            "executor": job.options("executor"),
            "weights": hashlib.sha256((workspace / "start.pt").read_bytes()).hexdigest(),
        },
        "versions": summary["versions"],
        "machine": machine(),
    }
    results.mkdir(parents=True, exist_ok=True)
    write_json(result_of(task, results), result)


def _partition(method: str, seed: int, root: Path, workspace: Path) -> Path:
    """Sites with the same images for all methods; they differ in which of them have labels."""
    from grandrounds.data.partition.make import make_partition

    folder = workspace / f"sites_{method}_{seed}"
    choices = CONFIGURATION["partition"] | CONFIGURATION["methods"][method]["partition"]
    make_partition(root=root, out=folder, seed=seed, **choices)
    return folder


def _job(method: str, seed: int, problem: dict[str, Any], start: Path, trial: list[str]) -> Job:
    entry = CONFIGURATION["methods"][method]
    job = load_job(entry["job"])
    job.options("problem").update(problem)
    options = [*CONFIGURATION["common"], *entry["options"], f"controller.seed={seed}"]
    return with_options(job, [*options, f"problem.weights={start.absolute()}", *trial])


def _protect(
    job: Job, protection: str, epsilon: float | None, sites: list[str], partition: Path, place: Path
) -> tuple[Job, float | None]:
    """Give every site a policy and a ledger, and the job what the policies ask for; also the noise multiplier."""
    if epsilon is None:
        return job, None
    chosen = CONFIGURATION["protections"][protection]
    rounds, executor = job.options("controller")["rounds"], job.options("executor")
    if protection == "record":
        # The smallest site draws each of its images most often, and spends most.
        fewest = min(_labelled_images(site, job, partition) for site in sites)
        steps, rate = executor["steps"], executor["batch_size"] / fewest
        multiplier = min_noise_multiplier(epsilon, DELTA, rounds * steps, rate)
        job = with_options(
            job, [f"executor.record_noise_multiplier={multiplier}", f"executor.record_clip={chosen['clip']}"]
        )
        treatment = {"treatment": "record_level", "min_noise_multiplier": multiplier}
    else:
        multiplier = gaussian_noise_multiplier(epsilon, DELTA, rounds)
        treatment = {"treatment": "clip_and_noise", "clip": chosen["clip"], "noise_multiplier": multiplier}
    for site in sites:
        _install(place / "flare" / site / "local", site, chosen["unit"], treatment)
    return job, multiplier


def _labelled_images(site: str, job: Job, partition: Path) -> int:
    from grandrounds.data.manifest import read_manifest
    from grandrounds.data.site import locate_dataset

    location = locate_dataset(site, job.options("problem")["dataset"], [partition])
    return sum(record.split == "train" and record.labelled for record in read_manifest(location.manifest).records)


def _install(local: Path, site: str, unit: str, treatment: dict[str, Any]) -> None:
    """A policy that lets out updates so treated, numbers, and FedIRM's relation matrices, which are not counted."""
    releases = [
        {"kind": "model_update", "name": "update", **treatment},
        {"kind": "class_statistics", "name": "relation", "treatment": "minimum_support", "least": 10}
        | {"outside_budget": True},
    ]
    numbers = [{"name": "*", "part": "train", "minimum_support": 2}]
    policy = {"unit": unit, "delta": DELTA, "releases": releases, "scalars": numbers}
    filters = [{"path": GATE}]
    scope = {"name": "benchmark", "properties": {"grandrounds": policy}}
    scope |= {"task_data_filters": filters, "task_result_filters": filters}
    local.mkdir(parents=True)
    write_json(local / "privacy.json", {"scopes": [scope], "default_scope": "benchmark"})
    Ledger.create(local / "privacy", site)


def _budget(protection: str, place: Path, sites: list[str]) -> dict[str, Any] | None:
    """What the sites' ledgers say: the largest epsilon, by two methods, and the number of releases that it counts."""
    if protection == "none":
        return None
    unit = Unit(CONFIGURATION["protections"][protection]["unit"])
    ledgers = [Ledger(place / "flare" / site / "local" / "privacy", site).content() for site in sites]
    (dataset,) = {name for ledger in ledgers for name in ledger.datasets}
    return {
        "unit": unit.value,
        "epsilon": max(ledger.spent(dataset, DELTA, unit) for ledger in ledgers),
        "bound": max(ledger.spent_bound(dataset, DELTA, unit) for ledger in ledgers),
        "releases": max(len(ledger.bookings) for ledger in ledgers),
    }


def _scores(job: Job, weights: Path, partition: Path, sites: list[str]) -> dict[str, float]:
    """Scores of a model on the test images of all sites together."""
    from grandrounds.data.site import load_site_data, locate_dataset
    from grandrounds.evaluation.external import load_trained, predict
    from grandrounds.evaluation.metrics import classification_metrics
    from grandrounds.protocol.problem import Problem

    problem = Problem.from_dict(job.options("problem"))
    model = load_trained(problem.model_spec(pretrained=False), weights)
    labels, probabilities = [], []
    for site in sites:
        location = locate_dataset(site, problem.dataset, [partition])
        cache = Path(os.environ["GRANDROUNDS_CACHE"])
        data = load_site_data(location, problem.classes, problem.image_size, problem.channels, cache)
        rows = data.rows("test")
        labels.append(data.labels[rows])
        probabilities.append(predict(model, data.images, rows, torch.device("cpu")).double().numpy())
    return classification_metrics(np.concatenate(labels), np.concatenate(probabilities))


if __name__ == "__main__":
    main()
