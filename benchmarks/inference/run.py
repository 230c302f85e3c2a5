"""Networks without gradients in each form: images in a second of CPU time, and what changes in their predictions.

Each network is trained for a few steps on images of HAM10000, so that it decides, and predicts others in
turn in each form, and as one pass over 256 images, which is how predictions were made before. The front of the recommended
preset is measured in turn with products of matrices. CPU time of one thread.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
import zipfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.experiment import DATA
from benchmarks.measure import clocked, in_turn, run
from benchmarks.tables import markdown_table
from grandrounds.data.images.tensors import to_tensor
from grandrounds.federation.memory import keep_freed_memory
from grandrounds.federation.site.features import FEATURE_BATCH
from grandrounds.models.inference.forward import FORMS, Forward
from grandrounds.models.norm import adapt_statistics
from grandrounds.models.partial import front_of
from grandrounds.models.registry import build_model, minimum_image_size
from grandrounds.protocol.problem import ModelSpec

BEFORE = "256 at once"
NETWORKS = ("efficientnet_lite0", "efficientnet_b0", "densenet121", "resnet18", "compact")
SMALLEST_SIDE, STEPS, BATCH, CHUNK, SEED = 32, 40, 16, 256, 1
TRAINED, VALIDATION = 640, 768
FRONT_SIDE, MATRIX, REPEATS = 112, 1024, 9
BOUND, CHANGED = 0.01, 0.001


def measured(options: argparse.Namespace) -> dict[str, Any]:
    keep_freed_memory()
    names = ["compact"] if options.quick else options.networks
    images, labels = _examples(TRAINED + (CHUNK if options.quick else VALIDATION))
    return {
        "images": len(images) - TRAINED,
        "front": _front(images),
        "networks": [_network(name, images, labels) for name in names],
    }


def _examples(count: int) -> tuple[list[Image.Image], Tensor]:
    """Images of HAM10000, spread over the data set, and their classes."""
    with (DATA / "ham10000" / "ham10000_manifest.csv").open(newline="") as stream:
        records = list(csv.DictReader(stream))
    chosen = [records[row] for row in np.random.default_rng(SEED).permutation(len(records))[:count]]
    with zipfile.ZipFile(DATA / "ham10000" / "ham10000_200x150.zip") as files:
        images = [Image.open(io.BytesIO(files.read(record["image"]))).convert("RGB") for record in chosen]
    return images, torch.from_numpy(np.unique([record["label"] for record in chosen], return_inverse=True)[1])


def _tensor(images: list[Image.Image], side: int) -> Tensor:
    return to_tensor(np.stack([np.asarray(image.resize((side, side))) for image in images]))


def _network(name: str, images: list[Image.Image], labels: Tensor) -> dict[str, Any]:
    """Speed and differences of a network's forms."""
    side = max(SMALLEST_SIDE, minimum_image_size(name))
    given = _tensor(images, side)
    network = _trained(name, given[:TRAINED], labels[:TRAINED])
    ways: dict[str, Callable[[Tensor], Tensor]] = {BEFORE: torch.no_grad()(network)}
    ways |= {form: Forward(network, form) for form in FORMS}
    for way in ways.values():
        way(given[:BATCH])
    rates: dict[str, list[float]] = {way: [] for way in ways}
    found: dict[str, list[Tensor]] = {way: [] for way in ways}
    for chunk in given[TRAINED:].split(CHUNK):
        for way, compute in ways.items():
            cost, logits = clocked(partial(compute, chunk))
            rates[way].append(len(chunk) / cost.cpu)
            found[way].append(logits)
    probabilities = {way: torch.cat(logits).softmax(dim=1) for way, logits in found.items()}
    expected = probabilities[BEFORE]
    accuracy = (expected.argmax(dim=1) == labels[TRAINED:]).float().mean()
    cases = {
        way: {
            "images_per_second": round(statistics.median(rates[way]), 1),
            "difference": float((values - expected).abs().max()),
            "changed": float((values.argmax(dim=1) != expected.argmax(dim=1)).float().mean()),
            "equal_bits": torch.equal(values, expected),
        }
        for way, values in probabilities.items()
    }
    return {"network": name, "side": side, "accuracy": round(float(accuracy), 3), "forms": cases}


def _trained(name: str, images: Tensor, labels: Tensor) -> nn.Module:
    weights = "imagenet" if name == "efficientnet_lite0" else None
    network = build_model(ModelSpec(name, classes=7, weights=weights), SEED)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3, fused=True)
    for step in range(STEPS):
        rows = slice(BATCH * step % TRAINED, BATCH * step % TRAINED + BATCH)
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images[rows]), labels[rows]).backward()
        optimizer.step()
    adapt_statistics(network, images.split(CHUNK // 4))
    return network


def _front(images: list[Image.Image]) -> dict[str, Any]:
    """GFLOP a second of the front of ``fedavg --preset recommended`` in each form, and of a product of matrices."""
    spec = ModelSpec("efficientnet_lite0", classes=7, weights="imagenet", trainable="from:15", head="depths")
    front = front_of(build_model(spec, SEED))
    assert front is not None
    batch, matrix = _tensor(images[:FEATURE_BATCH], FRONT_SIDE), torch.rand(MATRIX, MATRIX)
    with FlopCounterMode(display=False) as counter:
        front(batch)
    steps: dict[str, Callable[[], Tensor]] = {form: partial(Forward(front, form), batch) for form in FORMS}
    costs = in_turn({"product": partial(torch.mm, matrix, matrix), **steps}, REPEATS)
    work = dict.fromkeys(steps, counter.get_total_flops()) | {"product": 2 * MATRIX**3}
    rates = {name: work[name] / statistics.median(cost.cpu for cost in costs[name]) / 1e9 for name in costs}
    return {
        name: {"gflops": round(rate, 1), "share": round(rate / rates["product"], 3)} for name, rate in rates.items()
    }


def tables(result: dict[str, Any]) -> str:
    front = [[name, one["gflops"], f"{100 * one['share']:.0f} %"] for name, one in result["front"].items()]
    rows = [
        [
            f"{case['network']}, {case['side']} px",
            way,
            one["images_per_second"],
            one["images_per_second"] / case["forms"][BEFORE]["images_per_second"],
            "equal bits" if one["equal_bits"] else f"{one['difference']:.1e}",
            f"{100 * one['changed']:.2f} %",
            "yes" if one["difference"] <= BOUND and one["changed"] <= CHANGED else "no",
        ]
        for case in result["networks"]
        for way, one in case["forms"].items()
        if way != BEFORE
    ]
    header = ["network", "form", "images/s", f"over {BEFORE}", "largest difference", "changed decisions", "within"]
    shares = markdown_table(["front, in batches of 32", "GFLOP/s", "share of the product of matrices"], front, 1)
    return f"{shares}\n\n{markdown_table(header, rows, 2)}"


if __name__ == "__main__":
    run(__file__, measured, tables, timed=False, networks={"nargs": "*", "default": NETWORKS, "help": "these networks"})
