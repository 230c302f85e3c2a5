"""Attack a site that sends its updates unchanged, and one whose updates pass the gate.

Images are phantoms. A run takes a few minutes on one CPU core. The noise comes from the operating system, so the last
digits differ between runs. The reconstructed images are written to ``figures/inversion.png``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.measure import run, table
from benchmarks.noise import min_noise_multiplier
from benchmarks.privacy_attacks.attacks import attacked_network, invert, membership, one_step_update, similarity
from grandrounds.data.datasets.phantom import PHANTOM_CLASSES, draw_phantom
from grandrounds.data.images.devices import DEVICES
from grandrounds.methods.fed_align_cl.noise import absolute_noise
from grandrounds.models.registry import build_model
from grandrounds.privacy.gate.treatments import ClipAndNoise
from grandrounds.privacy.mechanisms.dp_sgd import PrivateStep, poisson_batches
from grandrounds.privacy.mechanisms.record_level import RecordLevelOptions
from grandrounds.protocol.problem import ModelSpec
from grandrounds.protocol.spending import Unit, update_sensitivity
from grandrounds.seeding import numpy_generator

HERE = Path(__file__).parent
SIZE, DELTA = 32, 1e-4
EPSILONS = (8.0, 2.0)
PUBLISHED_VARIANCE = 0.001
VICTIMS, ITERATIONS = 4, 300
MEMBERS, OTHERS = 120, 400
STEPS, BATCH, LEARNING_RATE = 120, 24, 2e-3
PRIVATE_CLIP, PRIVATE_RATE = 1.0, 0.02
NO_NOISE = 1e-12
State = dict[str, Tensor]


def measured(options: argparse.Namespace) -> dict[str, Any]:
    started = time.process_time()
    inversion, pictures = attack_updates(3 if options.quick else ITERATIONS)
    inference = attack_models(3 if options.quick else STEPS)
    if not options.quick:
        draw(pictures, HERE / "figures" / "inversion.png")
    return {
        "delta": DELTA,
        "gradient_inversion": inversion,
        "membership_inference": inference,
        "cpu_seconds": round(time.process_time() - started, 1),
    }


def phantoms(count: int, purpose: str) -> tuple[Tensor, Tensor]:
    generator = numpy_generator(0, "privacy attacks", purpose)
    labels = generator.integers(len(PHANTOM_CLASSES), size=count)
    drawn = [draw_phantom(PHANTOM_CLASSES[label], DEVICES[0], SIZE, generator) for label in labels]
    return torch.from_numpy(np.stack(drawn)).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(labels)


def norm_of(update: Mapping[str, Tensor]) -> float:
    return float(torch.cat([value.flatten() for value in update.values()]).norm())


def clip_and_noise(update: Mapping[str, Tensor], clip: float, multiplier: float) -> State:
    """The gate's treatment of one image's update."""
    sigma = multiplier * update_sensitivity(clip, Unit.RECORD)
    return ClipAndNoise(clip, max(sigma, NO_NOISE), Unit.RECORD).apply(update)


def absolute(update: Mapping[str, Tensor], clip: float) -> State:
    """Noise of the published variance, without clipping."""
    return absolute_noise(update, PUBLISHED_VARIANCE, partial(torch.randn, generator=torch.Generator().manual_seed(0)))


# The treatment of an update, whose usual norm is given as the clip.
GATES = {
    f"gate, epsilon {epsilon:g}": partial(clip_and_noise, multiplier=min_noise_multiplier(epsilon, DELTA))
    for epsilon in EPSILONS
}
DEFENCES: Mapping[str, Callable[[Mapping[str, Tensor], float], State]] = {
    "nothing": lambda update, clip: dict(update),
    "noise without clipping, variance 0.001": absolute,
    "clipping without noise": partial(clip_and_noise, multiplier=0.0),
    **GATES,
}


def attack_updates(iterations: int) -> tuple[dict[str, dict[str, float]], dict[str, list[Tensor]]]:
    """Invert the update of one image, for a few images and each defence."""
    torch.manual_seed(0)
    network = attacked_network(len(PHANTOM_CLASSES), SIZE)
    images, labels = phantoms(VICTIMS, "victims")
    table: dict[str, dict[str, float]] = {}
    pictures = {"the site's image": list(images)}
    for name, treat in DEFENCES.items():
        updates = [one_step_update(network, *pair) for pair in zip(images, labels, strict=True)]
        pictures[name] = [
            invert(network, treat(update, norm_of(update)), label, SIZE, iterations, seed=number)
            for number, (update, label) in enumerate(zip(updates, labels, strict=True))
        ]
        scores = [similarity(image, guess) for image, guess in zip(images, pictures[name], strict=True)]
        table[name] = {key: round(float(np.mean([score[key] for score in scores])), 3) for key in scores[0]}
    return table, pictures


def attack_models(steps: int) -> dict[str, dict[str, float]]:
    """Tell members from others by the loss of a model that was sent in full, through the gate, or trained privately."""
    members, others = phantoms(MEMBERS, "members"), phantoms(OTHERS, "others")
    start, trained = new_network(), new_network()
    before = start.state_dict()
    train(trained, members, steps)
    update = {name: value - before[name] for name, value in trained.state_dict().items()}
    table = {"untrained": membership(start, members, others), "nothing": membership(trained, members, others)}
    for name, treat in GATES.items():
        released = new_network()
        treated = treat(update, norm_of(update))
        released.load_state_dict({entry: before[entry] + value for entry, value in treated.items()})
        table[name] = membership(released, members, others)
    for epsilon in EPSILONS:
        private = new_network()
        train_privately(private, members, steps, epsilon)
        table[f"record-level training, epsilon {epsilon:g}"] = membership(private, members, others)
    return table


def new_network() -> nn.Module:
    """The network ``compact``, always from the same weights."""
    return build_model(ModelSpec("compact", len(PHANTOM_CLASSES), norm="group"), seed=0).train()


def train(network: nn.Module, data: tuple[Tensor, Tensor], steps: int) -> None:
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    generator = numpy_generator(0, "privacy attacks", "batches")
    for _ in range(steps):
        rows = torch.from_numpy(generator.choice(MEMBERS, BATCH, replace=False))
        optimizer.zero_grad()
        F.cross_entropy(network(data[0][rows]), data[1][rows]).backward()
        optimizer.step()


def train_privately(network: nn.Module, data: tuple[Tensor, Tensor], steps: int, epsilon: float) -> None:
    rate = BATCH / MEMBERS
    multiplier = min_noise_multiplier(epsilon, DELTA, steps, rate)
    options = RecordLevelOptions(PRIVATE_CLIP, multiplier, rate, steps, microbatch=BATCH)
    step = PrivateStep(network, F.cross_entropy, MEMBERS, options)
    optimizer = torch.optim.SGD(network.parameters(), lr=PRIVATE_RATE, momentum=0.9)
    for rows in poisson_batches(np.arange(MEMBERS), options):
        step.set_gradients(data[0][rows], data[1][rows])
        optimizer.step()


def draw(pictures: Mapping[str, list[Tensor]], path: Path) -> None:
    figure = Figure(figsize=(2 + 1.3 * VICTIMS, 1.4 * len(pictures)), layout="constrained")
    axes = figure.subplots(len(pictures), VICTIMS)
    for row, (name, images) in zip(axes, pictures.items(), strict=True):
        for axis, image in zip(row, images, strict=True):
            axis.imshow(image.permute(1, 2, 0).numpy())
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(name.replace(", ", ",\n"), rotation=0, ha="right", va="center", fontsize=8)
    figure.savefig(path, dpi=120)


def tables(result: dict[str, Any]) -> str:
    inversion, inference = (
        [{"defence": name, **found} for name, found in result[attack].items()]
        for attack in ("gradient_inversion", "membership_inference")
    )
    scores = {
        "attack AUC": "attack_auc",
        "accuracy, members": "accuracy_members",
        "accuracy, others": "accuracy_others",
    }
    return f"""Gradient inversion: mean over {VICTIMS} images, one step on one image.

{table({"defence": "defence", "PSNR (dB)": "psnr_db", "correlation": "correlation"}, inversion, 2)}

Membership inference: {MEMBERS} members, {OTHERS} others; 0.5 is a guess. delta is {result["delta"]:g}.

{table({"defence": "defence", **scores}, inference, 2)}"""


if __name__ == "__main__":
    run(__file__, measured, tables)
