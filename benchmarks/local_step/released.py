"""Local steps as the publications' code computes them, with what they cost there.

Written from descriptions of that code, not from it. Networks are in torch's default layout, Adam goes over the parameters
in Python, losses are read in every step. What belongs to a whole round there (copies of models, files, workers that load
images) is left out.

* FedPerl (``textbook.fedperl_round`` with ``released``): the peers' states are loaded anew in every step; strong views are
  drawn of all images; SiLU computes its sigmoid once more in the backward pass; the consistency loss has no gradient.
* FedIRM: eleven passes beside that of the loss find out what is certain, each of the whole network; their mean is that of
  logits, and the threshold is one that no entropy reaches.
* RHFL: a divergence for every other site, and a new Adam for every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.local_step.case import in_default_layout
from benchmarks.local_step.textbook import descend

Indices = NDArray[Any]
MORE_PASSES = 11
NO_ENTROPY = 2.0


class RecomputedSiLU(nn.Module):
    """SiLU that keeps its input alone and computes the sigmoid again in the backward pass."""

    def forward(self, values: Tensor) -> Tensor:
        """Multiply by the sigmoid."""
        result: Tensor = _RecomputedSiLU.apply(values)  # type: ignore[no-untyped-call]
        return result


class _RecomputedSiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return values * torch.sigmoid(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (values,) = ctx.saved_tensors
        sigmoid = torch.sigmoid(values)
        return gradient * (sigmoid * (1 + values * (1 - sigmoid)))


def as_released(network: nn.Module) -> nn.Module:
    """A copy in torch's default layout, its SiLUs as in FedPerl's code."""
    released = in_default_layout(network)
    for module in list(released.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.SiLU):
                setattr(module, name, RecomputedSiLU())
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
    batch_size: int,
    temperature: float = 2.0,
) -> float:
    """A step without labels, in place."""
    logits = network(views[0])
    probabilities = F.softmax(logits, dim=1)
    with torch.no_grad():
        taught = F.softmax(teacher(views[1]), dim=1)
        passes = torch.stack([network(views[0]) for _ in range(MORE_PASSES)])
        mean = F.softmax(passes.mean(dim=0), dim=1)
    entropy = -(mean * torch.log(mean + 1e-30)).sum(dim=1)
    confidence, labels = probabilities.max(dim=1)
    matching = _matching(logits, labels, (entropy < NO_ENTROPY) & (confidence >= min_confidence), target, temperature)
    consistency = (probabilities - taught).square().sum() / batch_size
    loss = factor * (consistency + 0.5 * matching)
    descend(optimizer, loss)
    alpha = min(1 - 1 / (number + 1), 0.99)
    for theirs, ours in zip(teacher.parameters(), network.parameters(), strict=True):
        theirs.data.mul_(alpha).add_(ours.data, alpha=1 - alpha)
    return loss.item()


def _matching(logits: Tensor, labels: Tensor, kept: Tensor, target: Tensor, temperature: float) -> Tensor:
    """Symmetric divergence of the batch's relation matrix from the target, row by row."""
    loss = logits.new_zeros(())
    for number in range(len(target)):
        members = kept & (labels == number)
        if members.any():
            row = F.softmax(logits[members].mean(dim=0) / temperature, dim=0)
            wanted = target[number].to(row)
            loss = loss + (wanted * (wanted.log() - row.log()) + row * (row.log() - wanted.log())).sum()
    return loss / len(target)


def fedirm_labelled_step(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    views: Sequence[Tensor],
    labels: Tensor,
    matrices: list[Tensor],
) -> float:
    """A step with labels, in place: both views, and a relation matrix of the batch; returns the loss."""
    logits = [network(view) for view in views]
    loss = sum((F.cross_entropy(values, labels) for values in logits), logits[0].new_zeros(()))
    detached = logits[0].detach()
    rows = [detached[labels == number].sum(dim=0) for number in range(detached.shape[1])]
    matrices.append(
        F.softmax(torch.stack(rows) / torch.bincount(labels, minlength=len(rows)).clamp(min=1)[:, None], dim=1)
    )
    descend(optimizer, loss)
    return loss.item()


def rhfl_pass(network: nn.Module, batches: Sequence[Tensor], others: Sequence[Sequence[Tensor]], rate: float) -> float:
    """Learn from the others on public images, in place."""
    total = 0.0
    for number, images in enumerate(batches):
        logits = network(images)
        losses = [
            F.kl_div(F.log_softmax(logits, dim=1), rows[number].clone(), reduction="batchmean") for rows in others
        ]
        loss = sum(losses[1:], losses[0]) / len(losses)
        descend(torch.optim.Adam(network.parameters(), lr=rate), loss)
        total += loss.item()
    return total / len(batches)
