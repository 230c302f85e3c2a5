"""What partial training saves: time of a step and of a round, bytes, memory, by method and by the layers that are trained.

EfficientNet-Lite0 from ImageNet at 112 pixels, two sites with the same drawn images. Each case runs in a process of its own,
and the cases of a method follow one another. CPU times are those of the last rounds, when the kept features have been
computed: of a site's training, and of a whole round of both sites. About a quarter of an hour of CPU time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.measure import clocked, in_child, peak_mib, run
from benchmarks.tables import markdown_table
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.executor import SiteExecutor
from grandrounds.protocol.messages import Payload, Result

MODULE = "benchmarks.partial_training.run"
ALL, FROM_8, CACHED, HEAD = "all layers", "from block 8", "from block 8, kept features", "head, kept features"
CASES = {
    ALL: ("all", 0),
    FROM_8: ("from:8", 0),
    CACHED: ("from:8", 1),
    HEAD: ("head", 1),
}
SITES, STEPS, COUNTED = 2, 8, 3
# Rounds before those that count: the first of all, and those in which most features are computed.
WARM_UP = {0: 1, 1: 5}
METHODS: dict[str, tuple[str, ...]] = {
    "fedavg": (f"executor.steps={STEPS}",),
    "ssfl": (f"executor.steps={STEPS}", "executor.threshold=0"),
    "fedperl": (f"executor.steps={STEPS}", "executor.threshold=0", "controller.warm_up=0"),
    "fedirm": ("executor.batch_size=16", "executor.epochs=1", "controller.unlabelled_start=1"),
    "fed_align_cl": (f"executor.iterations={STEPS}", f"executor.pace={STEPS}"),
}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All methods and cases."""
    methods = ["fedavg"] if options.quick else list(METHODS)
    wanted = [(method, layers) for method in methods for layers in CASES if possible(method, layers)]
    cases = [in_child(f"{MODULE}.case", method=method, layers=layers) for method, layers in wanted]
    return {"sites": SITES, "steps": STEPS, "cases": cases}


def possible(method: str, layers: str) -> bool:
    """Alignment has nothing to do where the encoder is frozen."""
    return method != "fed_align_cl" or layers != HEAD


def case(method: str, layers: str) -> dict[str, Any]:
    """One method with one choice of layers."""
    from benchmarks.parties import one_set_of_images, run_clocked, site_names
    from grandrounds.deployment.jobs import load_job, with_options

    trainable, views = CASES[layers]
    rounds = WARM_UP[views] + COUNTED + 1
    common = (
        "controller.validate_every=0",
        "executor.cpu_threads=1",
        "executor.device=cpu",
        "problem.image_size=112",
        "problem.backbone=efficientnet_lite0",
        "problem.weights=imagenet",
        f"problem.trainable={trainable}",
        f"executor.feature_cache={views}",
        f"controller.rounds={rounds}",
    )
    job = with_options(load_job(method), [*common, *METHODS[method]])
    job.server["components"] = [{"id": "clock", "path": "benchmarks.parties.RoundClock", "args": {}}]
    module, _, name = job.client["executors"][0]["executor"]["path"].rpartition(".")
    training = timed_training(getattr(import_module(module), name))
    with tempfile.TemporaryDirectory() as folder:
        images = one_set_of_images(Path(folder) / "images", size=112, images=240)
        clock, summary = run_clocked(job, Path(folder) / "run", site_names(SITES), images)
    costs = clock.rounds()[-COUNTED:]
    sent = sum(count for name, count in summary["bytes"]["site-1"].items() if name.startswith("up."))
    return {
        "method": method,
        "layers": layers,
        "training_cpu_seconds": round(statistics.median(training[-COUNTED * SITES :]), 4),
        "round_cpu_seconds": round(statistics.median(cost.cpu for cost in costs), 4),
        "bytes_up_per_round": sent // rounds,
        "peak_mib": round(peak_mib(), 1),
    }


def timed_training(executor: type[SiteExecutor]) -> list[float]:
    """CPU seconds of each later call of an executor's training, in a list that grows."""
    seconds: list[float] = []
    train = executor.train

    def timed(self: SiteExecutor, payload: Payload, context: SiteContext) -> Result:
        cost, result = clocked(lambda: train(self, payload, context))
        seconds.append(cost.cpu)
        return result

    executor.train = timed  # type: ignore[method-assign]
    return seconds


def tables(result: dict[str, Any]) -> str:
    """Each method's cases, with all layers first, and how many times less time the others take."""
    rows: list[list[object]] = []
    for method in METHODS:
        cases = [found for found in result["cases"] if found["method"] == method]
        for found in cases:
            faster = cases[0]["training_cpu_seconds"] / found["training_cpu_seconds"]
            costs = [found["training_cpu_seconds"], faster, found["round_cpu_seconds"]]
            rows.append([method, found["layers"], *costs, found["bytes_up_per_round"] / 1000, found["peak_mib"]])
    header = ["method", "trained", "CPU s of training", "times faster", "CPU s of a round", "kB sent by a site", "MiB"]
    return markdown_table(header, rows, 2)


if __name__ == "__main__":
    run(__file__, measured, tables)
