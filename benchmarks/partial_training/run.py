"""What partial training saves: time of a step and of a round, bytes, memory, by method and by the layers that are trained.

EfficientNet-Lite0 from ImageNet at 112 pixels, batches of 16, two sites with the same drawn images. Each case runs in a
process of its own, and the cases of a method follow one another. CPU times are those of the last round, when the kept
features have been computed: of a site's training, and of a whole round of both sites. The passes of which a step consists
are measured in turn. About ten minutes of CPU time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.measure import clocked, in_child, in_turn, milliseconds, peak_mib, run
from benchmarks.tables import markdown_table
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.executor import SiteExecutor
from grandrounds.protocol.messages import Payload, Result

MODULE = "benchmarks.partial_training.run"
ALL, FROM_8, CACHED = "all layers", "from block 8", "from block 8, kept features"
LAST, HEAD = "from block 15, kept features", "head, kept features"
CASES = {
    ALL: ("all", 0),
    FROM_8: ("from:8", 0),
    CACHED: ("from:8", 1),
    LAST: ("from:15", 1),
    HEAD: ("head", 1),
}
SITES, BATCH, STEPS, COUNTED, REPEATS = 2, 16, 8, 1, 7
# Rounds before those that count: the first of all, and those in which the features are computed.
WARM_UP = {0: 1, 1: 2}
EIGHT_BATCHES = (f"executor.steps={STEPS}", f"executor.batch_size={BATCH}")
METHODS: dict[str, tuple[str, ...]] = {
    "fedavg": EIGHT_BATCHES,
    "ssfl": (*EIGHT_BATCHES, "executor.threshold=0"),
    "fedperl": (*EIGHT_BATCHES, "executor.threshold=0", "controller.warm_up=0"),
    "fedirm": (f"executor.batch_size={BATCH}", "executor.epochs=1", "controller.unlabelled_start=1"),
    "fed_align_cl": (f"executor.iterations={STEPS}", f"executor.pace={STEPS}"),
}
PASSES = {
    "forward": "forward, training",
    "backward": "backward",
    "optimizer": "Adam",
    "peer": "forward of a peer",
    "front": "forward of the frozen layers",
}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """The passes of a step, and all methods and cases."""
    passes = in_child(f"{MODULE}.passes", repeats=1 if options.quick else REPEATS)
    methods = ["fedavg"] if options.quick else options.methods
    wanted = [(method, layers) for method in methods for layers in CASES if possible(method, layers)]
    cases = [in_child(f"{MODULE}.case", method=method, layers=layers) for method, layers in wanted]
    return {"sites": SITES, "steps": STEPS, "batch": BATCH, "passes": passes, "cases": cases}


def passes(repeats: int) -> dict[str, dict[str, Any]]:
    """Milliseconds of the passes through all layers and through those from block 8 on, by layers and pass, taken in turn."""
    import torch

    from grandrounds.models.partial import front_of

    torch.set_num_threads(1)
    images = torch.rand(BATCH, 3, 112, 112).contiguous(memory_format=torch.channels_last)
    networks = {layers: network_of(CASES[layers][0]) for layers in (ALL, CACHED)}
    front = front_of(networks[CACHED])
    assert front is not None
    features = front(images).contiguous(memory_format=torch.channels_last)
    steps = {
        f"{layers}/{name}": work
        for (layers, network), inputs in zip(networks.items(), (images, features), strict=True)
        for name, work in passes_of(network, inputs).items()
    }
    costs = in_turn({**steps, f"{CACHED}/front": lambda: front(images)}, repeats)
    return {
        layers: {name: milliseconds(costs[f"{layers}/{name}"]) for name in PASSES if f"{layers}/{name}" in costs}
        for layers in networks
    }


def network_of(trainable: str) -> Any:
    """EfficientNet-Lite0 from ImageNet in training mode."""
    from grandrounds.models.registry import build_model
    from grandrounds.protocol.problem import ModelSpec

    return build_model(ModelSpec("efficientnet_lite0", classes=7, weights="imagenet", trainable=trainable), 1).train()


def passes_of(network: Any, inputs: Any) -> dict[str, Callable[[], object]]:
    """What a step does with one batch, in this order: each pass needs the one before."""
    import torch

    from grandrounds.federation.site.training import new_optimizer
    from grandrounds.models.norm import folded_copy

    optimizer, peer = new_optimizer(network.parameters(), "adam", 1e-4), folded_copy(network)
    losses: list[torch.Tensor] = []

    def backward() -> None:
        optimizer.zero_grad(set_to_none=True)
        losses.pop().backward()

    def predict() -> None:
        with torch.no_grad():
            peer(inputs)

    return {
        "forward": lambda: losses.append(network(inputs).square().mean()),
        "backward": backward,
        "optimizer": optimizer.step,
        "peer": predict,
    }


def possible(method: str, layers: str) -> bool:
    """Alignment has nothing to do where the encoder is frozen."""
    return method != "fed_align_cl" or layers != HEAD


def case(method: str, layers: str) -> dict[str, Any]:
    """One method with one choice of layers."""
    from benchmarks.parties import one_set_of_images, run_clocked, site_names
    from grandrounds.deployment.jobs import load_job
    from grandrounds.deployment.presets import with_options

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
    """The passes of a step, and each method's cases with all layers first, and how many times less time the others take."""
    passes = [[title, *pass_cells(result["passes"], name)] for name, title in PASSES.items()]
    rows: list[list[object]] = []
    for method in METHODS:
        cases = [found for found in result["cases"] if found["method"] == method]
        for found in cases:
            faster = cases[0]["training_cpu_seconds"] / found["training_cpu_seconds"]
            costs = [found["training_cpu_seconds"], faster, found["round_cpu_seconds"]]
            rows.append([method, found["layers"], *costs, found["bytes_up_per_round"] / 1000, found["peak_mib"]])
    header = ["method", "trained", "CPU s of training", "times faster", "CPU s of a round", "kB sent by a site", "MiB"]
    both = [f"ms, {ALL}", f"ms, {CACHED}", "times faster"]
    tables = [markdown_table(["pass of a batch", *both], passes, 1)]
    return "\n\n".join([*tables, markdown_table(header, rows, 2)] if rows else tables)


def pass_cells(passes: dict[str, dict[str, Any]], name: str) -> list[float | None]:
    """Lowest CPU time of a pass through all layers and from the features on, and their ratio."""
    found = [passes[layers][name]["cpu"]["lowest"] if name in passes[layers] else None for layers in (ALL, CACHED)]
    whole, part = found
    return [whole, part, whole / part if whole and part else None]


if __name__ == "__main__":
    run(__file__, measured, tables, methods={"nargs": "*", "choices": list(METHODS), "default": list(METHODS)})
