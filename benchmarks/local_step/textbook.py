"""Local steps as one would write them from the papers, without the project's maths and with no thought for speed.

They are what the package's training is compared with, in time and in its result.

* FedPerl: the peers' states are loaded into one network in every step, for every peer; that network predicts with batch norm
  and an autograd graph that nobody uses; strong views are drawn of all unlabelled images though only those with an accepted
  pseudo-label are learnt; the optimizer iterates over the parameters in Python.
* MDH-FL: every other site's soft labels are a loss of their own (Eq. 3).
* Fed-Align: every ordered pair of hospitals is a loss of its own, and both its embeddings are made for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from grandrounds.data.batches import index_batches
from grandrounds.data.images.views import View, draw_views, to_tensor
from grandrounds.federation.site.context import SiteContext

EPSILON = 1e-300


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

    Batches and views are those that the package draws for the same context. ``released`` computes what the publication's
    code does: no gradient of consistency, torch's default layout, and a loss that is read in every step.
    """
    data = context.data
    batches = [
        index_batches(data.rows(kind), batch_size, steps, context.generator(f"{kind} batches"))
        for kind in ("labelled", "unlabelled")
    ]
    class_weights = median_frequency_weights(data.class_counts("labelled"))

    def draw(rows: NDArray[np.int64], view: View, kind: str, step: int) -> Tensor:
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
            if released:
                loss.item()


def median_frequency_weights(counts: np.ndarray) -> Tensor:
    """Median count over count; 100 for a class without images."""
    median = float(np.median(counts[counts > 0]))
    return torch.tensor([median / count if count else 100.0 for count in counts.tolist()])


def mutual_loss(network: nn.Module, images: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Mean over the others of the divergence of the own predictions from theirs."""
    own = F.softmax(network(images), dim=1)
    losses = [F.kl_div(own.log(), theirs, reduction="batchmean") for theirs in others]
    return torch.stack(losses).mean()


def mutual_pass(
    network: nn.Module, images: NDArray[np.uint8], others: Sequence[Tensor], batches: Sequence[NDArray[np.int64]]
) -> float:
    """One pass over the public images with one Adam; returns the mean loss."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    total = 0.0
    for batch in batches:
        loss = mutual_loss(network, as_tensor(images[batch], network), [theirs[batch] for theirs in others])
        descend(optimizer, loss)
        total += loss.item()
    return total / len(batches)


def mutual_soft_labels(network: nn.Module, images: NDArray[np.uint8], batch_size: int) -> Tensor:
    """Predictions in evaluation mode, batch after batch."""
    network.eval()
    parts = []
    with torch.no_grad():
        for start in range(0, len(images), batch_size):
            parts.append(F.softmax(network(as_tensor(images[start : start + batch_size], network)), dim=1))
    return torch.cat(parts)


def as_tensor(batch: NDArray[np.uint8], network: nn.Module) -> Tensor:
    """Images in [0, 1], channels first; as they come from views, in single precision, whatever the network's."""
    dtype = next(network.parameters()).dtype
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
    noise: Tensor,
) -> None:
    """Train in place: classification, a discriminator step per other hospital, one encoder step from all pairs."""
    descend(optimizers["classification"], _cross_entropy(head(encoder(images)), labels))
    for theirs in batches:
        with torch.no_grad():
            own = encoder(images)
        wrong = 1 - discriminator(theirs).sigmoid()
        loss = -(discriminator(own).sigmoid() + EPSILON).log().mean() - (wrong + EPSILON).log().mean()
        descend(optimizers["discriminator"], loss)
    optimizers["adversarial"].zero_grad()
    for _ in others:
        (-(discriminator(encoder(images)).sigmoid() + EPSILON).log().mean()).backward()
    for theirs in others:
        (-(theirs(encoder(images) + noise).sigmoid() + EPSILON).log().mean()).backward()
    optimizers["adversarial"].step()


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    probabilities = logits.softmax(dim=1)
    return -probabilities[torch.arange(len(labels)), labels].log().mean()


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step of an optimizer."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
