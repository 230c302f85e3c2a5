"""Four hospitals with different networks and noisy labels, on blood cells (PBC Barcelona).

Half of the data set is the public pool, without labels; the other half is divided between four sites of equal size with
different classes (Dirichlet, 0.5) and one test set for all. Public and private images are drawn from these halves, as
``configuration.json`` says, so that a run takes a few minutes of one core. At all noise rates of a seed the images are the
same. No round is chosen by scores: what is reported is the last round and the mean of the last five.

The methods that share a loss start from the same networks: one pre-training on the own labels for each loss, kind of noise
and seed, whose weights are the sites' own (``weights`` in their ``grandrounds.json``). FedDF, whose networks come from the
server, has it in its first round.

Every run resumes where it was interrupted, and its result is a file of its own in ``results/``, written when it ends. The
settings come in the order of their importance: with ``--minutes`` no further run is started after that time.

    python benchmarks/mdhfl_pbc/run.py --root PBC_FOLDER --workspace runs/mdhfl_pbc --workers 2
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.data.partition.divide import SERVER
from grandrounds.data.partition.files import PUBLIC_NAME
from grandrounds.data.site import CONFIG_NAME
from grandrounds.deployment.processes import machine, run_all
from grandrounds.files import write_json

if TYPE_CHECKING:
    from grandrounds.deployment.jobs import Job

HERE = Path(__file__).parent
RESULTS = HERE / "results"
CONFIGURATION = json.loads((HERE / "configuration.json").read_text())
TRIAL_IMAGES = {"public_images": 64, "private_images": 200}
TRIAL = ["controller.rounds=2"]
TRIAL_PRETRAINING = ["executor.pretrain_epochs=1"]
TRIAL_EXCHANGE = ["controller.per_round=32"]
PRETRAINS_ITSELF = ("feddf",)
TOLD = ("pretrain_loss", "alignment_loss", "loss")


def main() -> None:
    """Run what has no result yet, a few runs at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="folder of PBC Barcelona")
    parser.add_argument("--workspace", type=Path, default=Path("runs/mdhfl_pbc"))
    parser.add_argument("--workers", type=int, default=1, help="runs at once; each uses one CPU thread")
    parser.add_argument("--settings", nargs="*", choices=CONFIGURATION["settings"], help="only these kinds of noise")
    parser.add_argument("--methods", nargs="*", choices=CONFIGURATION["methods"], help="only these methods")
    parser.add_argument("--seeds", nargs="*", type=int, default=CONFIGURATION["seeds"], help="only these seeds")
    parser.add_argument("--minutes", type=float, help="start no further run after so many minutes")
    parser.add_argument("--trial", action="store_true", help="two rounds of few images; results go to the workspace")
    parser.add_argument("--only", help="setting:method:seed, run in this process")
    parser.add_argument("--before", type=float, default=float("inf"), help="with --only: not after this time (Unix)")
    arguments = parser.parse_args()
    if arguments.only:
        if time.time() > arguments.before:
            return
        setting, method, seed = arguments.only.split(":")
        run(setting, method, int(seed), arguments.root, arguments.workspace, arguments.trial)
        return
    command = [sys.executable, __file__, "--root", str(arguments.root), "--workspace", str(arguments.workspace)]
    command += ["--trial"] if arguments.trial else []
    if arguments.minutes is not None:
        # All runs are queued at once, so each has to look at the clock when its turn comes.
        command += ["--before", str(time.time() + 60 * arguments.minutes)]
    run_all(([*command, "--only", task] for task in _waiting(arguments)), arguments.workers)


def _waiting(arguments: argparse.Namespace) -> Iterator[str]:
    """What has no result: settings in the order of the configuration, and in each all methods of a seed."""
    for setting in arguments.settings or CONFIGURATION["settings"]:
        for seed in arguments.seeds:
            for method in arguments.methods or CONFIGURATION["methods"]:
                if not _result(setting, method, seed, arguments.workspace if arguments.trial else None).exists():
                    yield f"{setting}:{method}:{seed}"


def _result(setting: str, method: str, seed: int, trial: Path | None) -> Path:
    return (trial / "trial_results" if trial else RESULTS) / f"{setting}_{method}_{seed}.json"


def run(setting: str, method: str, seed: int, root: Path, workspace: Path, trial: bool) -> None:
    """Run one method with one kind of noise and one seed, and write its result."""
    os.environ.setdefault("GRANDROUNDS_CACHE", str((workspace / "cache").absolute()))
    from grandrounds.data.partition.make import make_partition
    from grandrounds.deployment.jobs import load_job, with_options
    from grandrounds.deployment.simulate import choose_sites, simulate

    noise = {name: CONFIGURATION["settings"][setting][name] for name in ("noise", "noise_rate")}
    choices = {**CONFIGURATION["partition"], **noise, **(TRIAL_IMAGES if trial else {})}
    # One folder for each run: two that start at once must not write the same.
    place = workspace / ("trial" if trial else "runs") / f"{setting}_{method}_{seed}"
    partition = place / "sites"
    # Again the same after an interruption; what the server got beside it is no part of it.
    description = make_partition(root=root, out=partition, seed=seed, overwrite=True, **choices)
    sites, problem = choose_sites(None, partition)
    entry = CONFIGURATION["methods"][method]
    job = load_job(entry["job"])
    job.options("problem").update(problem)
    job = with_options(job, _options(method, trial, seed))
    give_to_server(partition)
    if entry["job"] not in PRETRAINS_ITSELF:
        start_from(pretrained(setting, job, sites, partition, workspace, trial, seed), partition)
    summary = simulate(job, place / "run", sites, sites_dir=partition)
    predictions = _predictions(place / "run", description["classes"])
    result = {
        "setting": setting,
        "method": method,
        "seed": seed,
        "trial": trial,
        "classes": description["classes"],
        "backbones": {site: said["facts"]["backbone"] for site, said in summary["registered"].items()},
        "test": summary["test"],
        "last_rounds": _last_rounds(place / "run", "test"),
        "aligned_rounds": _last_rounds(place / "run", "aligned"),
        "ensemble": _ensemble(predictions),
        "confusion": _confusion(predictions),
        "losses": _losses(place / "run"),
        "noise_matrices": description.get("noise_matrices"),
        "row_entropy": {e["round"]: e["row_entropy"] for e in summary["rounds"] if "row_entropy" in e},
        "weights": {e["round"]: e["weights"] for e in summary["rounds"] if "weights" in e},
        "manifests": {site: content["sha256"] for site, content in description["sites"].items()},
        "partition": choices,
        "bytes": summary["bytes"],
        "seconds": summary["seconds"],
        "options": {part: job.options(part) for part in ("controller", "executor")},
        "versions": summary["versions"],
        "machine": machine(),
    }
    target = _result(setting, method, seed, workspace if trial else None)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_json(target, result)


def _options(method: str, trial: bool, seed: int) -> list[str]:
    entry = CONFIGURATION["methods"][method]
    exchange = [] if entry["job"] in PRETRAINS_ITSELF else CONFIGURATION["exchange"]
    shortened = TRIAL + (TRIAL_EXCHANGE if exchange else TRIAL_PRETRAINING) if trial else []
    return [*CONFIGURATION["common"], *exchange, *entry["options"], *shortened, f"controller.seed={seed}"]


def pretrained(
    setting: str, job: Job, sites: int | list[str], partition: Path, workspace: Path, trial: bool, seed: int
) -> Path:
    """Networks that were trained on the sites' own labels with the job's loss; made once, also by runs that start together.

    Returns:
        The folder with a folder of each site, and in it ``own.pt``.
    """
    from grandrounds.deployment.jobs import load_job, with_options
    from grandrounds.deployment.simulate import simulate

    loss = job.options("executor")["loss"]
    place = workspace / ("trial" if trial else "pretrained") / f"{setting}_{loss}_{seed}"
    place.mkdir(parents=True, exist_ok=True)
    alone = load_job("mdhfl_local")
    alone.options("problem").update(job.options("problem"))
    shortened = TRIAL_PRETRAINING if trial else []
    choices = [*CONFIGURATION["common"], *CONFIGURATION["pretraining"], *shortened, f"executor.loss={loss}"]
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        simulate(with_options(alone, [*choices, f"controller.seed={seed}"]), place / "run", sites, sites_dir=partition)
    return place / "run" / "state" / "mdhfl_local"


def start_from(networks: Path, partition: Path) -> None:
    """Let each site start from its network in this folder."""
    for path in sorted(partition.glob(f"site-*/{CONFIG_NAME}")):
        content = json.loads(path.read_text())
        weights = str((networks / path.parent.name / "own.pt").absolute())
        [cells] = content["datasets"].keys() - {PUBLIC_NAME}
        write_json(path, content | {"models": {cells: {"weights": weights}}})


def give_to_server(partition: Path) -> None:
    """Let the server have the public images that every site has; FedDF distils there."""
    site = min(partition.glob(f"site-*/{CONFIG_NAME}"))
    public = json.loads(site.read_text())["datasets"][PUBLIC_NAME]
    location = {**public, "manifest": str((site.parent / public["manifest"]).absolute())}
    write_json(partition / SERVER / CONFIG_NAME, {"datasets": {PUBLIC_NAME: location}})


Predictions = dict[str, tuple[np.ndarray, np.ndarray]]


def _predictions(place: Path, classes: list[str]) -> Predictions:
    """Of each site's last model: labels and probabilities of the common test images, in the order of their names."""
    found: Predictions = {}
    for path in sorted((place / "state").glob("*/*/predictions_own.csv")):
        with path.open(newline="") as stream:
            rows = sorted(csv.DictReader(stream), key=lambda row: row["image"])
        labels = np.array([classes.index(row["label"]) for row in rows])
        probabilities = np.array([[float(row[f"probability_{name}"]) for name in classes] for row in rows])
        # They were written with six digits.
        found[path.parent.name] = labels, probabilities / probabilities.sum(axis=1, keepdims=True)
    return found


def _ensemble(predictions: Predictions) -> dict[str, float]:
    """Scores of the mean of all sites' predictions, which no site has."""
    from grandrounds.evaluation.metrics import classification_metrics

    labels = next(iter(predictions.values()))[0]
    if any(not np.array_equal(labels, others) for others, _ in predictions.values()):
        raise ValueError("the sites have different test images, and an ensemble needs the same")
    return classification_metrics(labels, np.mean([found for _, found in predictions.values()], axis=0))


def _confusion(predictions: Predictions) -> dict[str, list[list[int]]]:
    from grandrounds.evaluation.metrics import confusion_matrix

    return {
        site: confusion_matrix(labels, probabilities.argmax(axis=1), probabilities.shape[1]).tolist()
        for site, (labels, probabilities) in predictions.items()
    }


def _last_rounds(place: Path, moment: str) -> dict[str, dict[int, dict[str, float]]]:
    """Test scores of each site's model in the last rounds: at their end (``test``), or right after alignment."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for event in _answers(place):
        scores = {
            name.removeprefix(f"{moment}."): value
            for name, value in event["metrics"].items()
            if name.startswith(f"{moment}.")
        }
        if scores:
            found.setdefault(event["site"], {})[event["round"]] = scores
    return found


def _losses(place: Path) -> dict[str, dict[int, dict[str, float]]]:
    found: dict[str, dict[int, dict[str, float]]] = {}
    for event in _answers(place):
        told = {name: round(event["metrics"][name], 5) for name in TOLD if name in event["metrics"]}
        found.setdefault(event["site"], {})[event["round"]] = told
    return found


def _answers(place: Path) -> Iterator[dict[str, Any]]:
    from grandrounds.federation.server.record import read_events

    for event in read_events(place / "results"):
        if event["event"] == "answer" and event["task"] == "train":
            yield event


if __name__ == "__main__":
    main()
