"""What a step without labels costs, in forward passes: dropout drawn in the head, everywhere, and as often as released.

The authors' loop passes a batch through the student, the teacher and eleven times through the student again; with the
gradient that is 15 forward passes. Drawing dropout before the last layer alone leaves the first two. The drawing of
views, the same in all modes, is timed apart and is in none of the other figures. Freed memory stays with the process, as
it does in FedIRM's training; ``--plain-memory`` leaves it to the system. Before anything is timed, one step with draws of
the head is compared in double precision with a slow one, which passes the whole network once more for each draw.

    python benchmarks/fedirm_ham10000/step.py
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.processes import machine
from grandrounds.data.site import SiteData
from grandrounds.federation.site.compute import keep_freed_memory
from grandrounds.federation.site.context import SiteContext, StateCache
from grandrounds.methods.fedirm.options import RelationOptions, UnlabelledOptions
from grandrounds.methods.fedirm.relation import Relation
from grandrounds.methods.fedirm.training import Views
from grandrounds.methods.fedirm.uncertainty import full_draws, head_draws
from grandrounds.methods.fedirm.unlabelled import SiteTeacher, UnlabelledStep
from grandrounds.models.registry import DropoutLinear, build_model
from grandrounds.models.split import head_of
from grandrounds.protocol.problem import Problem
from grandrounds.seeding import numpy_generator, torch_generator

CLASSES = tuple(f"class {number}" for number in range(7))
MODES: dict[str, UnlabelledOptions] = {
    "head, 8 draws": UnlabelledOptions(mc_dropout="head", draws=8),
    "full, 8 draws": UnlabelledOptions(mc_dropout="full", draws=8),
    "released loop": UnlabelledOptions(mc_dropout="full", draws=12),  # eleven passes beside that of the loss
    "no draws": UnlabelledOptions(mc_dropout="none"),
}
TOLERANCE = 1e-12


def main() -> None:
    """Compare with the slow way, time all modes in turn, and write the medians in seconds and in forward passes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="compact")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=41)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("step.json"))
    parser.add_argument("--plain-memory", action="store_true", help="let freed memory go back to the system")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    problem = Problem("noise", CLASSES, arguments.image_size, backbone=arguments.backbone, dropout=0.2)
    kept = not arguments.plain_memory and keep_freed_memory()
    load = os.getloadavg()[0]
    difference = difference_from_the_slow_way(problem, min(arguments.batch_size, 8))
    if not difference < TOLERANCE:
        raise SystemExit(
            f"the update differs by {difference} from that of the slow way, expected less than {TOLERANCE}"
        )
    with tempfile.TemporaryDirectory() as folder:
        times = _times(problem, arguments.batch_size, arguments.repeats, Path(folder))
    result = {
        **{name: getattr(arguments, name) for name in ("backbone", "image_size", "batch_size", "repeats")},
        "threads": 1,
        "memory_kept": kept,
        "seconds": {name: round(value, 5) for name, value in times.items()},
        "forwards": {name: round(times[name] / times["forward"], 2) for name in MODES},
        "largest_difference_from_the_slow_way_float64": difference,
        "machine": {**machine(), "load_before": round(load, 2), "load_after": round(os.getloadavg()[0], 2)},
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
    }
    text = json.dumps(result, indent=1) + "\n"
    arguments.out.write_text(text)
    print(text, end="")


def _times(problem: Problem, batch_size: int, repeats: int, folder: Path) -> dict[str, float]:
    """Median processor seconds of each mode, of one forward pass and of drawing two views; all of them in turn."""
    context = _context(problem, batch_size, folder)
    drawing, rows = Views(context, "unlabelled"), np.arange(batch_size)
    views = drawing.draw(rows, 0, 2)
    steps = {name: _step(context, options, batch_size, views) for name, options in MODES.items()}
    network = build_model(problem.model_spec(pretrained=False), seed=0).train()
    steps["forward"] = lambda: _forward(network, views[0])
    steps["two views"] = lambda: _draw(drawing, rows)
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 1):
        for name, step in steps.items():
            seconds = _seconds(step)
            if repeat:  # the first round warms up
                taken[name].append(seconds)
    return {name: median(seconds) for name, seconds in taken.items()}


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


def _target() -> Relation:
    classes = len(CLASSES)
    return Relation(torch.full((classes, classes), 1 / classes), torch.ones(classes, dtype=torch.int64))


def _step(context: SiteContext, options: UnlabelledOptions, batch_size: int, views: list[Tensor]) -> Callable[[], None]:
    """One step as in training, optimizer and teacher included, views drawn already."""
    network = build_model(context.problem.model_spec(pretrained=False), seed=0).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)
    teacher = SiteTeacher(network, options, {})
    work = UnlabelledStep(context, network, teacher, _target(), options, RelationOptions(), batch_size)
    rows = np.arange(batch_size)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(work.loss_of_views(rows, views, 0, ramp=1.0))
        optimizer.step()
        teacher.follow(network)

    return step


@torch.no_grad()
def _forward(network: nn.Module, images: Tensor) -> None:
    network(images)


def _draw(views: Views, rows: np.ndarray) -> None:
    views.draw(rows, 0, 2)


def _seconds(step: Callable[[], None]) -> float:
    # Processor time: the machine may have other work.
    started = time.process_time()
    step()
    return time.process_time() - started


class Masked(nn.Dropout):
    """Dropout with given masks, one row for each sample that comes."""

    def __init__(self, masks: Tensor, probability: float) -> None:
        super().__init__(probability)
        self._masks, self._used = masks, 0

    def forward(self, input: Tensor) -> Tensor:
        """Drop by the next rows."""
        rows = self._masks[self._used : self._used + len(input)]
        self._used += len(input)
        return input * rows / (1 - self.p)


def difference_from_the_slow_way(problem: Problem, images: int, draws: int = 8) -> float:
    """Largest difference, over parameters and running statistics, after one step with the same masks.

    The slow way makes each draw by a whole pass; batch norm does not note these passes, as in training.
    """
    spec = problem.model_spec(pretrained=False)
    size = problem.image_size
    batch = torch.rand(images, 3, size, size, generator=torch_generator("images"), dtype=torch.float64)
    after = [_double_step(spec, batch, draws, slow) for slow in (False, True)]
    return max(float((after[0][name] - after[1][name]).abs().max()) for name in after[0])


def _double_step(spec: Any, batch: Tensor, draws: int, slow: bool) -> dict[str, Tensor]:
    from grandrounds.methods.fedirm.loss import consistency_loss, relation_matching_loss, unlabelled_loss
    from grandrounds.methods.fedirm.relation import pseudo_relation
    from grandrounds.methods.fedirm.uncertainty import certain, logits_and_features

    network = build_model(spec, seed=0).double().train()
    head = head_of(network)
    if not isinstance(head, DropoutLinear):
        raise SystemExit(f"{spec.backbone} has no dropout before its last layer to compare")
    masks = torch.rand((draws + 2) * len(batch), head.in_features, generator=torch_generator("masks")) > head.dropout.p
    teacher = copy.deepcopy(network)
    head.dropout = Masked(masks.double(), head.dropout.p)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    logits, features = logits_and_features(network, head, batch)
    head_of(teacher).dropout = Masked(masks[-len(batch) :].double(), head.dropout.p)
    with torch.no_grad():
        taught = torch.softmax(teacher(batch), dim=1)
    # full_draws counts the pass of the loss as the first draw, the head draws anew: one more is asked for, and left out.
    made = full_draws(network, batch, logits, draws + 1)[1:] if slow else head_draws(head, features, draws)
    threshold = float(torch.special.entr(made.double().mean(dim=0)).sum(dim=1).median())
    keep = certain(made.double(), threshold)
    matching = relation_matching_loss(_target(), pseudo_relation(logits, keep))
    loss = unlabelled_loss(consistency_loss(logits.softmax(dim=1), taught), matching, 1.0, 15.0, 0.5)
    torch.autograd.backward(loss)
    optimizer.step()
    return {name: value.double() for name, value in network.state_dict().items()}


if __name__ == "__main__":
    main()
