"""Local steps as plain loops, without the project's maths: those of the papers (textbook) and those of the published code.

A *textbook* loop is written from the paper, without care for speed.

* FedPerl: in every step the state of each peer is loaded into one network, which predicts with batch norm; an autograd graph
  is built for nothing; strong views are drawn of all unlabelled images, and only those with an accepted pseudo-label are
  learnt; the optimizer iterates over the parameters in Python.
* MDH-FL: the soft labels of every other site are a loss of their own (Eq. 3).
* Fed-Align: every ordered pair of hospitals is a loss of its own, with both embeddings computed for it.

A *released* loop is written from a description of the published code, and computes what that code computes. Networks are in
torch's default layout, Adam iterates over the parameters in Python, losses are read in every step. Work once per round
(copies of models, files, workers that load images) is left out.

* FedPerl: as in the textbook loop; SiLU computes its sigmoid again in the backward pass; consistency has no gradient.
* FedIRM: eleven passes of the whole network beside that of the loss estimate the uncertainty from their mean logits; no
  entropy reaches the threshold.
* RHFL: a divergence for every other site, and a new Adam for every batch.
* Fed-Align-CL: a second pass of the encoder with a graph, whose embeddings are detached; both losses of the discriminator
  are propagated before its step. Predictions are made in small batches, with graphs. To average, the state of a network is
  collected anew for each entry and each hospital.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.local_step.case import in_default_layout
from grandrounds.data.batches import index_batches
from grandrounds.data.images.augmentation import draw_views
from grandrounds.data.images.tensors import to_tensor
from grandrounds.federation.site.context import SiteContext

EPSILON = 1e-300
NOISE_LEVEL = 1e-3
MORE_PASSES = 11
MAX_ENTROPY = 2.0


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> float:
    """Take one step of an optimizer; returns the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def fedperl_round(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    context: SiteContext,
    peers: Sequence[Mapping[str, Tensor]],
    peer_network: nn.Module,
    *,
    steps: int,
    batch_size: int = 16,
    threshold: float = 0.6,
    beta: float = 0.5,
    gamma: float = 0.01,
    released: bool = False,
) -> None:
    r"""Train in place: :math:`L = \mathrm{wCE} + \beta L_u + \gamma L_{con}` (Bdair et al., MELBA 2022, Eq. 3, 5, 8 and 9).

    Batches and views are those that the package draws in the same context. ``released`` is the released loop.
    """
    data = context.data
    batches = [
        index_batches(data.rows(kind), batch_size, steps, context.generator(f"{kind} batches"))
        for kind in ("labelled", "unlabelled")
    ]
    counts = data.class_counts("labelled")
    median = float(np.median(counts[counts > 0]))
    class_weights = torch.tensor([median / count if count else 100.0 for count in counts.tolist()])

    def draw(rows: NDArray[np.int64], view: str, kind: str, step: int) -> Tensor:
        images = to_tensor(draw_views(data.images, rows, view, context.key(f"{kind} views"), step))
        return images.contiguous() if released else images

    with context.torch_seeded("training"):
        for step, (labelled, unlabelled) in enumerate(zip(*batches, strict=True)):
            logits = network(draw(labelled, "weak", "labelled", step))
            weak, strong = (draw(unlabelled, view, "unlabelled", step) for view in ("weak", "strong"))
            loss = F.cross_entropy(logits, torch.from_numpy(data.labels[labelled]), weight=class_weights.to(logits))
            with torch.set_grad_enabled(not released):
                own = F.softmax(network(weak), dim=1)
            theirs = []
            for state in peers:
                peer_network.load_state_dict(state)
                peer_network.eval()
                theirs.append(F.softmax(peer_network(weak), dim=1).detach())
            confidence, pseudo_labels = ((own.detach() + sum(theirs)) / (len(peers) + 1)).max(dim=1)
            accepted = confidence >= threshold
            if accepted.any():
                loss = loss + beta * F.cross_entropy(network(strong[accepted]), pseudo_labels[accepted])
            loss = loss + gamma * sum(F.mse_loss(own, prediction) for prediction in theirs) / len(peers)
            descend(optimizer, loss)


class RecomputedSiLU(torch.autograd.Function):
    """SiLU that keeps only its input and computes the sigmoid again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        """Multiply by the sigmoid."""
        ctx.save_for_backward(values)
        return values * torch.sigmoid(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Multiply by the derivative."""
        (values,) = ctx.saved_tensors
        sigmoid = torch.sigmoid(values)
        return gradient * (sigmoid * (1 + values * (1 - sigmoid)))


def as_released(network: nn.Module) -> nn.Module:
    """A copy in torch's default layout, with the SiLUs of FedPerl's code."""
    released = in_default_layout(network)
    for module in released.modules():
        if isinstance(module, nn.SiLU):
            module.forward = RecomputedSiLU.apply
    return released


def fedirm_step(
    network: nn.Module,
    teacher: nn.Module,
    optimizer: torch.optim.Optimizer,
    views: Sequence[Tensor],
    target: Tensor,
    *,
    factor: float,
    number: int,
    min_confidence: float,
    temperature: float = 2.0,
) -> None:
    logits = network(views[0])
    probabilities = F.softmax(logits, dim=1)
    with torch.no_grad():
        taught = F.softmax(teacher(views[1]), dim=1)
        mean = F.softmax(torch.stack([network(views[0]) for _ in range(MORE_PASSES)]).mean(dim=0), dim=1)
    entropy = -(mean * torch.log(mean + 1e-30)).sum(dim=1)
    confidence, labels = probabilities.max(dim=1)
    kept = (entropy < MAX_ENTROPY) & (confidence >= min_confidence)
    matching = logits.new_zeros(())  # symmetric divergence of the batch's relation matrix from the target
    for wanted, members in ((row.to(logits), kept & (labels == index)) for index, row in enumerate(target)):
        if members.any():
            row = F.softmax(logits[members].mean(dim=0) / temperature, dim=0)
            matching = matching + ((wanted - row) * (wanted.log() - row.log())).sum() / len(target)
    consistency = (probabilities - taught).square().sum() / len(labels)
    descend(optimizer, factor * (consistency + 0.5 * matching))
    alpha = min(1 - 1 / (number + 1), 0.99)
    for theirs, ours in zip(teacher.parameters(), network.parameters(), strict=True):
        theirs.data.mul_(alpha).add_(ours.data, alpha=1 - alpha)


def fedirm_labelled_step(
    network: nn.Module, optimizer: torch.optim.Optimizer, views: Sequence[Tensor], labels: Tensor
) -> Tensor:
    """Take a step with the labels of both views, in place; returns the relation matrix of the batch."""
    logits = [network(view) for view in views]
    loss = sum((F.cross_entropy(values, labels) for values in logits), logits[0].new_zeros(()))
    detached = logits[0].detach()
    rows = torch.stack([detached[labels == number].sum(dim=0) for number in range(detached.shape[1])])
    counts = torch.bincount(labels, minlength=len(rows)).clamp(min=1)
    descend(optimizer, loss)
    return F.softmax(rows / counts[:, None], dim=1)


def mutual_pass(
    network: nn.Module, batches: Sequence[Tensor], others: Sequence[Sequence[Tensor]], rate: float
) -> float:
    """Learn from the others on public images with one Adam, in place; returns the mean loss."""
    optimizer, total = torch.optim.Adam(network.parameters(), lr=rate), 0.0
    for images, *wanted in zip(batches, *others, strict=True):
        own = F.softmax(network(images), dim=1)
        losses = [F.kl_div(own.log(), theirs, reduction="batchmean") for theirs in wanted]
        total += descend(optimizer, torch.stack(losses).mean())
    return total / len(batches)


def rhfl_pass(network: nn.Module, batches: Sequence[Tensor], others: Sequence[Sequence[Tensor]], rate: float) -> float:
    """Learn from the others on public images as RHFL's code does, in place; returns the mean loss."""
    total = 0.0
    for images, *wanted in zip(batches, *others, strict=True):
        logits = network(images)
        losses = [F.kl_div(F.log_softmax(logits, dim=1), theirs.clone(), reduction="batchmean") for theirs in wanted]
        loss = sum(losses[1:], losses[0]) / len(losses)
        total += descend(torch.optim.Adam(network.parameters(), lr=rate), loss)
    return total / len(batches)


def mutual_soft_labels(network: nn.Module, batches: Sequence[Tensor]) -> Tensor:
    network.eval()
    with torch.no_grad():
        return torch.cat([F.softmax(network(images), dim=1) for images in batches])


def as_tensor(batch: NDArray[np.uint8], dtype: torch.dtype) -> Tensor:
    """Images in [0, 1], channels first; rounded to single precision, as views are."""
    return torch.from_numpy(batch).permute(0, 3, 1, 2).to(torch.float32).div(255).to(dtype)


def fed_align_iteration(
    encoder: nn.Module,
    head: nn.Module,
    discriminator: nn.Module,
    optimizers: Mapping[str, torch.optim.Optimizer],
    images: Tensor,
    labels: Tensor,
    batches: Sequence[Tensor],
    others: Sequence[nn.Module],
) -> None:
    """Train in place: classification, a discriminator step per other hospital, one encoder step from all pairs."""

    def log_loss(probabilities: Tensor) -> Tensor:
        return -(probabilities + EPSILON).log().mean()

    probabilities = head(encoder(images)).softmax(dim=1)
    descend(optimizers["classification"], -probabilities[torch.arange(len(labels)), labels].log().mean())
    for theirs in batches:
        with torch.no_grad():
            own = encoder(images)
        loss = log_loss(discriminator(own).sigmoid()) + log_loss(1 - discriminator(theirs).sigmoid())
        descend(optimizers["discriminator"], loss)
    optimizers["adversarial"].zero_grad()
    for judge in (*(discriminator for _ in others), *others):
        log_loss(judge(encoder(images)).sigmoid()).backward()
    optimizers["adversarial"].step()


def fed_align_released_iteration(
    encoder: nn.Module,
    head: nn.Module,
    discriminator: nn.Module,
    optimizers: Mapping[str, torch.optim.Optimizer],
    images: Tensor,
    labels: Tensor,
    batches: Sequence[Tensor],
    level: float = NOISE_LEVEL,
) -> None:
    """Train in place: classification, and for every other hospital a step of the discriminator."""
    descend(optimizers["classification"], F.cross_entropy(head(encoder(images)), labels))
    embeddings = encoder(images)
    noise = level * torch.randn_like(embeddings) * embeddings.detach().std()
    own = (embeddings + noise).detach()
    for theirs in batches:
        mine, other = discriminator(own).sigmoid(), discriminator(theirs).sigmoid()
        optimizers["discriminator"].zero_grad()
        optimizers["adversarial"].zero_grad()
        (-mine.log().mean() - other.log().mean()).backward(retain_graph=True)
        optimizers["adversarial"].step()
        (0.1 * (-mine.log().mean() - (1 - other).log().mean())).backward()
        optimizers["discriminator"].step()


def fed_align_predictions(network: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Which predictions are correct, in evaluation mode."""
    network.eval()
    return torch.cat([network(images).softmax(dim=1).argmax(dim=1) == labels for images, labels in batches])


def fed_align_average(networks: Sequence[nn.Module], level: float = NOISE_LEVEL) -> None:
    """Replace the entries of all networks by the mean of their noisy entries."""
    with torch.no_grad():
        for name in networks[0].state_dict():
            if name.endswith("num_batches_tracked"):
                for network in networks[1:]:
                    network.state_dict()[name].copy_(networks[0].state_dict()[name])
                continue
            mean = torch.zeros_like(networks[0].state_dict()[name])
            for network in networks:
                entry = network.state_dict()[name]
                noise = torch.distributions.Normal(0.0, level * entry.std(), validate_args=False)
                mean += (entry + noise.sample(entry.shape)) / len(networks)
            for network in networks:
                network.state_dict()[name].copy_(mean)
