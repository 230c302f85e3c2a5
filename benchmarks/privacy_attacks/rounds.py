"""Invert updates of several local steps, and of several rounds.

A site holds one image and takes one or more steps of gradient descent on it in each round. The attacker is the server: it
knows the label, the learning rate and the number of steps, repeats the local steps on a guess (Geiping et al., "Inverting
Gradients", NeurIPS 2020, section 6), and sends another model in each round, so that each update is another view of the same
image. One guess must explain all updates. With a budget all rounds together stay within epsilon. Images are phantoms and the
network is that of ``attacks.py``. About a minute of CPU time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from benchmarks.measure import run, table
from benchmarks.noise import min_noise_multiplier
from benchmarks.privacy_attacks.attacks import attacked_network, similarity
from benchmarks.privacy_attacks.run import DELTA, EPSILONS, SIZE, clip_and_noise, norm_of, phantoms
from grandrounds.data.datasets.phantom import PHANTOM_CLASSES

HERE = Path(__file__).parent
VICTIMS, ITERATIONS, RATE = 2, 100, 0.01
SETTINGS = ((1, 1), (5, 1), (1, 6), (5, 3))
"""Local steps of a round, and rounds."""
State = dict[str, Tensor]


def local_update(network: nn.Module, image: Tensor, label: Tensor, steps: int, differentiable: bool = False) -> State:
    """The update of so many steps of gradient descent on one image; differentiable by the image if asked."""
    start = dict(network.named_parameters())
    now = start
    for _ in range(steps):
        loss = F.cross_entropy(functional_call(network, now, (image[None],)), label[None])
        gradients = torch.autograd.grad(loss, list(now.values()), create_graph=differentiable)
        now = {name: value - RATE * slope for (name, value), slope in zip(now.items(), gradients, strict=True)}
    changed = {name: now[name] - start[name] for name in start}
    return changed if differentiable else {name: value.detach() for name, value in changed.items()}


def invert_rounds(
    networks: Sequence[nn.Module], sent: Sequence[State], label: Tensor, steps: int, iterations: int, seed: int
) -> Tensor:
    """The image whose updates of all rounds have most nearly the directions of those that were sent."""
    directions = [F.normalize(torch.cat([value.flatten() for value in update.values()]), dim=0) for update in sent]
    guess = torch.rand(3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed)).requires_grad_(True)
    optimizer = torch.optim.LBFGS([guess], lr=1.0, max_iter=iterations, history_size=50, line_search_fn="strong_wolfe")

    def distance() -> Tensor:
        optimizer.zero_grad()
        away = torch.zeros(())
        for network, direction in zip(networks, directions, strict=True):
            update = local_update(network, guess, label, steps, differentiable=True)
            own = F.normalize(torch.cat([value.flatten() for value in update.values()]), dim=0)
            away = away + (own - direction).square().sum()
        (guess.grad,) = torch.autograd.grad(away, [guess])
        return away.detach()

    optimizer.step(distance)
    return guess.detach().clamp(0, 1)


def attacked(steps: int, rounds: int, epsilon: float | None, iterations: int) -> tuple[dict[str, Any], list[Tensor]]:
    """Mean similarity of guesses and images, and the guesses."""
    torch.manual_seed(0)
    networks = [attacked_network(len(PHANTOM_CLASSES), SIZE) for _ in range(rounds)]
    multiplier = 0.0 if epsilon is None else min_noise_multiplier(epsilon, DELTA, rounds)
    images, labels = phantoms(VICTIMS, "victims")
    guesses = []
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        updates = [local_update(network, image, label, steps) for network in networks]
        sent = updates if epsilon is None else [clip_and_noise(one, norm_of(one), multiplier) for one in updates]
        guesses.append(invert_rounds(networks, sent, label, steps, iterations, seed=number))
    scores = [similarity(image, guess) for image, guess in zip(images, guesses, strict=True)]
    return {key: round(float(np.mean([score[key] for score in scores])), 3) for key in scores[0]}, guesses


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Similarity by protection, local steps and rounds."""
    started = time.process_time()
    cases, pictures = [], {"the site's image": list(phantoms(VICTIMS, "victims")[0])}
    for epsilon in (None, *EPSILONS):
        protection = "none, or `standard`" if epsilon is None else f"epsilon {epsilon:g}"
        for steps, rounds in SETTINGS[:2] if options.quick else SETTINGS:
            scores, guesses = attacked(steps, rounds, epsilon, 3 if options.quick else ITERATIONS)
            cases.append({"protection": protection, "steps": steps, "rounds": rounds, **scores})
            pictures[f"{protection.replace('`', '')}, {steps} steps, {rounds} rounds"] = guesses
    if not options.quick:
        draw(pictures, HERE / "figures" / "rounds.png")
    return {"victims": VICTIMS, "cases": cases, "cpu_seconds": round(time.process_time() - started, 1)}


def draw(pictures: dict[str, list[Tensor]], path: Path) -> None:
    figure = Figure(figsize=(0.75 * len(pictures) + 0.5, 0.75 * VICTIMS + 1.6), layout="constrained")
    axes = figure.subplots(VICTIMS, len(pictures))
    for column, (name, images) in zip(axes.T, pictures.items(), strict=True):
        for axis, image in zip(column, images, strict=True):
            axis.imshow(image.permute(1, 2, 0).numpy())
            axis.set(xticks=[], yticks=[])
        column[0].set_title(name.replace(", ", "\n"), fontsize=6)
    figure.savefig(path, dpi=150)


def tables(result: dict[str, Any]) -> str:
    """A row for each protection, number of steps and number of rounds."""
    columns = {
        "protection": "protection",
        "local steps": "steps",
        "rounds": "rounds",
        "PSNR (dB)": "psnr_db",
        "correlation": "correlation",
    }
    return f"Mean over {result['victims']} images.\n\n{table(columns, result['cases'], 2)}"


if __name__ == "__main__":
    run(__file__, measured, tables)
