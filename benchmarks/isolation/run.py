"""What a training child costs: CPU time and memory of a round with it and without, at one site.

Runs of few and of many rounds are taken in turn, with the child and without, each in a process of its own. The difference
of many and few rounds is the cost of a round, what is left of the few is the start. CPU time is of the run's processes
together; memory is their proportional set size at its peak, with the server's part, which is in the same process. The
last models must be equal to the bit. HAM10000 is left out where it is not in ``$GRANDROUNDS_DATA``.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import resource
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import in_child, run, table

FEW, MANY = 1, 6
CASES = (
    ("drawn images", "phantom", "compact", 64, 40),
    ("HAM10000", "skin", "efficientnet_lite0", 96, 12),
)
EVERY = 20
"""Of the images of HAM10000 that the site has."""
SITE = "site-1"


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All cases, each with and without a child in turn."""
    from benchmarks.experiment import DATA

    found = []
    for title, dataset, backbone, side, steps in CASES:
        if dataset == "skin" and not (DATA / "ham10000").is_dir():
            continue
        sizes = {"dataset": dataset, "backbone": backbone, "side": 32 if options.quick else side}
        sizes |= {"steps": 2 if options.quick else steps}
        turns = []
        for _ in range(1 if options.quick else options.turns):
            turns.append(
                {
                    isolation: {
                        rounds: in_child("benchmarks.isolation.run.case", isolation=isolation, rounds=rounds, **sizes)
                        for rounds in (FEW, MANY)
                    }
                    for isolation in ("none", "process")
                }
            )
        found.append(compared(f"{title}, {backbone}, {side} px, {steps} steps", turns))
    return {"cases": found, "rounds": [FEW, MANY]}


def case(isolation: str, rounds: int, dataset: str, backbone: str, side: int, steps: int) -> dict[str, Any]:
    """CPU time, peak memory and digest of the last model of a run."""
    import torch

    from benchmarks.cores.run import peak_pss
    from benchmarks.parties import QUIET
    from grandrounds.deployment.jobs import load_job
    from grandrounds.deployment.presets import with_options
    from grandrounds.deployment.simulate import simulate

    options = [f"controller.rounds={rounds}", f"problem.backbone={backbone}", f"executor.steps={steps}"]
    problem = [f"problem.image_size={side}", "executor.prefetch=off", "controller.min_sites=1"]
    with tempfile.TemporaryDirectory() as name, peak_pss() as peak:
        folder = Path(name)
        os.environ |= {"GRANDROUNDS_CACHE": str(folder / "cache"), "GRANDROUNDS_ISOLATION": isolation}
        images = None
        if dataset == "skin":
            images, classes = _skin(folder / "images")
            problem += ["problem.dataset=skin", f"problem.classes={json.dumps(classes)}"]
        job = with_options(load_job("fedavg"), [*QUIET, *problem, *options])
        simulate(job, folder / "run", [SITE], images)
        last = torch.load(folder / "run" / "results" / "last.pt", weights_only=True)
    digest = hashlib.sha256()
    for value in last.values():
        digest.update(value.contiguous().numpy().tobytes())
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(one.ru_utime + one.ru_stime for one in usage)
    return {"cpu_seconds": round(cpu, 2), "peak_mib": round(sum(peak), 1), "model": digest.hexdigest()}


def _skin(folder: Path) -> tuple[Path, list[str]]:
    """A site with some images of HAM10000: the folder that describes it, and the classes."""
    from benchmarks.experiment import DATA

    source = DATA / "ham10000"
    with (source / "ham10000_manifest.csv").open(newline="") as stream:
        records = list(csv.DictReader(stream))[::EVERY]
    folder.mkdir(parents=True)
    with (folder / "skin.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["image", "label", "split", "patient"])
        lesions = sorted({record["lesion"] for record in records})
        splits = {lesion: {0: "val", 1: "test"}.get(number % 10, "train") for number, lesion in enumerate(lesions)}
        for record in records:
            split = splits[record["lesion"]]
            writer.writerow([record["image"], record["label"], split, record["lesion"]])
    entry = {"manifest": str(folder / "skin.csv"), "root": str(source / "ham10000_200x150.zip")}
    (folder / "grandrounds.json").write_text(json.dumps({"datasets": {"skin": entry}}))
    return folder, sorted({record["label"] for record in records})


def compared(title: str, turns: list[dict[str, dict[int, dict[str, Any]]]]) -> dict[str, Any]:
    """Medians over the turns of the cost of a round and of the start.

    Raises:
        SystemExit: if the models of two runs differ.
    """
    if len({turn[isolation][MANY]["model"] for turn in turns for isolation in turn}) != 1:
        raise SystemExit(f"{title}: the models with a child and without differ")
    cost = {}
    for isolation in ("none", "process"):
        runs = [turn[isolation] for turn in turns]
        rounds = [(found[MANY]["cpu_seconds"] - found[FEW]["cpu_seconds"]) / (MANY - FEW) for found in runs]
        starts = [found[FEW]["cpu_seconds"] - round_ * FEW for found, round_ in zip(runs, rounds, strict=True)]
        cost[isolation] = {
            "round_cpu_seconds": round(statistics.median(rounds), 3),
            "start_cpu_seconds": round(statistics.median(starts), 2),
            "peak_mib": round(statistics.median(found[MANY]["peak_mib"] for found in runs), 1),
        }
    without, within = cost["none"], cost["process"]
    return {
        "case": title,
        **cost,
        "round_percent": round(100 * (within["round_cpu_seconds"] / without["round_cpu_seconds"] - 1), 1),
        "more_mib": round(within["peak_mib"] - without["peak_mib"], 1),
        "turns": turns,
    }


def tables(result: dict[str, Any]) -> str:
    columns = {
        "case": "case",
        "CPU s of a round without": "none.round_cpu_seconds",
        "with": "process.round_cpu_seconds",
        "more (%)": "round_percent",
        "CPU s of the start without": "none.start_cpu_seconds",
        "with ": "process.start_cpu_seconds",
        "peak MiB without": "none.peak_mib",
        "more MiB": "more_mib",
    }
    return table(columns, result["cases"], 2)


if __name__ == "__main__":
    run(__file__, measured, tables, timed=False, turns={"type": int, "default": 3})
