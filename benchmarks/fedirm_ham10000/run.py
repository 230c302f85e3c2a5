"""FedIRM's second task on HAM10000: hospitals without a label, baselines, a rival of today, and ablations.

All runs of a seed and grouping have the same ten sites with the same images; they differ in who has labels, who takes part
and the method. Every run resumes where it was interrupted, and its result is a file of its own in ``results/``, written when
it ends. Scores are of all ten sites' test images together. The round and the threshold are chosen with the labels of all
sites' validation images, those of the sites that train without labels as well; beside that stands the round and the
threshold that the validation images of the sites with labels choose.

The settings come in the order of their importance: with ``--minutes`` no further run is started after that time.

    python benchmarks/fedperl_ham10000/pretrain.py --cifar10 CIFAR10_NPZ --out runs/fedirm_ham10000/start.pt
    python benchmarks/fedirm_ham10000/run.py --root HAM10000_FOLDER --workspace runs/fedirm_ham10000 --workers 2
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grandrounds.deployment.processes import machine, run_all

HERE = Path(__file__).parent
RESULTS = HERE / "results"
CONFIGURATION = json.loads((HERE / "configuration.json").read_text())
DIAGNOSTICS = (
    "kept",
    "matched_rows",
    "pseudo_label_accuracy",
    "relation_distance",
    "empty_batches",
    "relation_loss",
    "consistency",
)
SHOWN_ROUNDS = 5


def main() -> None:
    """Run what has no result yet, a few runs at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of HAM10000")
    parser.add_argument("--workspace", type=Path, default=Path("runs/fedirm_ham10000"))
    parser.add_argument("--workers", type=int, default=1, help="runs at once; each uses one CPU thread")
    parser.add_argument("--settings", nargs="*", help="only these settings")
    parser.add_argument("--minutes", type=float, help="start no further run after so many minutes")
    parser.add_argument("--rounds", type=int, help="fewer rounds, to try the script; results go to the workspace")
    parser.add_argument("--only", help="setting:method:seed, run in this process")
    arguments = parser.parse_args()
    if arguments.only:
        setting, method, seed = arguments.only.split(":")
        run(setting, method, int(seed), arguments.root, arguments.workspace, arguments.rounds)
        return
    command = [sys.executable, __file__, "--root", str(arguments.root), "--workspace", str(arguments.workspace)]
    command += ["--rounds", str(arguments.rounds)] if arguments.rounds else []
    tasks = until(_waiting(arguments.settings, arguments.workspace if arguments.rounds else None), arguments.minutes)
    run_all(([*command, "--only", task] for task in tasks), arguments.workers)


def until(tasks: Iterable[str], minutes: float | None) -> Iterator[str]:
    """Tasks as long as there is time."""
    started = time.monotonic()
    for task in tasks:
        if minutes is not None and time.monotonic() - started > 60 * minutes:
            return
        yield task


def _waiting(settings: list[str] | None, trial: Path | None) -> Iterator[str]:
    """What has no result: settings in the order of the configuration, and in each all methods of a seed."""
    for setting, content in CONFIGURATION["settings"].items():
        for seed in content["seeds"]:
            for method in content["methods"]:
                if setting in (settings or [setting]) and not _result(setting, method, seed, trial).exists():
                    yield f"{setting}:{method}:{seed}"


def _result(setting: str, method: str, seed: int, trial: Path | None) -> Path:
    return (trial / "trial_results" if trial else RESULTS) / f"{setting}_{method}_{seed}.json"


def run(setting: str, method: str, seed: int, root: Path, workspace: Path, rounds: int | None) -> None:
    """Run one method with one seed and write its result."""
    os.environ.setdefault("GRANDROUNDS_CACHE", str((workspace / "cache").absolute()))
    from grandrounds.deployment.jobs import load_job, with_options
    from grandrounds.deployment.simulate import choose_sites, simulate

    content, entry = CONFIGURATION["settings"][setting], CONFIGURATION["methods"][method]
    labelled = content["labelled"] if entry["labelled"] == "some" else content["labelled"] + content["unlabelled"]
    partition = _partition(content["group_by"], labelled, seed, root, workspace)
    sites, problem = choose_sites(content["labelled"] + content["unlabelled"], partition)
    start = workspace / "start.pt"
    job = load_job(entry["job"])
    job.options("problem").update(problem)
    options = [*CONFIGURATION["common"], *entry["options"], f"controller.seed={seed}"]
    options += [f"problem.weights={start.absolute()}"] + ([f"controller.rounds={rounds}"] if rounds else [])
    job = with_options(job, options)
    place = workspace / ("trial" if rounds else "runs") / f"{setting}_{method}_{seed}"
    summary = simulate(job, place, sites, sites_dir=partition)
    result = {
        "setting": setting,
        "method": method,
        "seed": seed,
        "classes": job.options("problem")["classes"],
        "labelled": sites[:labelled],
        "sites": sites,
        "selected": summary["selected"],
        "labelled_choice": summary["rounds"][-1]["labelled_choice"],
        "scores": _scores(job, place, partition, sites[:labelled]),
        "unlabelled_support": _own_support(place),
        "unlabelled": _diagnostics(place),
        "relations": _relations(place),
        "unsupported": summary["rounds"][-1].get("unsupported", []),
        "bytes": summary["bytes"],
        "seconds": summary["seconds"],
        "options": {
            "controller": {**job.options("controller"), "problem": {**job.options("problem"), "weights": start.name}},
            "executor": job.options("executor"),
            "weights": hashlib.sha256(start.read_bytes()).hexdigest(),
        },
        "versions": summary["versions"],
        "machine": machine(),
    }
    target = _result(setting, method, seed, workspace if rounds else None)
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n")


def _partition(group_by: str, labelled: int, seed: int, root: Path, workspace: Path) -> Path:
    """Ten sites, of which the first so many have labels; who has them changes no image's place."""
    from grandrounds.data.partition.make import make_partition

    folder = workspace / f"sites_{group_by}_{labelled}_{seed}"
    make_partition(
        root=root,
        out=folder,
        seed=seed,
        group_by=group_by,
        scenario="few_labels",
        labelled_sites=[f"site-{number}" for number in range(1, labelled + 1)],
        **CONFIGURATION["partition"],
    )
    return folder


def _scores(job: Any, place: Path, partition: Path, labelled: list[str]) -> dict[str, Any]:
    """Scores of three models, with a threshold chosen on validation images, the code's, and none.

    ``last`` and ``selected`` have the threshold from all sites' validation images; of ``labelled_choice`` model and
    threshold are those that the labelled sites' validation images choose.
    """
    from grandrounds.evaluation.metrics import classification_metrics
    from grandrounds.evaluation.one_vs_rest import CODE_THRESHOLD, choose_threshold, macro, one_vs_rest

    models = {name: place / "results" / f"{name}.pt" for name in ("last", "selected")}
    kept = sorted(place.glob("state/*/server/parts/labelled_choice@*.pt"))
    models |= {"labelled_choice": kept[-1]} if kept else {}
    found: dict[str, Any] = {}
    for name, weights in models.items():
        predictions = _predictions(job, weights, partition)
        choosing = labelled if name == "labelled_choice" else list(predictions)
        threshold = choose_threshold(*_together(predictions, choosing, "val"))
        thresholds = {"validation": threshold, "fixed": CODE_THRESHOLD, "argmax": None}
        test = _together(predictions, list(predictions), "test")
        found[name] = {
            "threshold": threshold,
            "one_vs_rest": {rule: macro(one_vs_rest(*test, value))._asdict() for rule, value in thresholds.items()},
            "classes": [scores._asdict() for scores in one_vs_rest(*test, threshold)],
            **classification_metrics(*test),
        }
    return found


Predicted = tuple[np.ndarray, np.ndarray]


def _predictions(job: Any, weights: Path, partition: Path) -> dict[str, dict[str, Predicted]]:
    """Labels and probabilities of each site's validation and test images."""
    from grandrounds.data.site import load_site_data, locate_dataset
    from grandrounds.deployment.simulate import choose_sites
    from grandrounds.evaluation.external import load_trained, predict
    from grandrounds.protocol.problem import Problem

    problem = Problem.from_dict(job.options("problem"))
    model = load_trained(problem.model_spec(pretrained=False), weights)
    found: dict[str, dict[str, Predicted]] = {}
    for site in choose_sites(None, partition)[0]:
        location = locate_dataset(site, problem.dataset, [partition])
        cache = Path(os.environ["GRANDROUNDS_CACHE"])
        data = load_site_data(location, problem.classes, problem.image_size, problem.channels, cache)
        parts = (("val", data.rows("val")), ("test", data.rows("test")))
        found[site] = {
            part: (data.labels[rows], predict(model, data.images, rows, torch.device("cpu")).double().numpy())
            for part, rows in parts
        }
    return found


def _together(predictions: dict[str, dict[str, Predicted]], sites: list[str], part: str) -> Predicted:
    labels, probabilities = zip(*(predictions[site][part] for site in sites), strict=True)
    return np.concatenate(labels), np.concatenate(probabilities)


def _diagnostics(place: Path) -> dict[str, list[float | None]]:
    """What unlabelled sites tell, as means over them in each round in which they trained."""
    from grandrounds.federation.server.record import read_events

    rounds: dict[int, list[dict[str, float]]] = {}
    for event in read_events(place / "results"):
        if event["event"] == "answer" and event["task"] == "train" and "kept" in event["metrics"]:
            rounds.setdefault(event["round"], []).append(event["metrics"])
    means: dict[str, list[float | None]] = {"round": list(map(float, sorted(rounds)))}
    for name in DIAGNOSTICS:
        for _, metrics in sorted(rounds.items()):
            known = [m[name] for m in metrics if name in m]
            means.setdefault(name, []).append(round(sum(known) / len(known), 5) if known else None)
    return means


def _relations(place: Path) -> dict[int, Any]:
    """Every fifth round's matrices: of the labelled sites, and the mean of the unlabelled sites' where released."""
    from grandrounds.federation.server.record import read_events
    from grandrounds.reporting.figures.relations import mean_of_known

    found: dict[int, Any] = {}
    for event in read_events(place / "results"):
        if event["event"] == "relation" and event["round"] % SHOWN_ROUNDS == 0 and "matrix" in event:
            told = mean_of_known([np.array(event["matrix"])], [np.array(event["support"])])
            own = event["own"].values()
            matrices, supports = [np.array(one["matrix"]) for one in own], [np.array(one["support"]) for one in own]
            found[event["round"]] = {
                "labelled": _rows(told),
                "support": event["support"],
                "unlabelled": _rows(mean_of_known(matrices, supports)) if own else None,
            }
    return found


def _rows(matrix: np.ndarray) -> list[list[float] | None]:
    return [None if np.isnan(row).any() else row.round(6).tolist() for row in matrix]


def _own_support(place: Path) -> dict[int, list[int]]:
    """Patients surely taken for each class, over all unlabelled sites; -1 where every site withholds the class."""
    from grandrounds.federation.server.record import read_events

    found: dict[int, list[int]] = {}
    for event in read_events(place / "results"):
        if event["event"] == "relation" and event["own"]:
            supports = np.array([one["support"] for one in event["own"].values()])
            shown = np.where(supports > 0, supports, 0).sum(axis=0)
            found[event["round"]] = np.where((supports < 0).all(axis=0), -1, shown).tolist()
    return found


if __name__ == "__main__":
    main()
