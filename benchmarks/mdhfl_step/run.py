"""What learning from the others costs in MDH-FL, against the textbook version and against the least possible.

1. One batch in double precision: gradients of the divergence from the mean of the others, and of the mean divergence.
2. A pass over public images: ours, the textbook's, and nothing but forward, backward and Adam on tensors that are there.
3. The rows that a site publishes, in large batches and in those of the alignment.
4. Bytes of an exchange at the paper's sizes, encrypted ones among them, beside the weights of ResNet-12.

Processor time of one thread, least of several repeats in turn.

    python -m benchmarks.mdhfl_step.run
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.mdhfl_step.textbook import as_tensor, textbook_loss, textbook_pass, textbook_rows
from grandrounds.federation.site.context import SiteContext, StateCache
from grandrounds.files import write_json
from grandrounds.methods.baselines.encryption import add_encrypted, decrypt, encrypt, make_keys
from grandrounds.methods.mutual.loss import alignment_loss
from grandrounds.methods.mutual.options import AlignmentOptions
from grandrounds.methods.mutual.public import predict_public
from grandrounds.methods.mutual.soft_labels import DTYPES, SoftLabels, add_up
from grandrounds.methods.mutual.training import AlignmentStep, align
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import numpy_generator, torch_generator

RESULT = Path(__file__).parent / "result.json"
SITES = ("site-1", "site-2", "site-3", "site-4")
CLASSES, SIDE, BATCH = 13, 32, 16
PAPER_IMAGES = 26379
LARGEST_DIFFERENCE = 1e-12


def main() -> None:
    """Measure everything and write ``result.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--images", type=int, default=128, help="public images of the measured passes")
    parser.add_argument("--backbone", default="resnet10")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    images = numpy_generator("public").integers(0, 256, (arguments.images, SIDE, SIDE, 3), dtype=np.uint8)
    result = {
        "gradients": gradients(arguments.backbone, images[:BATCH]),
        "alignment": alignment(arguments.backbone, images, arguments.repeats),
        "rows": rows(arguments.backbone, images, arguments.repeats),
        "bytes": traffic(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "machine": {"cores": os.cpu_count(), "system": platform.system(), "load": round(os.getloadavg()[0], 1)},
    }
    write_json(RESULT, result)
    print(json.dumps(result, indent=1))


def gradients(backbone: str, images: np.ndarray) -> dict[str, Any]:
    """Largest difference between the gradients of both versions, relative to the largest gradient."""
    network = _network(backbone, torch.float64)
    others = others_of(len(images), torch.float64)
    pixels = as_tensor(images, network)
    ours = _gradient(network, alignment_loss(network(pixels), target_of(others)))
    theirs = _gradient(network, textbook_loss(network, pixels, others))
    largest = max(float(gradient.abs().max()) for gradient in theirs)
    difference = max(float((one - other).abs().max()) for one, other in zip(ours, theirs, strict=True)) / largest
    if difference > LARGEST_DIFFERENCE:
        raise SystemExit(f"the gradients differ by {difference}")
    return {"backbone": backbone, "largest_relative_difference": difference}


def alignment(backbone: str, images: np.ndarray, repeats: int) -> dict[str, Any]:
    """Seconds of a pass over the public images, in three versions."""
    others = others_of(len(images), torch.float32)
    target = target_of(others)
    batches = list(np.arange(len(images), dtype=np.int64).reshape(-1, BATCH))
    first, options = _network(backbone, torch.float32).train(), AlignmentOptions()
    ready = [(as_tensor(images[batch], first), target[batch]) for batch in batches]

    def ours() -> None:
        network = copy.deepcopy(first)
        align(network, AlignmentStep(network, options), images, target, batches, options, 0, context_of())

    def least() -> None:
        network = copy.deepcopy(first)
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
        for pixels, wanted in ready:
            optimizer.zero_grad()
            F.cross_entropy(network(pixels), wanted).backward()
            optimizer.step()

    steps = {
        "ours": ours,
        "textbook": lambda: textbook_pass(copy.deepcopy(first), images, others, batches),
        "least": least,
    }
    seconds = _min_times(steps, repeats)
    return {
        "backbone": backbone,
        "images": len(images),
        "batch": BATCH,
        "sites": len(SITES),
        "seconds": seconds,
        "ours_over_least": round(seconds["ours"] / seconds["least"], 3),
        "textbook_over_ours": round(seconds["textbook"] / seconds["ours"], 3),
    }


def rows(backbone: str, images: np.ndarray, repeats: int) -> dict[str, Any]:
    """Seconds of predicting the public images in large batches and in those of the alignment, and how far they differ."""
    network, every = _network(backbone, torch.float32), np.arange(len(images), dtype=np.int64)
    steps = {
        "large_batches": lambda: predict_public(network, images, every, context_of()),
        "textbook": lambda: textbook_rows(network, images, BATCH),
    }
    difference = float((steps["large_batches"]() - steps["textbook"]()).abs().max())
    return {"images": len(images), "largest_difference": difference, "seconds": _min_times(steps, repeats)}


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


def _network(backbone: str, dtype: torch.dtype) -> nn.Module:
    return build_model(ModelSpec(backbone, CLASSES), seed=1).to(dtype)


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


def _gradient(network: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(network.parameters())))


def _min_times(steps: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            started = time.process_time()
            step()
            times[name].append(time.process_time() - started)
    return {name: round(min(values), 4) for name, values in times.items()}


if __name__ == "__main__":
    main()
