"""MDH-FL: learning from the others beside the textbook's loop, RHFL's, and the minimum cost of a step; bytes of an exchange.

python -m benchmarks.local_step.mutual  # the bytes, at the paper's sizes
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.local_step.case import HALF, Case, Work, in_default_layout
from benchmarks.local_step.released import rhfl_pass
from benchmarks.local_step.textbook import as_tensor, mutual_pass, mutual_soft_labels
from benchmarks.measure import run, table
from grandrounds.federation.site.context import SiteContext, StateCache
from grandrounds.methods.baselines.encryption.ciphertexts import add_encrypted, decrypt, encrypt, make_keys
from grandrounds.methods.mutual.options import AlignmentOptions
from grandrounds.methods.mutual.public import predict_public
from grandrounds.methods.mutual.soft_labels import DTYPES, SoftLabels, add_up
from grandrounds.methods.mutual.training import AlignmentStep, align
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import numpy_generator, torch_generator

SITES = ("site-1", "site-2", "site-3", "site-4")
CLASSES, SIDE, BATCH, RATE = 13, 32, 16, 1e-3
PAPER_IMAGES = 26379
AS_RELEASED, LEAST = "ours, as released", "forward, backward, Adam"


class MDHFLCase(Case):
    """Passes over a few public images at one site."""

    method = "MDH-FL"
    loops = ("ours", "textbook", LEAST, AS_RELEASED, "released", HALF)
    comparisons = (("ours", "textbook"), ("ours", LEAST), (AS_RELEASED, "released"))
    checked_steps = (1,)

    def __init__(self, backbone: str, *, steps: int) -> None:
        self.title = f"{backbone}, {SIDE} px, batches of {BATCH}, {len(SITES)} sites"
        self.steps = steps
        self._start = build_model(ModelSpec(backbone, CLASSES), seed=1)
        count = BATCH * max(steps, *self.checked_steps)
        self._images = numpy_generator("public").integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)

    def forward(self) -> Work:
        """One forward pass of a batch."""
        return partial(self._start, torch.zeros(BATCH, 3, SIDE, SIDE))

    def round(self, loop: str, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Work]:
        """A fresh network, and what trains it."""
        network = in_default_layout(self._start).to(dtype).train()
        others = others_of(len(self._images), dtype)
        batches = list(np.arange(BATCH * steps, dtype=np.int64).reshape(-1, BATCH))
        tensors = [as_tensor(self._images[batch], network) for batch in batches]
        if loop == "released":
            rows = [[theirs[batch] for batch in batches] for theirs in others]
            return network, lambda: rhfl_pass(network, tensors, rows, RATE)
        network = network.to(memory_format=torch.channels_last)
        if loop == "textbook":
            return network, lambda: mutual_pass(network, self._images, others, batches)
        target = target_of(others)
        if loop == LEAST:
            return network, lambda: _least(network, tensors, [target[batch] for batch in batches])
        options = AlignmentOptions(
            alignment_rate=RATE, alignment_optimizer="fresh_per_batch" if loop == AS_RELEASED else "per_round"
        )
        context = context_of("bfloat16" if loop == HALF else "float32")
        step = AlignmentStep(network, options)
        return network, lambda: align(network, step, self._images, target, batches, options, 0, context)


class RowsCase(Case):
    """Predictions on public images, as a site publishes them; nothing is trained, and the difference is that of the rows."""

    method = "MDH-FL"
    loops = ("ours", "textbook")
    comparisons = (("ours", "textbook"),)
    checked_steps = (1,)

    def __init__(self, backbone: str, *, batches: int) -> None:
        self.title = f"rows, {backbone}, {SIDE} px, {BATCH * batches} images"
        self.steps = batches
        self._start = build_model(ModelSpec(backbone, CLASSES), seed=1)
        self._images = numpy_generator("public").integers(0, 256, (BATCH * batches, SIDE, SIDE, 3), dtype=np.uint8)
        self._start(as_tensor(self._images[:BATCH], self._start))  # running statistics that are not those of the start

    def forward(self) -> Work:
        """One forward pass of a batch."""
        return partial(self._start, torch.zeros(BATCH, 3, SIDE, SIDE))

    def round(self, loop: str, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Callable[[], Tensor]]:
        """The network, and what predicts so many batches of images."""
        network = copy.deepcopy(self._start).to(dtype)
        images = self._images[: BATCH * steps]
        if loop == "textbook":
            return network, lambda: mutual_soft_labels(network, images, BATCH)
        return network, lambda: predict_public(network, images, np.arange(len(images)), context_of())

    def difference(self, ours: str, other: str) -> float:
        """Norm of the difference of the rows in double precision, relative to that of the rows."""
        rows = [self.round(loop, torch.float64, self.steps)[1]() for loop in (ours, other)]
        return float((rows[0] - rows[1]).norm() / rows[1].norm())


def _least(network: nn.Module, batches: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    for images, rows in zip(batches, wanted, strict=True):
        optimizer.zero_grad()
        F.cross_entropy(network(images), rows).backward()
        optimizer.step()


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
    """The mean of the others as a site gets it: from the sum of all rows and its own."""
    own = torch.full_like(others[0], 1 / CLASSES)
    pairs = zip(SITES, (own, *others), strict=True)
    target = add_up({site: SoftLabels.of_site(site, 1, sent) for site, sent in pairs}).mean_of_others(
        SITES[0], {1: own}
    )
    if target is None:
        raise SystemExit("there is nobody to learn from")
    return target


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Bytes of soft labels at the paper's sizes."""
    return {"bytes": traffic()}


def traffic() -> dict[str, Any]:
    """Bytes of a row-matrix of the paper's public set in each format, and of the weights of ResNet-12."""
    state = build_model(ModelSpec("resnet12", CLASSES), seed=1).state_dict()
    encrypted, error = _encrypted()
    weights = sum(entry.numel() * entry.element_size() for entry in state.values())
    formats = {wire: PAPER_IMAGES * CLASSES * DTYPES[wire].itemsize for wire in ("fp32", "fp16", "uint8")}
    return {
        "images": PAPER_IMAGES,
        "classes": CLASSES,
        **formats,
        "encrypted": encrypted,
        "encrypted_over_fp32": round(encrypted / formats["fp32"], 1),
        "largest_error_of_a_decrypted_sum": error,
        "resnet12_weights": weights,
        "weights_over_fp32_rows": round(weights / formats["fp32"], 1),
    }


def _encrypted() -> tuple[int, float]:
    """Bytes of a site's encrypted rows, and the largest error of the sum of four sites'."""
    keys, drawn = make_keys(), others_of(PAPER_IMAGES, torch.float64)
    plain = [drawn[0], *drawn]
    ciphertexts = [encrypt(own, keys.secret) for own in plain]
    shape, name = (PAPER_IMAGES, CLASSES), "the sum"
    total = decrypt(add_encrypted(ciphertexts, keys.public, name), keys.secret, shape, name)
    return len(ciphertexts[0]), float((total - torch.stack(plain).sum(dim=0)).abs().max())


def tables(result: dict[str, Any]) -> str:
    names = {
        "fp32": "fp32",
        "fp16": "fp16",
        "uint8": "uint8",
        "encrypted": "encrypted",
        "weights of ResNet-12": "resnet12_weights",
    }
    cases = [{"what": title, "mb": result["bytes"][name] / 1e6} for title, name in names.items()]
    return table({"soft labels of 26,379 images, 13 classes": "what", "MB": "mb"}, cases, 2)


if __name__ == "__main__":
    run(__file__, measured, tables)
