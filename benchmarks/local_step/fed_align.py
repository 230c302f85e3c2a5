"""Fed-Align-CL: iterations beside the textbook's, which treats every pair separately, and beside the released one.

Averaging and the curriculum's predictions are beside the released ones, too.

python -m benchmarks.local_step.fed_align  # one iteration with mammograms in full resolution
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from benchmarks.local_step.case import AS_RELEASED, HALF, Case, Work
from benchmarks.local_step.loops import (
    NOISE_LEVEL,
    fed_align_average,
    fed_align_iteration,
    fed_align_predictions,
    fed_align_released_iteration,
)
from benchmarks.measure import clocked, in_child, peak_mib, run, table
from grandrounds.federation.server.means import OrderedMean
from grandrounds.federation.site.store import copy_to_cpu
from grandrounds.federation.site.training import Adam
from grandrounds.methods.fed_align_cl.curriculum import correct_predictions
from grandrounds.methods.fed_align_cl.iteration import AlignmentTrainer, Neighbour, train_iteration
from grandrounds.methods.fed_align_cl.loss import make_discriminator
from grandrounds.methods.fed_align_cl.noise import noisy_weights
from grandrounds.methods.fed_align_cl.options import EmbeddingNoiseOptions, EncoderAlignmentOptions, WeightNoiseOptions
from grandrounds.models.backbones.resnet22 import ResNet22, recompute_activations
from grandrounds.models.inference.forward import Forward
from grandrounds.models.split import split_network
from grandrounds.protocol.messages import floating_entries
from grandrounds.protocol.tensors import apply_update, difference
from grandrounds.seeding import numpy_generator, torch_generator

SITES = ("site-1", "site-2", "site-3")
WIDTH, BATCH, FULL_SIZE = 256, 4, 2048
DRAWING = "normal numbers alone"
RATE = 1e-5
# For comparisons: Adam would turn gradients that are zero but for rounding into steps of full size.
SGD = partial(torch.optim.SGD, lr=1e-2)
NO_NOISE = EmbeddingNoiseOptions("absolute", 1e-24, embedding_clip=1e6)


class FedAlignCase(Case):
    """Iterations on one batch."""

    method = "Fed-Align-CL"
    loops = ("ours", "textbook", HALF)
    comparisons = (("ours", "textbook"),)
    checked_steps = (2,)

    def __init__(self, image_size: int, *, steps: int) -> None:
        self.title = f"resnet22, {image_size} px, batches of {BATCH}, {len(SITES)} hospitals"
        self.steps = steps
        self.batch = (BATCH, 1, image_size, image_size)

    def round(self, loop: str, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Work]:
        """A fresh network, and what trains it."""
        plain = loop == "textbook"
        adam = partial(torch.optim.Adam, lr=RATE) if plain else partial(Adam, lr=RATE, fused=True)
        network = new_network().to(dtype)
        if not plain:
            network = network.to(memory_format=torch.channels_last)
        iterate = iteration(network, self.batch, SGD if dtype == torch.float64 else adam, textbook=plain)

        def work() -> None:
            with torch.autocast("cpu", torch.bfloat16) if loop == HALF else nullcontext():
                for _ in range(steps):
                    iterate()

        return network, work


class ReleasedCase(FedAlignCase):
    """Iterations of the released code, whose alignment trains no encoder; the curriculum changes their order only."""

    loops = (AS_RELEASED, "released")
    comparisons = ((AS_RELEASED, "released"),)

    def __init__(self, image_size: int, *, steps: int) -> None:
        super().__init__(image_size, steps=steps)
        self.title = f"as released, {self.title}"

    def round(self, loop: str, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Work]:
        """A fresh network, and what trains it."""
        ours, exact = loop != "released", dtype == torch.float64
        adam = partial(Adam, lr=RATE, fused=True) if ours else partial(torch.optim.Adam, lr=RATE)
        network = new_network().to(dtype)
        if ours:
            network = network.to(memory_format=torch.channels_last)
        iterate = iteration(network, self.batch, SGD if exact else adam, released="ours" if ours else "theirs")

        def work() -> None:
            for _ in range(steps):
                iterate()

        return network, work

    def forward(self) -> Work:
        """One forward pass of a batch."""
        return partial(new_network().train(), torch.zeros(self.batch))


class PredictionsCase(Case):
    """The curriculum's pass over a hospital's images; the difference is that of the logits."""

    method = "Fed-Align-CL"
    loops = ("ours", "released")
    comparisons = (("ours", "released"),)
    steps = 1

    def __init__(self, image_size: int, images: int) -> None:
        self.title = f"predictions, resnet22, {image_size} px, {images} images"
        self._images = torch.rand(images, 1, image_size, image_size, generator=torch_generator("images"))
        self.batch = tuple(self._images.shape)

    def round(self, loop: str, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Work]:
        """The network, and what predicts all images."""
        network, images = new_network().to(dtype), self._images.to(dtype)
        labels = torch.arange(len(images)) % 2
        if loop == "released":
            pairs = list(zip(images.split(BATCH), labels.split(BATCH), strict=True))
            return network, partial(fed_align_predictions, network, pairs)
        network = network.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
        return network, lambda: correct_predictions(Forward(network), [(images, labels)])

    def difference(self, ours: str, other: str) -> float:
        """The share of the images whose prediction is another."""
        found = (torch.as_tensor(self.round(loop, torch.float64, 1)[1]()) for loop in (ours, other))
        return float((next(found) != next(found)).double().mean())


class AverageCase(Case):
    """The average of the hospitals' networks with noise on each entry, from the trained networks to the deployed ones.

    Updates are compared without noise. Drawing the normal numbers alone is the least that any implementation needs.
    """

    method = "Fed-Align-CL"
    loops = ("ours", "released", DRAWING)
    comparisons = (("ours", "released"),)
    batch = (2, 1, 128, 128)
    steps = 1

    def __init__(self) -> None:
        self.title = f"average, resnet22, {len(SITES)} hospitals"

    def round(self, loop: str, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Work]:
        """The first hospital's network, and what averages all."""
        level = 0.0 if dtype == torch.float64 else NOISE_LEVEL
        networks = [new_network().to(dtype) for _ in SITES]
        trained = list(zip(SITES, networks, strict=True))
        sent = copy_to_cpu(networks[0].state_dict())
        for number, network in enumerate(networks, start=1):
            for value in floating_entries(network.state_dict()).values():
                value.mul_(1 + 0.1 * number)
        if loop == "released":
            return networks[0], partial(fed_align_average, networks, level)
        if loop == DRAWING:
            return networks[0], lambda: [draw_normals(network, torch_generator(site)) for site, network in trained]
        options = WeightNoiseOptions(weight_noise_level=level)

        def work() -> None:
            mean = OrderedMean(SITES)
            for site, network in trained:
                noisy = noisy_weights(
                    network.state_dict(), options, partial(torch.randn, generator=torch_generator(site))
                )
                mean.add(site, difference({**sent, **noisy}, sent))
            deployed = apply_update(sent, mean.close() or {})
            for network in networks:
                network.load_state_dict(deployed)

        return networks[0], work


def draw_normals(network: nn.Module, generator: torch.Generator) -> None:
    for value in floating_entries(network.state_dict()).values():
        torch.empty_like(value).normal_(generator=generator)


def new_network() -> ResNet22:
    """A network without noise on images and without dropout, so that both loops see the same."""
    torch.manual_seed(1)
    network = ResNet22(2, 1, input_noise=0.0)
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return network


def iteration(
    network: nn.Module,
    shape: tuple[int, ...],
    make: Callable[..., torch.optim.Optimizer],
    *,
    textbook: bool = False,
    released: Literal["no", "ours", "theirs"] = "no",
) -> Callable[[], Any]:
    """One iteration with the banks of two neighbours, by the package, by the textbook or as released."""
    dtype = next(network.parameters()).dtype
    discriminator = make_discriminator(WIDTH, "own").to(dtype)
    encoder, head = split_network(network)
    optimizers = {
        "classification": make(network.parameters()),
        "adversarial": make(encoder.parameters()),
        "discriminator": make(discriminator.parameters()),
    }
    images = torch.randn(shape, generator=torch_generator("images")).to(dtype)
    labels = torch.arange(shape[0]) % 2
    banks = {}
    for site in SITES[1:]:
        embeddings = torch.rand(shape[0], WIDTH, generator=torch_generator(site)).to(dtype)
        judge = make_discriminator(WIDTH, site).to(dtype).requires_grad_(False)
        banks[site] = Neighbour(embeddings, judge, shape[0])
    if not textbook and released != "theirs":
        options = EncoderAlignmentOptions(update="as_released" if released == "ours" else "summed")
        hospital = AlignmentTrainer(network, discriminator, optimizers, NO_NOISE)
        return lambda: train_iteration(hospital, SITES[0], images, labels, banks, options, numpy_generator("draws"))
    judges = [other.discriminator for other in banks.values()]

    def step() -> None:
        generator = numpy_generator("draws")
        drawn = [other.batch(generator) for other in banks.values()]
        if released == "theirs":
            fed_align_released_iteration(encoder, head, discriminator, optimizers, images, labels, drawn)
            return
        fed_align_iteration(encoder, head, discriminator, optimizers, images, labels, drawn, judges)

    return step


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """One iteration of two images of 2048 x 2048, with activations kept and recomputed."""
    size, name = 256 if options.quick else FULL_SIZE, "benchmarks.local_step.fed_align.full_resolution"
    modes = {"recomputed": True, "kept": False}
    return {"full_resolution": {mode: in_child(name, recompute=again, size=size) for mode, again in modes.items()}}


def full_resolution(recompute: bool, size: int) -> dict[str, Any]:
    """One iteration of ``summed`` with two neighbours: seconds and memory."""
    torch.set_num_threads(1)
    network = new_network()
    recompute_activations(network, recompute)
    cost, _ = clocked(iteration(network, (2, 1, size, size), SGD))
    return {"seconds": round(cost.wall, 1), "cpu_seconds": round(cost.cpu, 1), "peak_gib": round(peak_mib() / 1024, 2)}


def tables(result: dict[str, Any]) -> str:
    cases = [{"activations": name, **found} for name, found in result["full_resolution"].items()]
    columns = {"activations": "activations", "s of the processor": "cpu_seconds", "peak GiB": "peak_gib"}
    return table(columns, cases, 2)


if __name__ == "__main__":
    run(__file__, measured, tables)
