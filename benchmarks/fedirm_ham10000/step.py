"""What a step without labels costs, in forward passes: dropout drawn in the head, everywhere, and as often as released.

The authors' loop passes a batch through the student, the teacher and eleven times through the student again; with the
gradient that is 15 forward passes. Drawing dropout before the last layer alone leaves the first two.

    python benchmarks/fedirm_ham10000/step.py
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from grandrounds.data.site import SiteData
from grandrounds.federation.context import SiteContext, StateCache
from grandrounds.federation.problem import Problem
from grandrounds.methods.fedirm.options import RelationOptions, UnlabelledOptions
from grandrounds.methods.fedirm.relation import Relation
from grandrounds.methods.fedirm.unlabelled import SiteTeacher, UnlabelledStep
from grandrounds.models.registry import build_model
from grandrounds.seeding import numpy_generator

CLASSES = tuple(f"class {number}" for number in range(7))
MODES: dict[str, UnlabelledOptions] = {
    "head, 8 draws": UnlabelledOptions(mc_dropout="head", draws=8),
    "full, 8 draws": UnlabelledOptions(mc_dropout="full", draws=8),
    "released loop": UnlabelledOptions(mc_dropout="full", draws=12),  # eleven passes beside that of the loss
    "no draws": UnlabelledOptions(mc_dropout="none"),
}


def main() -> None:
    """Time all modes in turn and print the least time of each, in seconds and in forward passes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="compact")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=6)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    problem = Problem("noise", CLASSES, arguments.image_size, backbone=arguments.backbone, dropout=0.2)
    with tempfile.TemporaryDirectory() as folder:
        context = _context(problem, arguments.batch_size, Path(folder))
        steps = {name: _step(context, options, arguments.batch_size) for name, options in MODES.items()}
        network = build_model(problem.model_spec(pretrained=False), seed=0)
        images = torch.rand(arguments.batch_size, 3, arguments.image_size, arguments.image_size)
        steps["forward"] = lambda: _forward(network, images)
        times = {name: min(_seconds(step) for _ in range(arguments.repeats)) for name, step in steps.items()}
    passes = {name: round(seconds / times["forward"], 2) for name, seconds in times.items()}
    print(
        json.dumps({"seconds": {name: round(value, 4) for name, value in times.items()}, "forwards": passes}, indent=1)
    )


def _context(problem: Problem, images: int, folder: Path) -> SiteContext:
    names = tuple(str(number) for number in range(images))
    shape = (images, problem.image_size, problem.image_size, 3)
    data = SiteData(
        images=numpy_generator("noise").integers(0, 256, shape, dtype=np.uint8),
        labels=np.zeros(images, np.int64),
        labelled=np.zeros(images, np.bool_),
        split=np.full(images, "train"),
        names=names,
        groups=names,
        classes=problem.classes,
    )
    device = torch.device("cpu")
    return SiteContext("site-1", 1, problem, 1, data, device, "float32", lambda: False, StateCache(folder))


def _step(context: SiteContext, options: UnlabelledOptions, batch_size: int) -> Callable[[], None]:
    """One step as in training, optimizer and teacher included."""
    network = build_model(context.problem.model_spec(pretrained=False), seed=0)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)
    teacher = SiteTeacher(network, options, {})
    classes = len(CLASSES)
    target = Relation(torch.full((classes, classes), 1 / classes), torch.ones(classes, dtype=torch.int64))
    work = UnlabelledStep(context, network, teacher, target, options, RelationOptions(), batch_size)
    rows = np.arange(batch_size)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(work.loss(rows, 0, ramp=1.0))
        optimizer.step()
        teacher.follow(network)

    return step


@torch.no_grad()
def _forward(network: torch.nn.Module, images: torch.Tensor) -> None:
    network(images)


def _seconds(step: Callable[[], None]) -> float:
    # Processor time: the machine may have other work.
    started = time.process_time()
    step()
    return time.process_time() - started


if __name__ == "__main__":
    main()
