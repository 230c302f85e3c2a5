"""A site's model in mutual learning.

One collaborative epoch is: publish soft labels, receive the sum, learn from the others, train locally (MDH-FL, arXiv
2308.00155, section 3, in the order of RHFL's code). The soft labels that were published are kept as the others decode them,
because those have to be subtracted from a sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from grandrounds.federation.site.context import SiteContext
from grandrounds.methods.mutual.options import AlignmentOptions, ExchangeOptions, LocalOptions
from grandrounds.methods.mutual.public import predict_public
from grandrounds.methods.mutual.schedule import whole_batches
from grandrounds.methods.mutual.soft_labels import SoftLabels, decode, encode
from grandrounds.methods.mutual.training import (
    AlignmentStep,
    align,
    mean_local_loss,
    recalibrate_batch_norm,
    train_locally,
)
from grandrounds.seeding import derive_seed

Indices = NDArray[np.int64]


class MutualLearner:
    """A site's model, which is trained in place for a number of collaborative epochs, and its published soft labels.

    Attributes:
        change: how far the last collaborative epoch, alignment and local training, has moved the model, for RHFL+'s client
            confidence; see :func:`parameter_change`.
    """

    def __init__(
        self,
        context: SiteContext,
        network: nn.Module,
        public: NDArray[np.uint8],
        epochs: int,
        exchange: ExchangeOptions,
        alignment: AlignmentOptions,
        local: LocalOptions,
    ) -> None:
        self.network = network
        self.change = 0.0
        self._context = context
        self._public = public
        self._epochs = epochs
        self._exchange = exchange
        self._alignment = alignment
        self._local = local
        self._sent: dict[int, Tensor] = {}
        self._step: tuple[int, AlignmentStep] | None = None
        self._before: list[Tensor] | None = None

    def pretrain(self) -> float:
        """Train locally before the first exchange; return the mean loss, nan without pretraining."""
        epochs = self._local.pretrain_epochs
        return (
            train_locally(self.network, self._local, epochs, 0, self._epochs, self._context) if epochs else float("nan")
        )

    def publish(self, number: int, part: Indices) -> Tensor:
        """Predict public images for the other sites.

        Args:
            number: of the exchange.
            part: which images, in any order; their predictions are sent in canonical order.

        Returns:
            The soft labels as they travel. They are kept, as decoded, until they are too old to be in a sum.
        """
        options, exchange = self._alignment, self._exchange
        values = predict_public(
            self.network,
            self._public,
            np.sort(part),
            self._context,
            statistics=options.teacher_statistics,
            content=exchange.content,
        )
        encoded = encode(values, exchange.wire)
        oldest = number - exchange.max_age
        self._sent = {earlier: sent for earlier, sent in self._sent.items() if earlier >= oldest}
        name = f"soft labels of {self._context.site}"
        self._sent[number] = decode(encoded, len(part), values.shape[1], name, exchange.content == "logits")
        return encoded

    def mean_loss(self) -> float | None:
        """The mean loss on the site's labels, for client confidence; None where clients are weighted alike."""
        if self._exchange.weighting == "uniform":
            return None
        return mean_local_loss(self.network, self._local, self._context)

    def target(self, total: SoftLabels) -> tuple[Tensor, float] | None:
        """Soft labels that the model is moved towards, and the factor of the loss; None without another contributor."""
        if self._alignment.alignment == "none":
            return None
        if self._alignment.alignment == "digest":
            return total.mean(), 1.0
        others = total.mean_of_others(self._context.site, self._sent)
        return None if others is None else (others, total.loss_scale(self._context.site))

    def has_own_soft_labels_of(self, total: SoftLabels) -> bool:
        """Whether the site's soft labels in a sum can be subtracted; they cannot where a site has lost its state."""
        number = total.rounds.get(self._context.site)
        return number is None or number in self._sent or self._alignment.alignment != "divergence"

    def align(self, total: SoftLabels, part: Indices, number: int, epoch: int) -> float:
        """Learn from the others.

        Args:
            total: sum of the soft labels of ``part``, in canonical order.
            part: public images, in the order of learning.
            number: of the exchange.
            epoch: collaborative epoch, counted from 1; its exchanges share one Adam.

        Returns:
            The mean loss over the batches; nan if there was nothing to learn from.
        """
        target = self.target(total)
        if target is None:
            return float("nan")
        self._note_start()
        key = derive_seed(self._context.seed, "alignment views", number)
        batches = whole_batches(part, self._exchange.public_batch) * self._alignment.alignment_epochs
        if self._step is None or self._step[0] != epoch:
            self._step = (epoch, AlignmentStep(self.network, self._alignment))
        step = self._step[1]
        values, step.scale = _by_image(target[0], part, len(self._public)), target[1]
        loss = align(self.network, step, self._public, values, batches, self._alignment, key, self._context)
        if self._local.recalibrate_bn:
            recalibrate_batch_norm(self.network, self._context.data.rows("labelled"), self._context)
        return loss

    def train_locally(self, epoch: int) -> float:
        """Train on the site's labels in a collaborative epoch, counted from 1; return the mean loss over the batches."""
        self._step = None
        before = self._note_start()
        loss = train_locally(self.network, self._local, self._local.local_epochs, epoch, self._epochs, self._context)
        self.change = parameter_change([parameter.detach() for parameter in self.network.parameters()], before)
        self._before = None
        return loss

    def _note_start(self) -> list[Tensor]:
        """The parameters at the start of the epoch: before its first alignment or, without one, local training."""
        if self._before is None:
            self._before = [parameter.detach().clone() for parameter in self.network.parameters()]
        return self._before

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart, beside the network: tensors, numbers and the state of Adam within an epoch."""
        epoch, step = self._step or (0, None)
        optimizer = step.state_dict() if step else None
        before = None if self._before is None else [parameter.cpu() for parameter in self._before]
        kept = {"sent": dict(self._sent), "change": self.change, "epoch": epoch, "optimizer": optimizer}
        return {**kept, "before": before}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of :meth:`state_dict`."""
        self._sent = dict(state["sent"])
        self.change = float(state["change"])
        if state["before"] is not None:
            self._before = [parameter.to(self._context.device) for parameter in state["before"]]
        if state["epoch"]:
            step = AlignmentStep(self.network, self._alignment)
            step.load_state_dict(state["optimizer"])
            self._step = (int(state["epoch"]), step)


def parameter_change(after: Sequence[Tensor], before: Sequence[Tensor]) -> float:
    r"""How far a model has moved: the mean over its parameter tensors of the norm of their change.

    .. math:: \Delta = \frac{1}{K} \sum_{k=1}^{K} \lVert \theta_k - \theta_k^0 \rVert_2

    Example:
        >>> parameter_change([torch.tensor([3.0, 4.0]), torch.ones(1)], [torch.zeros(2), torch.zeros(1)])  # (5 + 1) / 2
        3.0
    """
    norms = [torch.linalg.vector_norm(now - then) for now, then in zip(after, before, strict=True)]
    return float(torch.stack(norms).mean())


def _by_image(values: Tensor, part: Indices, images: int) -> Tensor:
    """Soft labels of some images at the rows of all; the other rows are never used."""
    if len(part) == images:
        return values
    spread = values.new_zeros((images, values.shape[1]))
    spread[torch.from_numpy(np.sort(part))] = values
    return spread
