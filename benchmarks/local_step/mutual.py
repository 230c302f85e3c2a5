"""MDH-FL: learning from the others beside the textbook's loop, RHFL's, and the minimum cost of a step; bytes of an exchange.

python -m benchmarks.local_step.mutual  # the bytes, at the paper's sizes
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.local_step.case import AS_RELEASED, HALF, Case, Work, in_default_layout, precision_of, relative
from benchmarks.local_step.loops import as_tensor, descend, mutual_pass, mutual_soft_labels, rhfl_pass
from benchmarks.measure import run, table
from grandrounds.federation.site.context import SiteContext, StateCache
from grandrounds.methods.mutual.options import AlignmentOptions
from grandrounds.methods.mutual.public import predict_public
from grandrounds.methods.mutual.soft_labels import WIRE_DTYPES, SoftLabels, add_up
from grandrounds.methods.mutual.training import AlignmentStep, align
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import numpy_generator, torch_generator

SITES = ("site-1", "site-2", "site-3", "site-4")
CLASSES, SIDE, BATCH, RATE = 13, 32, 16, 1e-3
PAPER_IMAGES = 26379
LEAST = "forward, backward, Adam"


class PublicCase(Case):
    """A network and public images."""

    method = "MDH-FL"
    batch = (BATCH, 3, SIDE, SIDE)

    def __init__(self, backbone: str, steps: int) -> None:
        self.steps = steps
        self._start = build_model(ModelSpec(backbone, CLASSES), seed=1)
        self._images = numpy_generator("public").integers(0, 256, (BATCH * steps, SIDE, SIDE, 3), dtype=np.uint8)

    def batches(self, steps: int, dtype: torch.dtype) -> list[Tensor]:
        """The first batches of the public images."""
        return list(as_tensor(self._images[: BATCH * steps], dtype).split(BATCH))


class MDHFLCase(PublicCase):
    """Passes over a few public images at one site."""

    loops = ("ours", "textbook", LEAST, AS_RELEASED, "released", HALF)
    comparisons = (("ours", "textbook"), ("ours", LEAST), (AS_RELEASED, "released"))

    def __init__(self, backbone: str, *, steps: int) -> None:
        super().__init__(backbone, steps)
        self.title = f"{backbone}, {SIDE} px, batches of {BATCH}, {len(SITES)} sites"

    def round(self, loop: str, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Work]:
        """A fresh network, and what trains it."""
        network = in_default_layout(self._start).to(dtype).train()
        others = others_of(len(self._images), dtype)
        tensors, rows = self.batches(steps, dtype), [theirs.split(BATCH) for theirs in others]
        if loop == "released":
            return network, lambda: rhfl_pass(network, tensors, rows, RATE)
        network = network.to(memory_format=torch.channels_last)
        if loop == "textbook":
            return network, lambda: mutual_pass(network, self.batches(steps, dtype), rows, RATE)
        target = target_of(others)
        if loop == LEAST:
            return network, lambda: _least(network, tensors, target.split(BATCH))
        optimizer = "fresh_per_batch" if loop == AS_RELEASED else "per_round"
        options = AlignmentOptions(alignment_rate=RATE, alignment_optimizer=optimizer)
        step, indices = AlignmentStep(network, options), list(np.arange(BATCH * steps).reshape(-1, BATCH))
        context = context_of(precision_of(loop))
        return network, lambda: align(network, step, self._images, target, indices, options, 0, context)


class RowsCase(PublicCase):
    """Predictions on public images, as a site publishes them; nothing is trained, and the difference is that of the rows."""

    loops = ("ours", "textbook")
    comparisons = (("ours", "textbook"),)

    def __init__(self, backbone: str, *, batches: int) -> None:
        super().__init__(backbone, batches)
        self.title = f"rows, {backbone}, {SIDE} px, {BATCH * batches} images"
        self._start(self.batches(1, torch.float32)[0])  # so that the running statistics are not the initial ones

    def round(self, loop: str, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Callable[[], Tensor]]:
        """The network, and what predicts so many batches of images."""
        network, images = copy.deepcopy(self._start).to(dtype), self._images[: BATCH * steps]
        if loop == "textbook":
            return network, lambda: mutual_soft_labels(network, self.batches(steps, dtype))
        return network, lambda: predict_public(network, images, np.arange(len(images)), context_of())

    def difference(self, ours: str, other: str) -> float:
        """Norm of the difference of the rows in double precision, relative to that of the rows."""
        return relative(*(self.round(loop, torch.float64, self.steps)[1]() for loop in (ours, other)))


def _least(network: nn.Module, batches: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    for images, rows in zip(batches, wanted, strict=True):
        descend(optimizer, F.cross_entropy(network(images), rows))


def context_of(precision: str = "float32") -> SiteContext:
    """A task of the first site, on the CPU; its images are not needed."""
    nothing: Any = None
    device, cache = torch.device("cpu"), StateCache(Path())
    return SiteContext(SITES[0], 1, nothing, 1, nothing, device, precision, lambda: False, cache)


def others_of(images: int, dtype: torch.dtype) -> list[Tensor]:
    """Probabilities of the other sites, drawn at random."""
    drawn = (torch.randn(images, CLASSES, generator=torch_generator(site)) for site in SITES[1:])
    return [scores.to(dtype).softmax(dim=1) for scores in drawn]


def target_of(others: list[Tensor]) -> Tensor:
    """The mean of the others as a site computes it, from the sum of all rows and its own."""
    own = torch.full_like(others[0], 1 / CLASSES)
    total = add_up({site: SoftLabels.of_site(site, 1, sent) for site, sent in zip(SITES, (own, *others), strict=True)})
    target = total.mean_of_others(SITES[0], {1: own})
    if target is None:
        raise SystemExit("there are no soft labels of other sites")
    return target


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Bytes of the paper's soft labels in each format, and of the weights of ResNet-12."""
    images = 100 if options.quick else PAPER_IMAGES
    state = build_model(ModelSpec("resnet12", CLASSES), seed=1).state_dict()
    return {
        "bytes": {
            **{wire: images * CLASSES * WIRE_DTYPES[wire].itemsize for wire in ("fp32", "fp16", "uint8")},
            "resnet12_weights": sum(entry.nbytes for entry in state.values()),
        }
    }


def tables(result: dict[str, Any]) -> str:
    names = {name: name for name in ("fp32", "fp16", "uint8")} | {"weights of ResNet-12": "resnet12_weights"}
    cases = [{"what": title, "mb": result["bytes"][name] / 1e6} for title, name in names.items()]
    return table({"soft labels of 26,379 images, 13 classes": "what", "MB": "mb"}, cases, 2)


if __name__ == "__main__":
    run(__file__, measured, tables)
