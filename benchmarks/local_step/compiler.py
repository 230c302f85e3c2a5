"""Measure training steps with and without torch's compiler (``executor.compiler=inductor``).

Steps of supervised training with a plain network and with a compiled one, in turn; the first step, in which the compiler
works; the first step with another number of images, which is compiled for all numbers. Each network is measured in a
process of its own, with an empty cache of the compiler. The error of the compiled gradient against double precision must
be of the order of the plain one's. A run takes some eight minutes of CPU time.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.local_step.case import relative
from benchmarks.measure import in_child, in_turn, milliseconds, run, spread, table
from grandrounds.federation.site.training import new_optimizer
from grandrounds.federation.site.worker import keep_freed_memory
from grandrounds.models.compute import compile_network
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import torch_generator

CASES = (("compact", 64, 16), ("resnet10", 32, 16), ("efficientnet_b0", 96, 16))
CLASSES, ERROR_OVER_PLAIN = 5, 10.0


def measured(options: argparse.Namespace) -> dict[str, Any]:
    cases = []
    for name, size, batch in CASES[:1] if options.quick else CASES:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            sizes = {"size": size, "batch": batch, "repeats": 2 if options.quick else options.repeats}
            cases.append(in_child("benchmarks.local_step.compiler.case", name=name, **sizes))
    return {"cases": cases}


def case(name: str, size: int, batch: int, repeats: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1
    keep_freed_memory()
    steps = {"plain": Training(name, size, batch), "compiled": Training(name, size, batch, compiled=True)}
    first = {loop: first_step(training, batch) for loop, training in steps.items()}
    exact = Training(name, size, batch, dtype=torch.float64)
    exact.step(batch)
    errors = {loop: relative(training.gradient(), exact.gradient()) for loop, training in steps.items()}
    if not errors["compiled"] < ERROR_OVER_PLAIN * errors["plain"]:
        raise SystemExit(f"{name}: errors of the gradients are {errors}")
    found = in_turn({loop: partial(training.step, batch) for loop, training in steps.items()}, repeats)
    return {
        "network": name,
        "image_size": size,
        "batch": batch,
        "ms_per_step": {loop: milliseconds(costs) for loop, costs in found.items()},
        "plain_over_compiled": spread([a.cpu / b.cpu for a, b in zip(*found.values(), strict=True)], 3),
        "s_of_first_step": first,
        "s_of_first_step_of_another_size": {loop: first_step(made, batch - 3) for loop, made in steps.items()},
        "error_of_gradient": {loop: float(f"{error:.1e}") for loop, error in errors.items()},
    }


class Training:
    """Supervised training of one network on noise of different colours."""

    def __init__(
        self, name: str, size: int, batch: int, *, compiled: bool = False, dtype: torch.dtype = torch.float32
    ) -> None:
        self.network = build_model(ModelSpec(name, CLASSES), seed=1).to(dtype).train()
        if compiled:
            compile_network(self.network, "inductor")
        self._optimizer = new_optimizer(self.network.parameters(), "adam", 1e-4)
        generator = torch_generator("images")
        images = torch.rand(batch, 3, 1, 1, generator=generator) + torch.rand(batch, 3, size, size, generator=generator)
        self._images = images.to(dtype, memory_format=torch.channels_last)
        self._labels = torch.arange(batch) % CLASSES

    def step(self, batch: int) -> None:
        """One step on so many of the images."""
        torch.manual_seed(1)
        loss = F.cross_entropy(self.network(self._images[:batch]), self._labels[:batch])
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        self._optimizer.step()

    def gradient(self) -> torch.Tensor:
        """Of the last step, as one vector."""
        return torch.cat([parameter.grad.flatten() for parameter in self.network.parameters()])


def first_step(training: Training, batch: int) -> float:
    """CPU seconds of a step, with those of the processes that it starts."""
    before = sum(os.times()[:4])
    training.step(batch)
    return round(sum(os.times()[:4]) - before, 2)


def tables(result: dict[str, Any]) -> str:
    cases = []
    for case in result["cases"]:
        title = f"{case['network']}, {case['image_size']} px, batches of {case['batch']}"
        errors = {f"error {loop}": f"{error:.0e}" for loop, error in case["error_of_gradient"].items()}
        cases.append({**case, "title": title, **errors})
    columns = {
        "network": "title", "ms": "ms_per_step.plain.cpu.median", "ms compiled": "ms_per_step.compiled.cpu.median",
        "ms / ms compiled": "plain_over_compiled.median", "lowest": "plain_over_compiled.lowest",
        "highest": "plain_over_compiled.highest", "s of first step compiled": "s_of_first_step.compiled",
        "s of another size": "s_of_first_step_of_another_size.compiled", "error": "error plain",
        "error compiled": "error compiled",
    }  # fmt: skip
    return table(columns, cases, 2)


if __name__ == "__main__":
    run(__file__, measured, tables, repeats={"type": int, "default": 15})
