"""Fed-Align-CL between the four devices of HAM10000, malignant against benign, beside its baselines and ablations.

All runs of a seed have the same images at the same sites and start from the same weights. ``single`` is a model for each
site, trained there alone (tested at the other sites it is the row Cross), ``mix`` one model of all images together, the
others are federations of the sites. Every model comes out of the same local loop with as many iterations of, together, as
many images. Two models of a run are tested: that of the last round, which no score has chosen, and that with the least
validation loss, as the paper does.

Every run resumes where it was interrupted, and its result is a file of its own in ``results/`` beside the configuration,
written when it ends. ``--configuration`` names another benchmark of this kind.

    python benchmarks/fedperl_ham10000/pretrain.py --cifar10 CIFAR10_NPZ --out runs/fed_align_cl_ham10000/start.pt
    python benchmarks/fed_align_cl_ham10000/run.py --root HAM10000_FOLDER --workers 2
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measures import measured, told_by_sites

from grandrounds.deployment.processes import machine, run_all
from grandrounds.files import replacing, write_json

DEFAULT = Path(__file__).parent / "configuration.json"
POOLED = "pooled"
MODELS = ("last", "selected")
SHOWN = ("scores", "selected", "losses")


def main() -> None:
    """Run what has no result yet, a few runs at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="folder of the data set")
    parser.add_argument("--configuration", type=Path, default=DEFAULT)
    parser.add_argument("--workspace", type=Path, help="default: runs/ and the name of the configuration's folder")
    parser.add_argument("--workers", type=int, default=1, help="runs at once; each uses one CPU thread")
    parser.add_argument("--settings", nargs="*", help="only these settings")
    parser.add_argument("--only", help="setting:method:seed, run in this process")
    parser.add_argument("--set", nargs="*", default=[], help="other options, to try them; the result is printed alone")
    arguments = parser.parse_args()
    benchmark = Benchmark(arguments.configuration.absolute(), arguments.root, arguments.workspace, arguments.set)
    if arguments.only:
        setting, method, seed = arguments.only.split(":")
        benchmark.run(setting, method, int(seed))
        return
    command = [sys.executable, __file__, "--root", str(arguments.root), "--configuration", str(arguments.configuration)]
    command += ["--workspace", str(benchmark.workspace)]
    run_all(([*command, "--only", task] for task in benchmark.waiting(arguments.settings)), arguments.workers)


class Benchmark:
    """The runs that a configuration names.

    Args:
        configuration: a JSON file.
        root: of its data set.
        workspace: of its runs.
        trial: options that are tried out; then nothing is written to the results.
    """

    def __init__(self, configuration: Path, root: Path, workspace: Path | None, trial: list[str]) -> None:
        self.content: dict[str, Any] = json.loads(configuration.read_text())
        self.results = configuration.parent / "results"
        self.root = root
        self.workspace = (workspace or Path("runs") / configuration.parent.name).absolute()
        self.trial = trial

    def waiting(self, settings: list[str] | None) -> Iterator[str]:
        """What has no result: settings in their order, and in each all methods of a seed."""
        for setting, content in self.content["settings"].items():
            for seed in content["seeds"]:
                for method in content["methods"]:
                    if setting in (settings or [setting]) and not self._result(setting, method, seed).exists():
                        yield f"{setting}:{method}:{seed}"

    def run(self, setting: str, method: str, seed: int) -> None:
        """Run one method with one seed and write its result."""
        os.environ.setdefault("GRANDROUNDS_CACHE", str(self.workspace / "cache"))
        entry, content = self.content["methods"][method], self.content["settings"][setting]
        torch.set_num_threads(1)
        partition, pooled = self._partitions(setting, seed)
        sites = content.get("sites") or _sites(partition)
        trained = {
            "alone": {site: [site] for site in sites},
            "pooled": {POOLED: [POOLED]},
            "federated": {"federation": sites},
        }[entry["training"]]
        folder = pooled if entry["training"] == "pooled" else partition
        found = {name: self._train(setting, method, seed, group, folder) for name, group in trained.items()}
        models = {
            name: {
                "scores": _scores(job, place, partition, sites, self._draws(setting, entry, seed)),
                "selected": summary["selected"],
                "losses": _losses(summary, place),
                "bytes": summary["bytes"],
                "seconds": summary["seconds"],
            }
            for name, (job, place, summary) in found.items()
        }
        job, _, summary = next(iter(found.values()))
        result = {
            "setting": setting,
            "method": method,
            "seed": seed,
            "sites": sites,
            "models": models,
            "options": {part: job.options(part) for part in ("problem", "controller", "executor")},
            "start": self._start_digest(),
            "versions": summary["versions"],
            "machine": machine(),
        }
        result["options"]["problem"].pop("weights")
        self._write(result)

    def _train(self, setting: str, method: str, seed: int, sites: list[str], partition: Path) -> tuple[Any, Path, Any]:
        """One federation, or one site or all images alone: the job, its workspace and its summary."""
        from grandrounds.deployment.jobs import load_job, with_options
        from grandrounds.deployment.simulate import choose_sites, simulate

        entry, content = self.content["methods"][method], self.content["settings"][setting]
        job = load_job(entry["job"])
        job.options("problem").update(choose_sites(None, partition)[1])
        options = [*self.content["common"], *content.get("options", []), *entry["options"], *self.trial]
        start = [f"problem.weights={self._start}"] if self.content["start_weights"] else []
        job = with_options(job, [*options, *start, f"controller.seed={seed}"])
        place = self.workspace / ("trial" if self.trial else "runs") / f"{setting}_{method}_{seed}" / "-".join(sites)
        if self.trial:
            job = with_options(job, ["controller.resume=never"])
        return job, place, simulate(job, place, sites, sites_dir=partition)

    def _partitions(self, setting: str, seed: int) -> tuple[Path, Path]:
        """The sites' images, and the same images at one site; where asked, training images are left out."""
        from grandrounds.data.partition.files import read_partition, write_partition
        from grandrounds.data.partition.make import make_partition

        folder = self.workspace / f"sites_{seed}"
        made = make_partition(root=self.root, out=folder, seed=seed, **self._data(seed))
        shared = {"images_root": _location(folder, made).root, "classes": made["classes"]}
        preprocess = {"preprocess": made["preprocess"]} if "preprocess" in made else {}
        records = {site: _records(folder, site) for site in _sites(folder)}
        share = self.content["settings"][setting].get("malignant_share")
        if share is not None:
            records = {site: _thinned(own, share, seed, site) for site, own in records.items()}
            folder = self.workspace / f"sites_{setting}_{seed}"
            write_partition(records, folder, made["dataset_name"], **shared, **preprocess, description={"seed": seed})
        kept = self.content["settings"][setting].get("sites") or list(records)
        pooled = self.workspace / f"pooled_{setting}_{seed}"
        together = {POOLED: [record for site in kept for record in records[site]]}
        write_partition(together, pooled, made["dataset_name"], **shared, **preprocess, description={"seed": seed})
        read_partition(folder)
        return folder, pooled

    def _data(self, seed: int) -> dict[str, Any]:
        data: dict[str, Any] = self.content["data"]
        own = {"simulated_vendors": self.workspace / f"vendors_{seed}"} if data.get("simulated_vendors") else {}
        return {**data, **own}

    def _draws(self, setting: str, entry: dict[str, Any], seed: int) -> bool:
        """Whether a picture of the embeddings is kept: of federations, for the first seed, where it is shown."""
        shown = self.content["settings"][setting].get("table") != "short"
        return bool(shown and entry["training"] == "federated" and seed == self.content["seeds"][0])

    @property
    def _start(self) -> Path:
        return self.workspace / "start.pt"

    def _start_digest(self) -> str | None:
        return hashlib.sha256(self._start.read_bytes()).hexdigest() if self.content["start_weights"] else None

    def _result(self, setting: str, method: str, seed: int) -> Path:
        return self.results / f"{setting}_{method}_{seed}.json"

    def _write(self, result: dict[str, Any]) -> None:
        planes = split_planes(result)
        if self.trial:
            print(json.dumps({name: {k: m[k] for k in SHOWN} for name, m in result["models"].items()}))
            return
        self.results.mkdir(exist_ok=True)
        target = self._result(result["setting"], result["method"], result["seed"])
        if planes:
            with replacing(target.with_name(f"plane_{target.name}")) as stream:
                stream.write(json.dumps(planes, separators=(",", ":")).encode() + b"\n")
        write_json(target, result)


def split_planes(result: dict[str, Any]) -> dict[str, Any]:
    """Take the places of test images in a plane out of a result; those of the federation's last model are returned."""
    found: dict[str, Any] = {}
    for name, trained in result["models"].items():
        for model, scores in trained["scores"].items():
            planes = {layer: told.pop("plane") for layer, told in scores["layers"].items() if "plane" in told}
            images = scores.pop("plane", None)
            if (name, model) == ("federation", MODELS[0]) and planes:
                found = {"images": images, "layers": planes}
    return found


def _scores(job: Any, place: Path, partition: Path, sites: list[str], plane: bool) -> dict[str, Any]:
    """Of the models that are tested; where sites keep a part of the model, by what they said of their own images."""
    if job.options("executor")["averaged"] != "all":
        return {MODELS[0]: {"sites": told_by_sites(place / "results"), "layers": {}}}
    weights = {model: place / "results" / f"{model}.pt" for model in MODELS}
    return {model: measured(job, path, partition, sites, plane) for model, path in weights.items()}


def _sites(partition: Path) -> list[str]:
    from grandrounds.deployment.simulate import choose_sites

    return choose_sites(None, partition)[0]


def _location(folder: Path, made: dict[str, Any]) -> Any:
    from grandrounds.data.site import locate_dataset

    return locate_dataset(next(iter(made["sites"])), made["dataset_name"], [folder])


def _records(folder: Path, site: str) -> list[Any]:
    from grandrounds.data.manifest import read_manifest

    return list(read_manifest(folder / site / "manifest.csv").records)


def _thinned(records: list[Any], share: float, seed: int, site: str) -> list[Any]:
    """Leave out training images of a class, drawn at random, until so many of a hundred are malignant."""
    from grandrounds.seeding import numpy_generator

    train = [record for record in records if record.split == "train"]
    malignant = [record for record in train if record.label == "malignant"]
    benign = [record for record in train if record.label != "malignant"]
    most = min(len(malignant), round(len(benign) * share / (1 - share)))
    least = min(len(benign), round(most * (1 - share) / share))
    generator = numpy_generator(seed, "thinned", site)
    kept = {
        own[index].image
        for own, count in ((malignant, most), (benign, least))
        for index in generator.permutation(len(own))[:count]
    }
    return [record for record in records if record.split != "train" or record.image in kept]


def _losses(summary: dict[str, Any], place: Path) -> dict[str, list[float | None]]:
    """Means over sites of what they tell of each round."""
    from grandrounds.federation.server.record import read_events

    names = ("loss", "loss_alignment", "loss_discriminator", "validation.log_loss")
    rounds: dict[int, list[dict[str, float]]] = {}
    for event in read_events(place / "results"):
        if event["event"] == "answer" and event["task"] == "train":
            rounds.setdefault(event["round"], []).append(event["metrics"])
    told: dict[str, list[float | None]] = {}
    for name in names:
        values = [[site[name] for site in sites if name in site] for _, sites in sorted(rounds.items())]
        told[name] = [round(float(np.mean(known)), 5) if known else None for known in values]
    return told


if __name__ == "__main__":
    main()
