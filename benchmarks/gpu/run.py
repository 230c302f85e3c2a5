"""Measure training on one GPU: steps per second of every method, and the share of time in which the GPU does nothing.

Every method trains at two sites of phantoms, in each precision, with views drawn in the step, drawn ahead, and made on the
device where the method's views can be. The first round warms up and does not count. The driver samples how long kernels ran
(``nvidia-smi``). Before them frozen layers compute batches of several sizes. After ``--minutes`` no further case begins, and
the result says how many are left. With ``--device cpu --quick`` the script only shows that it works.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.measure import in_child, run, spread, table

METHODS = {
    "fedavg": ("executor.steps={steps}", "problem.backbone=efficientnet_b0"),
    "ssfl": ("executor.steps={steps}", "problem.backbone=efficientnet_b0"),
    "fedperl": ("executor.steps={steps}", "problem.backbone=efficientnet_b0"),
    "fedirm": ("executor.steps={steps}", "problem.backbone=densenet121"),
    "fed_align_cl": ("executor.iterations={steps}", "executor.pace={steps}", "problem.backbone=resnet22"),
    "mdhfl": ("problem.backbone=resnet10",),
}
SMALL = {method: (*options[:-1], "problem.backbone=compact") for method, options in METHODS.items()}
SITES, ROUNDS, STEPS, SIDE, IMAGES = 2, 3, 40, 224, 480
SAMPLE_MILLISECONDS = 100
VIEWS = {"in the step": ("off", False), "ahead": ("on", False), "on the device": ("on", True)}
"""``executor.prefetch``, and whether images may stay on the device."""
FRONT_SIDE, FRONT_BATCHES, FRONT_SECONDS = 112, (32, 64, 128, 256, 512), 2.0


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All methods, precisions and places of views, each run in a process of its own, and the frozen layers."""
    sizes = (
        {"steps": 2, "side": 32, "images": 60} if options.quick else {"steps": STEPS, "side": SIDE, "images": IMAGES}
    )
    cases = [
        {"method": method, "precision": precision, "views": views}
        for views in reversed(VIEWS)
        for precision in ("float32", *(["tf32"] if options.device.startswith("cuda") else []), "bfloat16")
        for method in (options.methods.split(",") if options.methods else METHODS)
    ]
    began = time.monotonic()
    front = in_child(
        "benchmarks.gpu.run.front", device=options.device, batches=(1, 2) if options.quick else FRONT_BATCHES
    )
    found: list[dict[str, Any]] = []
    for chosen in cases:
        if time.monotonic() - began > 60 * options.minutes:
            break
        load = round(os.getloadavg()[0], 2)
        sized = {**chosen, **sizes, "device": options.device, "small": options.quick}
        found.append({**chosen, "load": load, **in_child("benchmarks.gpu.run.case", **sized)})
    name, left = device_name(options.device), len(cases) - len(found)
    return {"device": options.device, "name": name, "cases": found, "left": left, "front": front, **sizes}


def device_name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"


def case(
    method: str, precision: str, views: str, steps: int, side: int, images: int, device: str, small: bool
) -> dict[str, Any]:
    """Steps per second of each training after the first round, and the idle share of the device while sites train."""
    from benchmarks.parties import one_set_of_images, site_names
    from grandrounds.data.images import tensors
    from grandrounds.deployment.jobs import load_job
    from grandrounds.deployment.presets import with_options
    from grandrounds.deployment.simulate import simulate
    from grandrounds.federation.site.context import SiteContext
    from grandrounds.federation.site.executor import SiteExecutor

    taken: list[tuple[int, float, float, int]] = []
    counted = [0]
    check_abort, trained = SiteContext.check_abort, SiteExecutor._trained

    def counting(self: SiteContext) -> None:  # is called once in every step
        counted[0] += 1
        check_abort(self)

    def clocked(self: SiteExecutor, payload: Any, context: SiteContext, store: Any) -> Any:
        counted[0], began = 0, time.time()
        result = trained(self, payload, context, store)
        taken.append((context.round_number, began, time.time(), counted[0]))
        return result

    SiteContext.check_abort, SiteExecutor._trained = counting, clocked  # type: ignore[method-assign]
    prefetch, held = VIEWS[views]
    tensors.FREE_SHARE = tensors.FREE_SHARE if held else 0
    own = [option.format(steps=steps) for option in (SMALL if small else METHODS)[method]]
    settings = [f"executor.device={device}", f"executor.precision={precision}", f"executor.prefetch={prefetch}"]
    rounds = [f"controller.rounds={ROUNDS}", f"problem.image_size={side}"]
    job = with_options(load_job(method), [*rounds, *settings, *own])
    with tempfile.TemporaryDirectory() as name, busy_samples(device) as samples:
        os.environ["GRANDROUNDS_CACHE"] = str(Path(name) / "cache")
        folder = None if method == "mdhfl" else one_set_of_images(Path(name) / "images", side, images)
        simulate(job, Path(name) / "run", site_names(SITES), folder, allow_overlap=True)
    counts = [one for one in taken if one[0] > 1]
    during = [busy for at, busy in samples for _, began, ended, _ in counts if began <= at <= ended]
    return {
        "steps_per_second": spread([number / (ended - began) for _, began, ended, number in counts], 2),
        "idle_share": round(1 - statistics.fmean(during) / 100, 3) if during else None,
    }


def front(device: str, batches: Sequence[int]) -> list[dict[str, Any]]:
    """Images per second of the recommended preset's frozen layers, by the size of a batch."""
    import torch

    from grandrounds.models.inference.forward import Forward
    from grandrounds.models.partial import front_of
    from grandrounds.models.registry import build_model
    from grandrounds.protocol.problem import ModelSpec

    spec = ModelSpec("efficientnet_lite0", classes=7, trainable="from:15")
    layers = front_of(build_model(spec, seed=1).to(device))
    if layers is None:
        raise ValueError("no layer is frozen")
    compute, found = Forward(layers), []
    for batch in batches:
        images = torch.rand(batch, 3, FRONT_SIDE, FRONT_SIDE, device=device).to(memory_format=torch.channels_last)
        compute(images).cpu()
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < FRONT_SECONDS:
            compute(images).flatten()[0].item()  # waits until it is done
            done += batch
        found.append({"batch": batch, "images_per_second": round(done / (time.perf_counter() - began), 1)})
    return found


@contextmanager
def busy_samples(device: str) -> Iterator[list[tuple[float, float]]]:
    """Times, and the percentage of the time before in which a kernel ran; empty on a CPU."""
    found: list[tuple[float, float]] = []
    if not device.startswith("cuda"):
        yield found
        return
    number = device.partition(":")[2] or "0"
    command = ["nvidia-smi", "-i", number, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    sampler = subprocess.Popen([*command, "-lms", str(SAMPLE_MILLISECONDS)], stdout=subprocess.PIPE, text=True)

    def read() -> None:
        for line in sampler.stdout or ():
            with suppress(ValueError):
                found.append((time.time(), float(line)))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield found
    finally:
        sampler.terminate()
        sampler.wait()
        reader.join()


def tables(result: dict[str, Any]) -> str:
    columns = {
        f"{result['name']}, {result['side']} px": "method", "precision": "precision", "views": "views",
        "steps per second": "steps_per_second.median", "lowest": "steps_per_second.lowest",
        "highest": "steps_per_second.highest", "idle share": "idle_share", "load": "load",
    }  # fmt: skip
    fronts = table(
        {"images in a batch": "batch", "frozen layers, images per second": "images_per_second"}, result["front"], 1
    )
    return f"{table(columns, result['cases'], 2)}\n\n{fronts}"


if __name__ == "__main__":
    some = {"default": "", "help": "some of them: a,b,c"}
    limit = {"type": float, "default": 8.0, "help": "after which no further case begins"}
    devices = {"default": "cuda", "help": "cuda[:index], or cpu as a trial"}
    run(__file__, measured, tables, device=devices, methods=some, minutes=limit)
