"""What an iteration of Fed-Align-CL costs, against the textbook version and in full resolution.

1. ``summed`` against an iteration that treats every pair of hospitals by itself: the same updates in double precision, time
   in single. Processor time, least of several repeats in turn.
2. The mean of three hospitals' weights against one that builds each state anew for each entry.
3. Passes over all training images for the curriculum in 50 epochs: those that are asked for, and one or two in every epoch.
4. One iteration with 2048 x 2048 images, batch 2: time and peak memory, with activations kept and recomputed, each in a
   process of its own.

    python -m benchmarks.fed_align_step.run
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.fed_align_step.textbook import textbook_iteration, textbook_mean
from benchmarks.measure import ROOT
from grandrounds.federation.aggregation import OrderedMean
from grandrounds.methods.fed_align_cl.curriculum import Memory
from grandrounds.methods.fed_align_cl.loss import make_discriminator
from grandrounds.methods.fed_align_cl.noise import EmbeddingNoiseOptions
from grandrounds.methods.fed_align_cl.options import AlignmentOptions
from grandrounds.methods.fed_align_cl.paced import Neighbour, paced_iteration
from grandrounds.methods.fed_align_cl.participant import MakeOptimizer, Participant, make_optimizers
from grandrounds.methods.fed_align_cl.schedule import communications, scores_are_due
from grandrounds.models.backbones.resnet22 import ResNet22, recompute_activations
from grandrounds.models.split import split_network
from grandrounds.seeding import numpy_generator, torch_generator

RESULT = Path(__file__).parent / "result.json"
SITES = ("site-1", "site-2", "site-3")
WIDTH, BATCH = 256, 4
LARGEST_DIFFERENCE = 1e-12
EPOCHS = 50


def main() -> None:
    """Measure everything and write ``result.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--image-size", type=int, default=256)
    parser.add_argument("--full", choices=["kept", "recomputed"], help="measure this full-resolution step alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.full:
        print(json.dumps(full_resolution(recompute=arguments.full == "recomputed")))
        return
    result = {
        "iteration": iteration(arguments.repeats, arguments.image_size),
        "weight_exchange": weight_exchange(arguments.repeats),
        "curriculum_passes": curriculum_passes(),
        "full_resolution": {name: _in_process(name) for name in ("recomputed", "kept")},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "machine": {"cores": os.cpu_count(), "system": platform.system(), "load": round(os.getloadavg()[0], 1)},
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def iteration(repeats: int, side: int) -> dict[str, Any]:
    """``summed`` and the textbook's iteration: equal updates, and their times."""
    pair = summed(torch.float64, side, sgd), textbook(torch.float64, side, sgd)
    for _, step in pair:
        step()
    difference = _difference(pair[0][0], pair[1][0])
    if difference > LARGEST_DIFFERENCE:
        raise SystemExit(f"the updates differ by {difference}")
    steps = {"summed": summed(torch.float32, side, sgd)[1], "textbook": textbook(torch.float32, side, sgd)[1]}
    times = _min_times(steps, repeats)
    return {
        "image_size": side,
        "batch": BATCH,
        "hospitals": len(SITES),
        "largest_difference": difference,
        "seconds": times,
        "speed_up": round(times["textbook"] / times["summed"], 2),
    }


def weight_exchange(repeats: int) -> dict[str, Any]:
    """The mean of three hospitals' weights, in the federation's way and the textbook's."""
    doubles, singles = (
        [_network(dtype, seed) for seed in range(len(SITES))] for dtype in (torch.float64, torch.float32)
    )
    expected = textbook_mean(doubles)
    difference = max(float((value - expected[name]).abs().max()) for name, value in _ordered_mean(doubles).items())
    if difference > LARGEST_DIFFERENCE:
        raise SystemExit(f"the means differ by {difference}")
    steps = {"ordered_mean": lambda: _ordered_mean(singles), "textbook": lambda: textbook_mean(singles)}
    return {"largest_difference": difference, "seconds": _min_times(steps, repeats)}


def _ordered_mean(networks: list[ResNet22]) -> dict[str, Tensor]:
    mean = OrderedMean(SITES)
    for site, network in zip(SITES, networks, strict=True):
        mean.add(site, {name: value for name, value in network.state_dict().items() if value.is_floating_point()})
    return mean.close() or {}


def curriculum_passes() -> dict[str, int]:
    """Passes over all training images in 50 epochs with a warm-up of 5."""
    ends = communications()
    asked = {}
    for comparison in ("around_last_comm", "epoch_to_epoch", "every_comm"):
        memory = Memory(comparison, images=1)
        in_epoch = sum(memory.wants_before(end == ends[-1]) + memory.wants_after(end == ends[-1]) for end in ends)
        asked[comparison] = in_epoch * sum(scores_are_due(epoch) for epoch in range(1, EPOCHS))
    return {**asked, "two_in_every_epoch": 2 * EPOCHS, "without_curriculum": 0}


def full_resolution(recompute: bool) -> dict[str, Any]:
    """One iteration of ``summed`` with two images of 2048 x 2048 and two neighbours."""
    network = _network(torch.float32, 1)
    recompute_activations(network, recompute)
    before = _peak_bytes()
    step = _iteration_of(network, 2048, 2, sgd)
    started, cpu = time.perf_counter(), time.process_time()
    step()
    return {
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "peak_gib": round(_peak_bytes() / 2**30, 2),
        "peak_gib_before": round(before / 2**30, 2),
    }


def _in_process(name: str) -> Any:
    command = [sys.executable, "-m", "benchmarks.fed_align_step.run", "--full", name]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.splitlines()[-1])


def _network(dtype: torch.dtype, seed: int) -> ResNet22:
    torch.manual_seed(seed)
    # Without noise on images both versions see the same; dropout of the head is off for the same reason.
    network = ResNet22(2, 1, input_noise=0.0)
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return network.to(dtype)


def _images(side: int, batch: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    images = torch.randn(batch, 1, side, side, generator=torch_generator("images")).to(dtype)
    return images, torch.arange(batch) % 2


def _banks(batch: int, dtype: torch.dtype) -> dict[str, Neighbour]:
    return {
        site: Neighbour(
            torch.rand(batch, WIDTH, generator=torch_generator(site)).to(dtype),
            make_discriminator(WIDTH, site).to(dtype).requires_grad_(False),
            batch,
        )
        for site in SITES[1:]
    }


def _iteration_of(network: nn.Module, side: int, batch: int, make: MakeOptimizer) -> Callable[[], Any]:
    dtype = next(network.parameters()).dtype
    discriminator = make_discriminator(WIDTH, "own").to(dtype)
    noise = EmbeddingNoiseOptions("absolute", 1e-24, clip=1e6)
    hospital = Participant(network, discriminator, make_optimizers(network, discriminator, make), noise)
    images, labels = _images(side, batch, dtype)
    others = _banks(batch, dtype)
    options = AlignmentOptions()
    return lambda: paced_iteration(hospital, SITES[0], images, labels, others, options, numpy_generator("draws"))


def summed(dtype: torch.dtype, side: int, make: MakeOptimizer) -> tuple[nn.Module, Callable[[], Any]]:
    """A network in the layout that the package gives it, and an iteration of ``summed``."""
    network = _network(dtype, 1).to(memory_format=torch.channels_last)
    return network, _iteration_of(network, side, BATCH, make)


def textbook(dtype: torch.dtype, side: int, make: MakeOptimizer) -> tuple[nn.Module, Callable[[], Any]]:
    """A network, and the textbook's iteration."""
    network = _network(dtype, 1)
    encoder, head = split_network(network)
    discriminator = make_discriminator(WIDTH, "own").to(dtype)
    optimizers = make_optimizers(network, discriminator, make)
    images, labels = _images(side, BATCH, dtype)
    others = _banks(BATCH, dtype)
    discriminators = [other.discriminator for other in others.values()]

    def step() -> None:
        generator = numpy_generator("draws")
        batches = [other.batch(generator) for other in others.values()]
        textbook_iteration(
            encoder, head, discriminator, optimizers, images, labels, batches, discriminators, images.new_zeros(())
        )

    return network, step


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """For comparisons: Adam would turn gradients that are zero but for rounding into steps of full size."""
    return torch.optim.SGD(parameters, lr=1e-2)


def _difference(one: nn.Module, other: nn.Module) -> float:
    expected = dict(other.named_parameters())
    return max(float((value - expected[name]).detach().abs().max()) for name, value in one.named_parameters())


def _min_times(steps: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            # Processor time: the machine may have other work.
            started = time.process_time()
            step()
            times[name].append(time.process_time() - started)
    return {name: round(min(values), 4) for name, values in times.items()}


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
