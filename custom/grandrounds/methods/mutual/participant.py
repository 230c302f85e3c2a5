"""A site in mutual learning, whatever brings its messages.

One collaborative epoch is: publish rows, get the sum, learn from the others, learn from the own labels (MDH-FL, arXiv
2308.00155, section 3, in the order of RHFL's code). The participant keeps the rows that it has sent as the others decode
them, because those are what it has to take out of a sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from grandrounds.methods.mutual.bn_recalibration import recalibrate_batch_norm
from grandrounds.methods.mutual.contributions import RowSum, leave_one_out_mean, loss_scale, mean_of_all
from grandrounds.methods.mutual.exchange import RowMessage
from grandrounds.methods.mutual.local_training import Epoch, learn_own_labels
from grandrounds.methods.mutual.options import AlignmentOptions, ExchangeOptions, LocalOptions
from grandrounds.methods.mutual.predictions import public_rows
from grandrounds.methods.mutual.schedule import whole_batches
from grandrounds.methods.mutual.soft_labels import decode_rows, decode_scores, encode_rows
from grandrounds.methods.mutual.training import AlignmentStep, Private, Target, align, private_loss
from grandrounds.methods.mutual.weights import parameter_change
from grandrounds.methods.mutual.work import Work
from grandrounds.seeding import derive_seed

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Choices:
    """All options of mutual learning, and what they are relative to.

    Attributes:
        seed: of the run; the same at all sites.
        epochs: collaborative epochs in all.
        exchange: what is exchanged.
        alignment: how to learn from the others.
        local: how to learn from the own labels.
    """

    seed: int
    epochs: int
    exchange: ExchangeOptions
    alignment: AlignmentOptions
    local: LocalOptions


@dataclass(frozen=True, eq=False)
class PublicImages:
    """The public set at a site.

    Attributes:
        images: in canonical order, shape ``(images, height, width, channels)``, uint8.
        digest: of the set, see ``data.public_set``.
    """

    images: NDArray[np.uint8]
    digest: str


class Participant:
    """A site's model and what it has sent.

    Args:
        site: its name.
        network: logits for images in [0, 1]; trained in place.
        public: the public set.
        private: the site's own images.
        choices: the options.
        work: where to compute.
    """

    def __init__(
        self, site: str, network: nn.Module, public: PublicImages, private: Private, choices: Choices, work: Work
    ) -> None:
        self.network = network
        self._site = site
        self._public = public
        self._private = private
        self._choices = choices
        self._work = work
        self._sent: dict[int, Tensor] = {}
        self._change = 0.0
        self._step: tuple[int, AlignmentStep] | None = None

    def pretrain(self) -> float:
        """Train on the own labels before the first exchange; returns the mean loss, nan if there is nothing to do."""
        epochs = self._choices.local.pretrain_epochs
        return self._train(0, epochs) if epochs > 0 else float("nan")

    def publish(self, number: int, part: Indices, begins_epoch: bool = True) -> RowMessage:
        """Predict public images.

        Args:
            number: of the exchange.
            part: which images, in any order; their rows are sent in canonical order.
            begins_epoch: whether it is the first of an epoch, which is when client confidence is told.

        Returns:
            What to send. Its rows are kept, as decoded, until they are too old to be in a sum.
        """
        options, exchange = self._choices.alignment, self._choices.exchange
        rows = public_rows(
            self.network,
            self._public.images,
            np.sort(part),
            self._work,
            batch_size=options.rows_batch,
            statistics=options.teacher_statistics,
            content=exchange.content,
        )
        encoded = encode_rows(rows, exchange.wire)
        decode = decode_scores if exchange.content == "logits" else decode_rows
        oldest = number - exchange.max_age
        self._sent = {earlier: sent for earlier, sent in self._sent.items() if earlier >= oldest}
        self._sent[number] = decode(encoded, len(part), rows.shape[1], f"rows of {self._site}")
        loss = None
        if begins_epoch and exchange.weighting != "uniform":
            loss = private_loss(self.network, self._private, self._choices.local, self._work)
        return RowMessage(number, encoded, self._public.digest, loss, self._change)

    def target(self, row_sum: RowSum) -> Target | None:
        """What the model is moved towards; None if there is nobody else in the sum."""
        if self._choices.alignment.alignment == "none":
            return None
        if self._choices.alignment.alignment == "digest":
            return Target(mean_of_all(row_sum))
        others = leave_one_out_mean(row_sum, self._site, self._sent)
        return None if others is None else Target(others, loss_scale(row_sum, self._site))

    def can_take_part_in(self, row_sum: RowSum) -> bool:
        """Whether the own rows in a sum are still here to be taken out; they are not where a site has lost its state."""
        number = row_sum.rounds.get(self._site)
        return number is None or number in self._sent or self._choices.alignment.alignment != "divergence"

    def align(self, row_sum: RowSum, part: Indices, number: int, epoch: int) -> float:
        """Learn from the others.

        Args:
            row_sum: over the rows of ``part``, in canonical order.
            part: public images, in the order of learning.
            number: of the exchange.
            epoch: collaborative epoch, counted from 1; its exchanges share one Adam.

        Returns:
            The mean loss over the batches; nan if there was nothing to learn from.
        """
        target = self.target(row_sum)
        if target is None:
            return float("nan")
        options = self._choices.alignment
        key = derive_seed(self._choices.seed, "alignment views", number)
        batches = whole_batches(part, self._choices.exchange.public_batch)
        spread = Target(_by_image(target.rows, part, len(self._public.images)), target.scale)
        if self._step is None or self._step[0] != epoch:
            self._step = (epoch, AlignmentStep(self.network, options))
        loss = align(self.network, self._step[1], self._public.images, spread, batches, options, key, self._work)
        if self._choices.local.recalibrate_bn:
            recalibrate_batch_norm(self.network, self._private.images, self._private.rows, self._work)
        return loss

    def learn(self, epoch: int) -> float:
        """Learn from the own labels in a collaborative epoch, counted from 1; returns the mean loss over the batches."""
        self._step = None
        before = [parameter.detach().clone() for parameter in self.network.parameters()]
        loss = self._train(epoch, self._choices.local.local_epochs)
        self._change = parameter_change([parameter.detach() for parameter in self.network.parameters()], before)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart, beside the network: tensors, numbers and the state of Adam within an epoch."""
        epoch, step = self._step or (0, None)
        optimizer = step.state_dict() if step else None
        return {"sent": dict(self._sent), "change": self._change, "epoch": epoch, "optimizer": optimizer}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of :meth:`state_dict`."""
        self._sent = dict(state["sent"])
        self._change = float(state["change"])
        if state["epoch"]:
            step = AlignmentStep(self.network, self._choices.alignment)
            step.load_state_dict(state["optimizer"])
            self._step = (int(state["epoch"]), step)

    def _train(self, number: int, passes: float) -> float:
        epoch = Epoch(self._choices.seed, self._site, number, self._choices.epochs)
        return learn_own_labels(self.network, self._private, self._choices.local, passes, epoch, self._work)


def _by_image(rows: Tensor, part: Indices, images: int) -> Tensor:
    """Rows of some images as rows of all: those of the others are never looked at."""
    if len(part) == images:
        return rows
    spread = rows.new_zeros((images, rows.shape[1]))
    spread[torch.from_numpy(np.sort(part))] = rows
    return spread
