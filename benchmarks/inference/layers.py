"""Why the front is below the rate of a product of matrices: rate and memory traffic of its layers, by kind.

Each layer of EfficientNet-Lite0, of which the front is the first fifteen of seventeen blocks, is timed alone, on the input
that it has in a batch of 32 images of 112 pixels, in turn with a product of matrices and a copy of memory.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.inference.run import FRONT_SIDE, MATRIX, SEED
from benchmarks.measure import in_turn, run
from benchmarks.tables import markdown_table
from grandrounds.federation.memory import keep_freed_memory
from grandrounds.federation.site.features import FEATURE_BATCH
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec

REPEATS, COPIED = 9, 1 << 24


@torch.no_grad()
def measured(options: argparse.Namespace) -> dict[str, Any]:
    keep_freed_memory()
    network = build_model(ModelSpec("efficientnet_lite0", classes=7, weights="imagenet"), SEED).eval()
    images = torch.rand(FEATURE_BATCH, 3, FRONT_SIDE, FRONT_SIDE).contiguous(memory_format=torch.channels_last)
    layers = _layers(network, images)
    matrix, block = torch.rand(MATRIX, MATRIX), torch.rand(COPIED)
    steps = {"product": partial(torch.mm, matrix, matrix), "copy": block.clone}
    steps |= {str(number): partial(layer, given) for number, (_, layer, given) in enumerate(layers)}
    costs = in_turn(steps, 1 if options.quick else REPEATS)
    seconds = {name: statistics.median(cost.cpu for cost in found) for name, found in costs.items()}
    kinds: dict[str, dict[str, float]] = {}
    for number, (kind, layer, given) in enumerate(layers):
        with FlopCounterMode(display=False) as counter:
            made = layer(given)
        one = kinds.setdefault(kind, dict.fromkeys(("seconds", "flops", "bytes"), 0.0))
        one["seconds"] += seconds[str(number)]
        one["flops"] += counter.get_total_flops()
        one["bytes"] += 4 * (given.numel() + made.numel() + sum(value.numel() for value in layer.parameters()))
    return {
        "product_gflops": 2 * MATRIX**3 / seconds["product"] / 1e9,
        "copy_gbytes": 8 * COPIED / seconds["copy"] / 1e9,
        "kinds": kinds,
    }


def _layers(network: nn.Module, images: Tensor) -> list[tuple[str, nn.Module, Tensor]]:
    """Every layer without parts that the network calls, its kind and its input."""
    found: list[tuple[str, nn.Module, Tensor]] = []
    hooks = [
        module.register_forward_pre_hook(lambda layer, given: found.append((_kind(layer), layer, given[0].clone())))
        for module in network.modules()
        if not list(module.children())
    ]
    network(images)
    for hook in hooks:
        hook.remove()
    return found


def _kind(layer: nn.Module) -> str:
    if not isinstance(layer, nn.Conv2d):
        return "batch norm" if "Norm" in type(layer).__name__ else "activation"
    if layer.groups > 1:
        return "depthwise convolution"
    return "1x1 convolution" if layer.kernel_size == (1, 1) else "first convolution"


def tables(result: dict[str, Any]) -> str:
    total = sum(one["seconds"] for one in result["kinds"].values())
    rows = [
        [
            kind,
            f"{100 * one['seconds'] / total:.0f} %",
            one["flops"] / one["seconds"] / 1e9,
            f"{100 * one['flops'] / one['seconds'] / 1e9 / result['product_gflops']:.0f} %",
            one["bytes"] / one["seconds"] / 1e9,
        ]
        for kind, one in sorted(result["kinds"].items(), key=lambda item: -item[1]["seconds"])
    ]
    rows.append(["product of matrices", "", result["product_gflops"], "100 %", ""])
    rows.append(["copy of 64 MiB", "", "", "", result["copy_gbytes"]])
    return markdown_table(["layers", "share of the time", "GFLOP/s", "of the product", "GB/s moved"], rows, 1)


if __name__ == "__main__":
    run(__file__, measured, tables)
