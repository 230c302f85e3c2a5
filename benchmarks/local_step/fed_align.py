"""Fed-Align-CL: an iteration of ``summed`` beside the textbook's, which treats every pair of hospitals by itself.

python -m benchmarks.local_step.fed_align  # one iteration with mammograms in full resolution
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.local_step.case import HALF, Case, Work
from benchmarks.local_step.textbook import fed_align_iteration
from benchmarks.measure import clocked, in_child, peak_mib, run, table
from grandrounds.federation.site.training import Adam
from grandrounds.methods.fed_align_cl.iteration import AlignmentTrainer, Neighbour, train_iteration
from grandrounds.methods.fed_align_cl.loss import make_discriminator
from grandrounds.methods.fed_align_cl.options import AlignmentOptions, EmbeddingNoiseOptions, Role
from grandrounds.models.backbones.resnet22 import ResNet22, recompute_activations
from grandrounds.models.split import split_network
from grandrounds.seeding import numpy_generator, torch_generator

SITES = ("site-1", "site-2", "site-3")
WIDTH, BATCH, FULL_SIZE = 256, 4, 2048
RATE = 1e-5
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def adam(learning_rate: float = RATE) -> MakeOptimizer:
    """Adam without weight decay, as the paper trains everything."""
    return partial(Adam, lr=learning_rate, fused=True)


def make_optimizers(
    network: nn.Module, discriminator: nn.Module, make: MakeOptimizer | None = None
) -> dict[Role, torch.optim.Optimizer]:
    """Of the whole network for classification, of its encoder for alignment, of the discriminator."""
    make = make or adam()
    return {
        "classification": make(network.parameters()),
        "adversarial": make(split_network(network).encoder.parameters()),
        "discriminator": make(discriminator.parameters()),
    }


class FedAlignCase(Case):
    """Iterations on one batch."""

    method = "Fed-Align-CL"
    loops = ("ours", "textbook", HALF)
    comparisons = (("ours", "textbook"),)
    checked_steps = (2,)

    def __init__(self, image_size: int, *, steps: int) -> None:
        self.title = f"resnet22, {image_size} px, batches of {BATCH}, {len(SITES)} hospitals"
        self.steps = steps
        self._size = image_size

    def forward(self) -> Work:
        """One forward pass of a batch."""
        network, _ = summed(torch.float32, self._size, sgd)
        return partial(network, torch.zeros(BATCH, 1, self._size, self._size))

    def round(self, loop: str, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Work]:
        """A fresh network, and what trains it."""
        if loop == "textbook":
            network, iterate = textbook(dtype, self._size, sgd if dtype == torch.float64 else _plain_adam)
        else:
            network, iterate = summed(dtype, self._size, sgd if dtype == torch.float64 else adam(RATE))
        precision = torch.autocast("cpu", torch.bfloat16) if loop == HALF else nullcontext()
        return network, lambda: _repeat(iterate, steps, precision)


def _plain_adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=RATE)


def _repeat(iterate: Callable[[], object], steps: int, precision: nullcontext[None] | torch.autocast) -> None:
    with precision:
        for _ in range(steps):
            iterate()


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
    noise = EmbeddingNoiseOptions("absolute", 1e-24, embedding_clip=1e6)
    hospital = AlignmentTrainer(network, discriminator, make_optimizers(network, discriminator, make), noise)
    images, labels = _images(side, batch, dtype)
    others = _banks(batch, dtype)
    options = AlignmentOptions()
    return lambda: train_iteration(hospital, SITES[0], images, labels, others, options, numpy_generator("draws"))


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
        fed_align_iteration(
            encoder, head, discriminator, optimizers, images, labels, batches, discriminators, images.new_zeros(())
        )

    return network, step


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """For comparisons: Adam would turn gradients that are zero but for rounding into steps of full size."""
    return torch.optim.SGD(parameters, lr=1e-2)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """One iteration of two images of 2048 x 2048, with activations kept and recomputed."""
    size = 256 if options.quick else FULL_SIZE
    modes = {"recomputed": True, "kept": False}
    found = {
        name: in_child("benchmarks.local_step.fed_align.full_resolution", recompute=recompute, size=size)
        for name, recompute in modes.items()
    }
    return {"full_resolution": found}


def full_resolution(recompute: bool, size: int) -> dict[str, Any]:
    """One iteration of ``summed`` with two neighbours: seconds and memory."""
    torch.set_num_threads(1)
    network = _network(torch.float32, 1)
    recompute_activations(network, recompute)
    before = peak_mib()
    cost, _ = clocked(_iteration_of(network, size, 2, sgd))
    return {
        "seconds": round(cost.wall, 1),
        "cpu_seconds": round(cost.cpu, 1),
        "peak_gib": round(peak_mib() / 1024, 2),
        "peak_gib_before": round(before / 1024, 2),
    }


def tables(result: dict[str, Any]) -> str:
    cases = [{"activations": name, **found} for name, found in result["full_resolution"].items()]
    columns = {"activations": "activations", "s of the processor": "cpu_seconds", "peak GiB": "peak_gib"}
    return table(columns, cases, 2)


if __name__ == "__main__":
    run(__file__, measured, tables)
