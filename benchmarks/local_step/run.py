"""What a local step of FedPerl costs, beside the plain loop of ``textbook.py`` that makes the same update.

Both take the same rounds in turn, on one thread, from the same model with the same batches and views. The loop cannot cheat:
the first gradients of both are compared. How much of the processor's power arrives in the network is told by the
floating-point operations of convolutions and matrix products over the CPU time of the whole step, drawing the views
included, beside the rate of large matrix products, which are timed between the rounds.

    python -m benchmarks.local_step.run --workspace runs/local_step
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.local_step.textbook import textbook_round
from benchmarks.measure import spread
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from grandrounds.data.augment import View, draw_views
from grandrounds.data.phantom import PHANTOM_CLASSES
from grandrounds.data.phantom_site import DATASET_NAME, phantom_site
from grandrounds.data.site import load_site_data, read_site_config
from grandrounds.deployment.processes import machine
from grandrounds.federation.context import SiteContext, StateCache
from grandrounds.federation.problem import Problem
from grandrounds.federation.record import versions
from grandrounds.methods.fedperl.guidance import PeerGuide
from grandrounds.methods.fixmatch.loss import PseudoLabels
from grandrounds.methods.fixmatch.training import SemiSupervisedOptions, train_semi_supervised
from grandrounds.methods.supervised.training import TrainingOptions
from grandrounds.models.folding import folded_copy
from grandrounds.models.registry import build_model

RESULT = Path(__file__).parent / "result.json"
IMAGE_SIZE, BATCH_SIZE, GAMMA = 64, 16, 0.01
TRAINED_STEPS, PEER_STEPS = 60, 13
LEARNING_RATE = 0.001
MOST_DIFFERENCE = 1e-3
MATRIX_SIDE, MATRIX_PRODUCTS = 1024, 10
VIEWS: tuple[View, ...] = ("weak", "strong")
# Backbone, peers (one is the anonymised peer of the job fedperl, two are its peers as they are), steps of a round.
CASES = (("compact", 1, 26), ("compact", 2, 26), ("efficientnet_b0", 1, 13))

Shape = Sequence[int]


@dataclass(frozen=True)
class Case:
    """What both loops start from."""

    context: SiteContext
    start: nn.Module
    peers: list[dict[str, Tensor]]
    steps: int
    threshold: float


def main() -> None:
    """Measure all cases and write ``result.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workspace", type=Path, default=Path("runs/local_step"))
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = {
        "cases": [
            measured(make_case(backbone, peers, steps, arguments.workspace.absolute()), arguments.repeats)
            for backbone, peers, steps in CASES
        ],
        "threads": 1,
        "versions": versions(),
        "machine": machine(),
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def make_case(backbone: str, peers: int, steps: int, workspace: Path) -> Case:
    """A model that has been trained a little, and peers that went on from it at other sites.

    The threshold is the median confidence of the pseudo-labels, so that about half of the images are accepted, whatever
    the backbone has learnt so far.
    """
    problem = Problem(DATASET_NAME, PHANTOM_CLASSES, IMAGE_SIZE, 3, backbone)
    context, *others = (context_of(f"site-{number}", problem, workspace) for number in range(1, peers + 2))
    start = trained(build_model(problem.model_spec(pretrained=False), seed=1), context, TRAINED_STEPS)
    states = [dict(trained(start, other, PEER_STEPS).state_dict()) for other in others]
    case = Case(context, start, states, steps, threshold=1.0)
    guide = Listening(frozen_peers(case), GAMMA)
    package_round(case, copy.deepcopy(start), guide)
    return replace(case, threshold=float(torch.cat(guide.heard).median()))


class Listening(PeerGuide):
    """Remembers how confident the pseudo-labels were."""

    heard: list[Tensor]

    def labels(self, local: Tensor, predictions: Sequence[Tensor], threshold: float) -> PseudoLabels:
        """The pseudo-labels, unchanged."""
        found = super().labels(local, predictions, threshold)
        self.heard = [*getattr(self, "heard", []), found.confidence]
        return found


def context_of(site: str, problem: Problem, workspace: Path) -> SiteContext:
    """A task at a site of drawn images."""
    location = read_site_config(phantom_site(site, workspace / "sites", size=IMAGE_SIZE))[DATASET_NAME]
    data = load_site_data(location, problem.classes, IMAGE_SIZE, problem.channels, workspace / "cache")
    cache = StateCache(workspace / "states")
    return SiteContext(site, 1, problem, 1, data, torch.device("cpu"), "float32", lambda: False, cache)


def trained(network: nn.Module, context: SiteContext, steps: int) -> nn.Module:
    """A copy with some training on the site's labelled images and its own pseudo-labels."""
    network = copy.deepcopy(network)
    training = TrainingOptions(batch_size=BATCH_SIZE, steps=steps)
    train_semi_supervised(network, fused_adam(network), context, training, SemiSupervisedOptions())
    return network


def fused_adam(network: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that the package's executors use."""
    return torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, fused=True)


def frozen_peers(case: Case) -> list[nn.Module]:
    """The peers as the package's executor makes them."""
    frozen = []
    for state in case.peers:
        peer = build_model(case.context.problem.model_spec(pretrained=False), seed=1)
        peer.load_state_dict(state)
        frozen.append(folded_copy(peer))
    return frozen


def package_round(case: Case, network: nn.Module, guide: PeerGuide | None = None) -> dict[str, float]:
    """A round as the package trains it, from the peers' states on."""
    training = TrainingOptions(batch_size=BATCH_SIZE, steps=case.steps)
    options = SemiSupervisedOptions(threshold=case.threshold)
    guide = guide or PeerGuide(frozen_peers(case), GAMMA)
    return train_semi_supervised(network, fused_adam(network), case.context, training, options, guide)


def plain_round(case: Case, network: nn.Module) -> None:
    """The same round by the plain loop."""
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    peer = build_model(case.context.problem.model_spec(pretrained=False), seed=1)
    textbook_round(
        network, optimizer, case.context, case.peers, peer,
        steps=case.steps, batch_size=BATCH_SIZE, threshold=case.threshold, gamma=GAMMA,
    )  # fmt: skip


def measured(case: Case, repeats: int) -> dict[str, Any]:
    """Milliseconds per step of both, in turn; and what ours makes of the processor."""
    difference = gradient_difference(case)
    ours, plain, rates = [], [], []
    for _ in range(repeats):
        ours.append(milliseconds(case, package_round))
        plain.append(milliseconds(case, plain_round))
        rates.append(matrix_product_rate())
    operations, metrics = operations_per_step(case)
    achieved, rate = operations / (statistics.median(cpu for _, cpu in ours) / 1000), statistics.median(rates)
    return {
        "backbone": case.context.problem.backbone,
        "image_size": IMAGE_SIZE,
        "peers": len(case.peers),
        "steps": case.steps,
        "accepted": round(metrics["accepted"], 3),
        **{f"ms_per_step_{name}": both(ours, plain, part) for part, name in enumerate(("wall", "cpu"))},
        "ms_to_draw_a_batch_cpu": {view: milliseconds_to_draw(case, view) for view in VIEWS},
        "relative_difference_of_gradients": difference,
        "package_mflop_per_step": round(operations / 1e6, 1),
        "package_gflops": round(achieved / 1e9, 2),
        "matrix_product_gflops": round(rate / 1e9, 2),
        "share_of_matrix_product_rate": round(achieved / rate, 3),
    }


def both(ours: list[tuple[float, float]], plain: list[tuple[float, float]], part: int) -> dict[str, Any]:
    """One kind of time of both, and their ratio."""
    a, b = [times[part] for times in ours], [times[part] for times in plain]
    ratios = [theirs / mine for mine, theirs in zip(a, b, strict=True)]
    return {"package": spread(a, 3), "textbook": spread(b, 3), "textbook_over_package": spread(ratios, 3)}


def milliseconds(case: Case, train: Callable[[Case, nn.Module], object]) -> tuple[float, float]:
    """Wall and CPU time per step of one round, whatever it takes to begin it included."""
    network = copy.deepcopy(case.start)
    wall, processor_time = time.perf_counter(), time.process_time()
    train(case, network)
    spent = time.perf_counter() - wall, time.process_time() - processor_time
    return 1000 * spent[0] / case.steps, 1000 * spent[1] / case.steps


def milliseconds_to_draw(case: Case, view: View) -> float:
    """CPU time to draw one batch of views, as a mean over some."""
    data, batches = case.context.data, 20
    rows = data.rows("unlabelled")[:BATCH_SIZE]
    began = time.process_time()
    for step in range(batches):
        draw_views(data.images, rows, view, case.context.key("timing"), step)
    return round(1000 * (time.process_time() - began) / batches, 2)


def gradient_difference(case: Case) -> float:
    """Norm of the difference of both loops' gradients in the first step, in float32, relative to the norm of the gradient.

    Later steps are not compared in single precision: Adam divides by the size of a gradient, however small.
    """
    first = replace(case, steps=1)
    networks = [copy.deepcopy(case.start) for _ in range(2)]
    package_round(first, networks[0])
    plain_round(first, networks[1])
    ours, plain = (
        torch.cat([parameter.grad.flatten() for parameter in network.parameters() if parameter.grad is not None])
        for network in networks
    )
    difference = float((ours - plain).norm() / plain.norm())
    if difference > MOST_DIFFERENCE:
        raise SystemExit(f"the two loops differ: their gradients by {difference:.1e} of their norm")
    return float(f"{difference:.1e}")


def operations_per_step(case: Case) -> tuple[float, dict[str, float]]:
    """Floating-point operations of the package's step, forward and backward (a multiply-add is two), and its metrics."""
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.convolution_backward: operations_of_convolution_backward}
    )
    with counter:
        metrics = package_round(case, copy.deepcopy(case.start))
    return counter.get_total_flops() / case.steps, metrics


def operations_of_convolution_backward(
    gradient: Shape, images: Shape, weight: Shape, *others: Any, **options: Any
) -> int:
    """As many as forward for each gradient that is asked for; torch's own count ignores groups.

    Args:
        gradient: shape of the gradient of the output.
        images: shape of the input.
        weight: shape of the weights: ``(channels_out, channels_in / groups, height, width)``.
        others: bias, stride and so on; the last one tells which gradients of input, weights and bias are asked for.
        options: of the counter.
    """
    forward = 2 * gradient[0] * math.prod(gradient[2:]) * math.prod(weight)
    return forward * sum(others[-1][:2])


def matrix_product_rate() -> float:
    """Floating-point operations per second of CPU time in float32 matrix products on one thread."""
    a, b = torch.rand(2, MATRIX_SIDE, MATRIX_SIDE)
    torch.mm(a, b)
    began = time.process_time()
    for _ in range(MATRIX_PRODUCTS):
        torch.mm(a, b)
    return MATRIX_PRODUCTS * 2 * MATRIX_SIDE**3 / (time.process_time() - began)


if __name__ == "__main__":
    main()
