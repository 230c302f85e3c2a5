"""FedPerl's proof of concept on CIFAR-10 (and, by ``--benchmark``, on Fashion-MNIST): Table 1 of the paper.

Every run resumes where it was interrupted, and its result is a file of its own in ``results/<size>/``, written when it
ends.

    python benchmarks/fedperl_cifar10/run.py --root CIFAR10_FOLDER --workspace runs/fedperl_cifar10 --workers 2
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from grandrounds.deployment.processes import machine, run_all

HERE = Path(__file__).parent


def main() -> None:
    """Run what has no result yet, a few runs at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of the data set")
    parser.add_argument("--workspace", type=Path, default=Path("runs/fedperl_cifar10"))
    parser.add_argument("--benchmark", type=Path, default=HERE, help="folder with the configuration and the results")
    parser.add_argument("--size", default="reduced", help="which of the configuration's sizes")
    parser.add_argument("--workers", type=int, default=1, help="runs at once; each uses one CPU thread")
    parser.add_argument("--rounds", type=int, help="only so many rounds, to try it; results go into the workspace")
    parser.add_argument("--only", help="method:distribution:seed, run in this process")
    arguments = parser.parse_args()
    configuration = json.loads((arguments.benchmark / "configuration.json").read_text())
    if arguments.only:
        run(arguments, configuration, *arguments.only.split(":"))
        return
    tasks = [
        (method, distribution, seed)
        for seed in configuration["seeds"]
        for distribution in configuration["distributions"]
        for method in configuration["methods"]
        if not result_file(arguments, method, distribution, seed).exists()
    ]
    for distribution, seed in sorted({task[1:] for task in tasks}):
        divide(arguments, configuration, distribution, seed)
    command = [sys.executable, __file__, *sys.argv[1:], "--only"]
    run_all(([*command, ":".join(map(str, task))] for task in tasks), arguments.workers)


def result_file(arguments: argparse.Namespace, method: str, distribution: str, seed: int | str) -> Path:
    folder = arguments.workspace / f"tried_{arguments.rounds}" if arguments.rounds else arguments.benchmark / "results"
    return Path(folder) / arguments.size / f"{method}_{distribution}_{seed}.json"


def divide(arguments: argparse.Namespace, configuration: Any, distribution: str, seed: int) -> tuple[Path, Any]:
    """Write the partition, unless it is there, and return its folder and what it says."""
    from grandrounds.data.fedmatch_clients import make_fedmatch_partition

    out = arguments.workspace / f"sites_{arguments.size}_{distribution}_{seed}"
    options = {"unpack_to": arguments.workspace / "images", **configuration["sizes"][arguments.size]["partition"]}
    return out, make_fedmatch_partition(
        configuration["dataset"], arguments.root, out, distribution, seed=seed, **options
    )


def options_of(configuration: Any, size: str, method: str) -> list[str]:
    """All options of a method, the later ones taking precedence."""
    sized, entry = configuration["sizes"][size], configuration["methods"][method]
    if entry["job"] == "fedavg":
        training = [*configuration["all_labels"], *sized["all_labels"]]
    else:
        training = configuration["semi_supervised"]
    return [*configuration["common"], *sized["options"], *training, *entry["options"]]


def run(arguments: argparse.Namespace, configuration: Any, method: str, distribution: str, seed: str) -> None:
    """Run one method with one distribution and seed, and write its result."""
    os.environ.setdefault("GRANDROUNDS_CACHE", str((arguments.workspace / "cache").absolute()))
    from grandrounds.deployment.jobs import load_job, with_options
    from grandrounds.deployment.simulate import choose_sites, simulate
    from grandrounds.files import write_json

    partition, description = divide(arguments, configuration, distribution, int(seed))
    sites, problem = choose_sites(None, partition)
    job = load_job(configuration["methods"][method]["job"])
    job.options("problem").update(problem)
    rounds = [f"controller.rounds={arguments.rounds}"] if arguments.rounds else []
    job = with_options(job, [*options_of(configuration, arguments.size, method), *rounds, f"controller.seed={seed}"])
    file = result_file(arguments, method, distribution, seed)
    place = arguments.workspace / f"{file.parent.parent.name}_{arguments.size}" / file.stem
    summary = simulate(job, place, sites, sites_dir=partition)
    result = {
        "method": method,
        "distribution": distribution,
        "seed": int(seed),
        "size": arguments.size,
        "selected": summary["selected"],
        "accuracy": {
            "selected": _mean_accuracy(summary["test"]),
            "last": accuracy_of(place / "results" / "last.pt", job.options("problem"), partition, sites),
        },
        "test_images": sum(round(scores["common.n"]) for scores in summary["test"].values()),
        **_course(place),
        "used_up": description["used_up"],
        "manifests": _digest(description["sites"]),
        "bytes": _bytes(summary["bytes"]),
        "seconds": summary["seconds"],
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "options": {part: job.options(part) for part in ("controller", "executor")},
        "versions": summary["versions"],
        "machine": machine(),
    }
    write_json(file, result)


def accuracy_of(file: Path, problem: dict[str, Any], partition: Path, sites: list[str]) -> float:
    """A model's accuracy over the test images of all sites."""
    import torch

    from grandrounds.data.site import load_site_data, locate_dataset
    from grandrounds.evaluation.external import predict
    from grandrounds.models.registry import build_model
    from grandrounds.protocol.problem import Problem

    told = Problem.from_dict(problem)
    network = build_model(told.model_spec(pretrained=False), seed=0)
    network.load_state_dict(torch.load(file, weights_only=True))
    right = total = 0
    for site in sites:
        location = locate_dataset(site, told.dataset, [partition])
        cache = Path(os.environ["GRANDROUNDS_CACHE"])
        data = load_site_data(location, told.classes, told.image_size, told.channels, cache)
        rows = data.rows("test")
        predicted = predict(network, data.images, rows, torch.device("cpu")).argmax(dim=1).numpy()
        right += int((predicted == data.labels[rows]).sum())
        total += len(rows)
    return right / total


def _mean_accuracy(test: dict[str, dict[str, float]]) -> float:
    """Over images: sites have the same number of them."""
    return sum(s["common.accuracy"] * s["common.n"] for s in test.values()) / sum(s["common.n"] for s in test.values())


def _course(place: Path) -> dict[str, Any]:
    """Scores on the validation images; share of accepted pseudo-labels and their accuracy over each ten rounds."""
    from grandrounds.federation.server.record import read_events

    events = read_events(place / "results")
    course: dict[str, Any] = {
        "validation": {event["round"]: round(event["mean"], 4) for event in events if event["event"] == "score"}
    }
    for name in ("accepted", "pseudo_label_accuracy"):
        decades: dict[int, list[float]] = {}
        for event in events:
            if event["event"] == "answer" and name in event["metrics"]:
                decades.setdefault((event["round"] + 9) // 10 * 10, []).append(event["metrics"][name])
        course[name] = {end: round(sum(values) / len(values), 4) for end, values in sorted(decades.items())}
    return course


def _bytes(sites: dict[str, dict[str, int]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for parts in sites.values():
        for name, size in parts.items():
            totals[name] = totals.get(name, 0) + size
    return dict(sorted(totals.items()))


def _digest(sites: dict[str, dict[str, Any]]) -> str:
    """SHA-256 over the manifests' digests: equal if every site had the same manifest."""
    return hashlib.sha256("".join(f"{site} {sites[site]['sha256']}\n" for site in sorted(sites)).encode()).hexdigest()


if __name__ == "__main__":
    main()
