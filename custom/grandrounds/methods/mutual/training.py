"""The two halves of a collaborative epoch at a site: learning from the others, and learning from the own labels.

MDH-FL (arXiv 2308.00155, section 3), in the order of RHFL's code (Fang & Ye, CVPR 2022): the public images first. Both take
plain arguments and train in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from grandrounds.data.images.views import View, draw_views
from grandrounds.data.site import SiteData
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.site.training import Adam
from grandrounds.methods.mutual.distillation import alignment_loss, digest_loss, fresh_adam_step
from grandrounds.methods.mutual.loss import refined_cross_entropy, symmetric_cross_entropy
from grandrounds.methods.mutual.options import AlignmentOptions, LocalOptions
from grandrounds.methods.mutual.predictions import as_input
from grandrounds.methods.mutual.work import Work
from grandrounds.models.compute import at_least_single

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Target:
    """What a site's predictions are moved towards.

    Attributes:
        rows: probabilities (FedMD: logits) for images of the public set, shape ``(images, classes)``.
        scale: what the loss is multiplied by; see ``leave_one_out.loss_scale``.
    """

    rows: Tensor
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class Private:
    """A site's own images.

    Attributes:
        images: shape ``(images, height, width, channels)``, uint8.
        labels: class indices, int64; some are wrong.
        rows: the training images.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    rows: Indices

    @classmethod
    def of(cls, data: SiteData) -> Private:
        """Those of a site whose label training may use."""
        return cls(data.images, data.labels, data.rows("labelled"))


class AlignmentStep:
    """Takes a step after each backward pass on public images: of one Adam, or of a new one each time.

    Args:
        network: whose parameters are trained.
        options: which.
    """

    def __init__(self, network: nn.Module, options: AlignmentOptions) -> None:
        self._parameters = list(network.parameters())
        self._rate = options.alignment_rate
        fresh = options.alignment_optimizer == "fresh_per_batch"
        self._optimizer = None if fresh else Adam(self._parameters, lr=self._rate, fused=True)

    def take(self) -> None:
        """Go one step down the gradients."""
        if self._optimizer is None:
            fresh_adam_step(self._parameters, self._rate)
        else:
            self._optimizer.step()

    def state_dict(self) -> dict[str, Any] | None:
        """The state of the one Adam; None if each batch has a new one."""
        return None if self._optimizer is None else self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Go on from a state of :meth:`state_dict`."""
        if self._optimizer is not None and state is not None:
            self._optimizer.load_state_dict(state)


def align(
    network: nn.Module,
    step: AlignmentStep,
    images: NDArray[np.uint8],
    target: Target,
    batches: Sequence[Indices],
    options: AlignmentOptions,
    key: int,
    work: Work,
) -> float:
    """Move a model towards the target on public images, one step for each batch.

    Args:
        network: trained in place, in training mode; its batch norm takes in the public images.
        step: of its parameters; one for all exchanges of a round.
        images: all public images.
        target: its rows are those of the public images in their canonical order.
        batches: public images, by row.
        options: how to learn.
        key: of the views, the same at all sites.
        work: where to compute.

    Returns:
        The mean loss over the batches, in nats for ``divergence``; nan without batches.

    Raises:
        GrandRoundsError: if the loss is not finite.
    """
    network.train()
    measure = digest_loss if options.alignment == "digest" else alignment_loss
    rows = target.rows.to(work.device, next(network.parameters()).dtype)
    losses: list[Tensor] = []
    for number, batch in enumerate(batches):
        work.check_abort()
        views = draw_views(images, batch, options.alignment_view, key, number)
        with work.autocast():
            logits = network(as_input(network, views, work.device))
        loss = measure(at_least_single(logits), rows[torch.from_numpy(batch).to(work.device)])
        network.zero_grad(set_to_none=True)
        torch.autograd.backward(loss * target.scale)
        step.take()
        losses.append(loss.detach())
    return _mean(losses, "alignment")


def train_local(
    network: nn.Module,
    private: Private,
    batches: Iterable[Indices],
    options: LocalOptions,
    key: int,
    work: Work,
    trust: float = 0.0,
) -> float:
    """Train a model on the site's own labels, with a new Adam.

    Args:
        network: trained in place, in training mode.
        private: the site's images.
        batches: training images, by row; see ``schedule.local_batches``.
        options: how to learn.
        key: of the views.
        work: where to compute.
        trust: in the own predictions, for ``refined`` labels; see ``schedule.label_trust``.

    Returns:
        The mean loss over the batches, in nats; nan without batches.

    Raises:
        GrandRoundsError: if the loss is not finite.
    """
    network.train()
    optimizer = Adam(network.parameters(), lr=options.learning_rate, fused=True)
    losses: list[Tensor] = []
    for number, batch in enumerate(batches):
        work.check_abort()
        loss = _private_loss(network, private, batch, options, key, number, work, trust, options.local_view)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.detach())
    return _mean(losses, "local training")


@torch.no_grad()
def private_loss(
    network: nn.Module, private: Private, options: LocalOptions, work: Work, trust: float = 0.0, batch_size: int = 256
) -> float:
    """Mean loss over a site's training images in evaluation mode, without views: what client confidence goes by.

    Returns:
        In nats. The network is left in the mode it was in.
    """
    training = network.training
    network.eval()
    parts = [private.rows[start : start + batch_size] for start in range(0, len(private.rows), batch_size)]
    losses = [_private_loss(network, private, part, options, 0, 0, work, trust, "none") * len(part) for part in parts]
    network.train(training)
    return float(torch.stack(losses).sum()) / len(private.rows)


def _private_loss(
    network: nn.Module,
    private: Private,
    batch: Indices,
    options: LocalOptions,
    key: int,
    step: int,
    work: Work,
    trust: float,
    view: View,
) -> Tensor:
    views = draw_views(private.images, batch, view, key, step)
    with work.autocast():
        logits = network(as_input(network, views, work.device))
    return local_loss(at_least_single(logits), torch.from_numpy(private.labels[batch]).to(work.device), options, trust)


def local_loss(logits: Tensor, labels: Tensor, options: LocalOptions, trust: float = 0.0) -> Tensor:
    """The loss that the options choose, a scalar in nats; see ``loss``."""
    if options.loss == "cross_entropy":
        return symmetric_cross_entropy(logits, labels, 1.0, 0.0)
    if options.loss == "symmetric":
        weights = _or(options.ce_weight, 0.1), _or(options.rce_weight, 1.0)
        return symmetric_cross_entropy(logits, labels, *weights, options.label_floor)
    weights = _or(options.ce_weight, 0.4), _or(options.rce_weight, 0.9)
    return refined_cross_entropy(logits, labels, trust, options.temperature, *weights, options.label_floor)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _mean(losses: Sequence[Tensor], what: str) -> float:
    """Mean of the losses; one transfer from the device."""
    if not losses:
        return float("nan")
    mean = float(torch.stack(list(losses)).double().mean())
    if not np.isfinite(mean):
        raise GrandRoundsError(f"{what} diverged: its loss is not finite; lower its learning rate")
    return mean
