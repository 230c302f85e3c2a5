"""Compare an arm with itself: are the p values of pairs of re-runs uniform, and is the corrected interval conservative?

A pair has two re-runs of one small arm on the same divisions of one set of drawn pictures; nothing but the seed of training
differs. Every pair has divisions and seeds of its own, so pairs are independent given the pictures. Finished pairs are kept
in ``--workspace``; the script goes on from those of the same version of the package and the same choices.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special, stats

from benchmarks.experiment import Row, Run, tested
from benchmarks.measure import run
from benchmarks.origins import code
from benchmarks.processes import cpu_seconds
from benchmarks.results import Pair, resampled_margin
from benchmarks.tables import markdown_table
from grandrounds.data.datasets.phantom import PHANTOM_CLASSES
from grandrounds.data.manifest import read_manifest
from grandrounds.data.partition.divide import iid
from grandrounds.data.partition.files import write_partition
from grandrounds.data.partition.phantom_site import IMAGES_FILE, phantom_site
from grandrounds.data.partition.splits import assign_splits
from grandrounds.data.site import PHANTOM_NAME
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import simulate
from grandrounds.evaluation.comparisons import paired_by_seed
from grandrounds.evaluation.intervals import CONFIDENCE
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.protocol.tasks import SINGLE
from grandrounds.seeding import derive_seed, numpy_generator

PAIRS, DIVISIONS, SITES, IMAGES, SIDE = 100, 6, 2, 240, 32
SHARES = {"validation": 0.125, "test": 0.375, "labelled": 1.0}
RATIO = SHARES["test"] / (1 - SHARES["validation"] - SHARES["test"])
OPTIONS = (
    f"problem.image_size={SIDE}", "controller.rounds=2", "executor.steps=6", "executor.learning_rate=0.003",
    "executor.cpu_threads=1", "executor.device=cpu", "executor.prefetch=off",
)  # fmt: skip
SCORES = {"auc_macro": "AUC", "balanced_accuracy": "balanced accuracy"}
LEVEL = 1 - CONFIDENCE


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """The p values of all pairs."""
    count = 2 if options.quick else PAIRS
    choices = hashlib.sha256(repr((DIVISIONS, SITES, IMAGES, SIDE, SHARES, OPTIONS)).encode()).hexdigest()
    rows = options.workspace / f"pairs_{code()['package'][:12]}_{choices[:8]}.jsonl"
    rows.parent.mkdir(parents=True, exist_ok=True)
    found = [json.loads(line) for line in rows.read_text().splitlines()] if rows.is_file() else []
    for pair in range(len(found), count):
        before = cpu_seconds()
        sides = [_pair(options.workspace.absolute() / "pair", pair, division) for division in range(DIVISIONS)]
        found.append({"scores": sides, "cpu_seconds": round(cpu_seconds() - before, 2)})
        with rows.open("a") as stream:
            stream.write(json.dumps(found[-1]) + "\n")
    pairs = found[:count]
    return {
        "code": code(),
        "cpu_seconds": round(sum(one["cpu_seconds"] for one in pairs), 1),
        "scores": {name: _tested([one["scores"] for one in pairs], name) for name in SCORES},
    }


def _pair(folder: Path, pair: int, division: int) -> list[dict[str, float]]:
    """Scores of both re-runs on one division."""
    shutil.rmtree(folder, ignore_errors=True)
    os.environ["GRANDROUNDS_CACHE"] = str(folder / "cache")
    drawn = phantom_site("site-1", folder.parent / "pictures", size=SIDE, images=IMAGES, labelled=1.0).parent
    generator = numpy_generator("null", pair, division)
    records = read_manifest(drawn / "manifest.csv")
    sites = {
        site: assign_splits(own, generator, site=site, **SHARES) for site, own in iid(records, SITES, generator).items()
    }
    description = {"seed": division}
    made = write_partition(sites, folder / "sites", PHANTOM_NAME, drawn / IMAGES_FILE, PHANTOM_CLASSES, description)
    scores = []
    for side in range(2):
        seed = derive_seed("null", pair, division, side) % 2**31
        job, place = with_options(load_job("fedavg"), [*OPTIONS, f"controller.seed={seed}"]), folder / f"run-{side}"
        summary = simulate(job, place, list(sites), folder / "sites")
        finished = Run(Row("null", "fedavg", seed), job, place, folder / "sites", made, list(sites), summary)
        metrics = site_metrics(SINGLE, *tested(finished))
        scores.append({name: metrics[name] for name in SCORES})
    return scores


def _tested(pairs: list[list[list[dict[str, float]]]], name: str) -> dict[str, Any]:
    """The paired tests as in reports, and what a Kolmogorov-Smirnov test says of their p values."""
    p_values, corrected, spreads = [], [], []
    for pair in pairs:
        sides = Pair(*([division[side][name] for division in pair] for side in range(2)), RATIO)
        found = paired_by_seed(sides.ours, sides.theirs)
        margin = resampled_margin(found.high - found.mean, found.n, RATIO)
        p_values.append(found.p_value)
        corrected.append(_p_value(found.mean, margin, found.n))
        spreads.append(float(np.std(np.subtract(sides.ours, sides.theirs), ddof=1)))
    uniform = stats.kstest(p_values, "uniform")
    return {
        "p": p_values,
        "corrected_p": corrected,
        "deviation": float(np.sqrt(np.mean(np.square(spreads)) / 2)),
        "distance": float(uniform.statistic),
        "kolmogorov_smirnov_p": float(uniform.pvalue),
    }


def _p_value(mean: float, margin: float, n: int) -> float:
    """Of a mean with half of its interval, by Student's distribution."""
    return float(2 * special.stdtr(n - 1, -special.stdtrit(n - 1, 1 - LEVEL / 2) * abs(mean) / margin))


def tables(result: dict[str, Any]) -> str:
    rows = []
    for name, found in result["scores"].items():
        deciles = np.histogram(found["p"], bins=10, range=(0, 1))[0]
        below = [sum(p < LEVEL for p in found[kind]) for kind in ("p", "corrected_p")]
        cells = [found["deviation"], found["distance"], found["kolmogorov_smirnov_p"], *below]
        rows.append([SCORES[name], len(found["p"]), *cells, " ".join(map(str, deciles))])
    header = [
        *("score", "pairs", "deviation of a re-run", "largest distance from uniform", "p of that"),
        *("intervals without 0", "corrected intervals without 0", "pairs by tenth of p"),
    ]
    spent = f"{result['cpu_seconds'] / 60:.1f} CPU minutes"
    return f"{markdown_table(header, rows)}\n\n({spent}; package {result['code']['package'][:12]})"


if __name__ == "__main__":
    run(__file__, measured, tables, timed=False, workspace={"type": Path, "default": Path("runs/null")})
