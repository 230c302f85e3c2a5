"""Mutual learning at a site: its own network, its own labels, and the soft labels of the other sites.

Beside it the bases of sites that train on their own labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from grandrounds.data.partition.public_set import PublicSet
from grandrounds.data.site import PUBLIC_NAME as PUBLIC
from grandrounds.data.site import SiteData
from grandrounds.errors import ConfigurationError, GrandRoundsError, MessageError
from grandrounds.federation.site.closed_form import OwnHeadExecutor
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.scoring import score
from grandrounds.federation.site.store import SiteStore, copy_to_cpu
from grandrounds.methods.mutual.options import AlignmentOptions, ExchangeOptions, FinalTestOptions, LocalOptions
from grandrounds.methods.mutual.public import predict_public, public_images
from grandrounds.methods.mutual.schedule import Exchanges, whole_batches
from grandrounds.methods.mutual.soft_labels import SoftLabels, decode, encode
from grandrounds.methods.mutual.training import (
    AlignmentStep,
    align,
    mean_local_loss,
    recalibrate_batch_norm,
    train_locally,
)
from grandrounds.protocol.messages import Payload, Registration, Release, ReleaseKind, Result
from grandrounds.seeding import derive_seed


class LocalTrainingExecutor(OwnHeadExecutor):
    """Trains on the site's labels with a new optimizer in every round."""

    record_level_obstacle: ClassVar[str] = "its local batches are not drawn in secret"
    local: LocalOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"model": self.models[0], **options})
        if self.site_options.optimizer != "fresh":
            raise ConfigurationError("optimizer must be fresh: others have changed the model since the last round")

    def train_round(
        self, network: nn.Module, first: bool, epoch: int, epochs: int, context: SiteContext
    ) -> dict[str, float]:
        """Pretrain a model in a site's first round, else train it for ``local_epochs``; return the loss as a metric."""
        passes = self.local.pretrain_epochs if first else self.local.local_epochs
        return {"loss": train_locally(network, self.local, passes, epoch, epochs, context)} if passes > 0 else {}


class OwnModelExecutor(LocalTrainingExecutor):
    """A site with a model of its own, which may be tested in the last rounds."""

    models: ClassVar[tuple[str, ...]] = ("own",)
    testing: FinalTestOptions

    def register(self, payload: Payload, context: SiteContext) -> Registration:
        """Nothing beside the architecture.

        Raises:
            GrandRoundsError: if there is no test image for ``test_rounds``.
        """
        if self.testing.test_rounds and not len(context.data.rows("test")):
            raise GrandRoundsError(f"{context.site}: executor.test_rounds needs test images, and there is none")
        return Registration()

    def scores_of_round(
        self, network: nn.Module, context: SiteContext, rounds: int, prefix: str = "test"
    ) -> dict[str, float]:
        """Scores on the site's test images, as metrics of one of the last rounds; nothing in the rounds before.

        No score of single classes is among them where the site's own minimum of patients hides a class.

        Args:
            network: left in evaluation mode if it is tested.
            context: of the task.
            rounds: of the run.
            prefix: of the names of the scores.
        """
        if context.round_number <= rounds - self.testing.test_rounds:
            return {}
        record, _ = score(network.eval(), context.data.rows("test"), context)
        leaves = record.suppressed(context.data.min_support)
        return {f"{prefix}.{name}": value for name, value in leaves.exact.items()}


SOFT_LABELS, VALUES = "soft_labels", "values"
LOSS, CHANGE = "local_loss", "parameter_change"


class MutualExecutor(OwnModelExecutor):
    """Learns from the mean of the others' soft labels on public images, and from the site's own noisy labels.

    MDH-FL (arXiv 2308.00155), RHFL, RHFL+ and FedMD by options; no weight leaves the site. In each of the last
    ``test_rounds`` rounds the model is tested after alignment and after training.
    """

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType({SOFT_LABELS: ReleaseKind.SOFT_LABELS})
    registration_facts: ClassVar[tuple[str, ...]] = (PUBLIC,)
    needed: ClassVar[tuple[str, ...]] = (PUBLIC,)
    images_beside: ClassVar[str] = "public"
    """Option of the controller: under which name each site has images beside its own."""
    alignment: AlignmentOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._public: tuple[SiteData, PublicSet, NDArray[np.uint8]] | None = None

    def register(self, payload: Payload, context: SiteContext) -> Registration:
        """Which public images this site has.

        Raises:
            GrandRoundsError: if there is no test image for ``test_rounds``.
        """
        super().register(payload, context)
        public, images = self._public_set(payload, context)
        scalars = {"public_images": float(len(images)), "classes": float(len(context.problem.classes))}
        return Registration(scalars, {PUBLIC: public.digest})

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Learn from the last exchange, train locally, and publish for the next exchange."""
        exchanges, rounds = self._exchanges(payload, context)
        learner = self._learner(payload, context, exchanges, rounds)
        number = context.round_number
        metrics = self._learn(learner, exchanges, rounds, payload, context)
        releases: dict[str, Release] = {}
        if number < rounds and exchanges.options.content != "none":
            encoded = learner.publish(number, exchanges.part(number))
            releases[SOFT_LABELS] = Release(ReleaseKind.SOFT_LABELS, {VALUES: encoded})
            loss = learner.mean_loss() if exchanges.begins_epoch(number) else None
            if loss is not None:
                metrics |= {LOSS: loss, CHANGE: learner.change}
        self.kept = {"model": copy_to_cpu(learner.network.state_dict()), "learner": learner.state_dict()}
        metrics |= self.scores_of_round(learner.network, context, rounds)
        samples = len(context.data.rows("labelled"))
        return Result(releases, {name: value for name, value in metrics.items() if math.isfinite(value)}, samples)

    def on_result_released(self, left: Result, payload: Payload, store: SiteStore) -> None:
        """Keep the site's soft labels as they have left: a filter may have rounded them, and so they are in the sum."""
        release = left.releases.get(SOFT_LABELS)
        if release is None:
            return
        values, state = release.tensors[VALUES], store.staged_state()
        logits = payload.values["exchange"]["options"]["content"] == "logits"
        sent_labels = decode(
            values, values.shape[0], values.shape[-1], "the site's own soft labels as they left", logits
        )
        sent = state["learner"]["sent"]
        if not torch.equal(sent[payload.round_number], sent_labels):
            sent[payload.round_number] = sent_labels
            store.stage_state(payload.round_number, state)

    def _learn(
        self, learner: MutualLearner, exchanges: Exchanges, rounds: int, payload: Payload, context: SiteContext
    ) -> dict[str, float]:
        metrics: dict[str, float] = {}
        last = context.round_number - 1
        if not self.kept:
            metrics["pretrain_loss"] = learner.pretrain()
        total = self._received(payload, exchanges, last, context)
        if total is not None and not learner.has_own_soft_labels_of(total):
            metrics["own_soft_labels_lost"] = 1.0
        elif total is not None:
            metrics["alignment_loss"] = learner.align(total, exchanges.part(last), last, exchanges.epoch(last))
            metrics |= self.scores_of_round(learner.network, context, rounds, "aligned")
        ended = self.alignment.final_phase == "alignment" and context.round_number == rounds
        if last and exchanges.ends_epoch(last) and not ended:
            metrics["loss"] = learner.train_locally(exchanges.epoch(last))
        return metrics

    def _exchanges(self, payload: Payload, context: SiteContext) -> tuple[Exchanges, int]:
        """The exchanges of the run and its rounds, from the task.

        Raises:
            MessageError: if the task lacks them, or this site learns from other soft labels.
        """
        values = payload.values.get("exchange", {})
        try:
            exchange, rounds = ExchangeOptions(**values["options"]), int(values["rounds"])
        except (TypeError, KeyError, ConfigurationError) as error:
            raise MessageError(f"the task lacks the options of the exchange: {error}") from error
        # A divergence is between probabilities, a digest is of logits.
        alignment = self.alignment.alignment
        learnt = {"divergence": "probabilities", "digest": "logits"}.get(alignment)
        if learnt and exchange.content not in (learnt, "none"):
            raise MessageError(
                f"executor.alignment={alignment} learns from {learnt}, controller.content is {exchange.content}; change "
                "one of them"
            )
        return Exchanges(len(self._public_set(payload, context)[1]), context.seed, exchange), rounds

    def _learner(self, payload: Payload, context: SiteContext, exchanges: Exchanges, rounds: int) -> MutualLearner:
        public = self._public_set(payload, context)[1]
        epochs, network = exchanges.epochs(rounds), self.starting_model(payload, context)
        learner = MutualLearner(context, network, public, epochs, exchanges.options, self.alignment, self.local)
        if "learner" in self.kept:
            learner.load_state_dict(self.kept["learner"])
        return learner

    def _received(self, payload: Payload, exchanges: Exchanges, number: int, context: SiteContext) -> SoftLabels | None:
        """The sum of the last exchange, if the server has sent one.

        Raises:
            MessageError: if it is not such a sum, or its contributors are missing or do not match.
        """
        if SOFT_LABELS not in payload.parts:
            return None
        shape = len(exchanges.part(number)), len(context.problem.classes)
        sent = payload.parts[SOFT_LABELS][VALUES]
        try:
            contributors = payload.values["exchange"]["contributors"]
            rounds, weights = contributors["rounds"], contributors["weights"]
            mean = decode(sent, *shape, "the sum of the soft labels", exchanges.options.content == "logits")
            return SoftLabels(mean * sum(weights.values()), dict(rounds), dict(weights))
        except KeyError as error:
            raise MessageError(f"the task has soft labels, but {error} is missing; update the server") from error
        except ValueError as error:
            raise MessageError(str(error)) from error

    def _public_set(self, payload: Payload, context: SiteContext) -> tuple[PublicSet, NDArray[np.uint8]]:
        data = context.dataset(payload.values["public"])
        if self._public is None or self._public[0] is not data:
            self._public = (data, *public_images(data, context.site))
        return self._public[1:]


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
