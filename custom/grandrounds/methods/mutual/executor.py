"""Mutual learning at a site: its own network, its own labels, and the soft labels of the other sites.

Beside it the bases of all sites that train on their own labels (FedDF, swarm learning).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from grandrounds.data.partition.public_set import PublicSet, first_unlike
from grandrounds.data.site import PUBLIC_NAME as PUBLIC
from grandrounds.data.site import SiteData
from grandrounds.errors import ConfigurationError, GrandRoundsError, MessageError
from grandrounds.federation.site.closed_form import OwnHeadExecutor
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.scoring import score
from grandrounds.federation.site.store import SiteStore, copy_to_cpu
from grandrounds.methods.mutual.learner import MutualLearner
from grandrounds.methods.mutual.options import AlignmentOptions, ExchangeOptions, FinalTestOptions, LocalOptions
from grandrounds.methods.mutual.public import public_images
from grandrounds.methods.mutual.schedule import Exchanges
from grandrounds.methods.mutual.soft_labels import SoftLabels, decode
from grandrounds.methods.mutual.training import train_locally
from grandrounds.protocol.messages import Payload, Registration, Release, ReleaseKind, Result


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


FINGERPRINTS, SOFT_LABELS, VALUES = "fingerprints", "soft_labels", "values"
LOSS, CHANGE = "local_loss", "parameter_change"


class MutualExecutor(OwnModelExecutor):
    """Learns from the mean of the others' soft labels on public images, and from the site's own noisy labels.

    MDH-FL (arXiv 2308.00155), RHFL, RHFL+ and FedMD by options; no weight leaves the site. In each of the last
    ``test_rounds`` rounds the model is tested after alignment and after training.
    """

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType({SOFT_LABELS: ReleaseKind.SOFT_LABELS})
    registration_facts: ClassVar[tuple[str, ...]] = (PUBLIC,)
    alignment: AlignmentOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._public: tuple[SiteData, PublicSet, NDArray[np.uint8]] | None = None

    def register(self, payload: Payload, context: SiteContext) -> Registration:
        """Which public images this site has; they are compared with the server's list if it has sent one.

        Raises:
            GrandRoundsError: if there is no test image for ``test_rounds``.
            MessageError: naming the first image that differs.
        """
        super().register(payload, context)
        public, images = self._public_set(payload, context)
        if PUBLIC in payload.parts:
            difference = first_unlike(public, payload.parts[PUBLIC][FINGERPRINTS].numpy())
            if difference:
                raise MessageError(f"{context.site}: {difference}; copy the public set again")
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
