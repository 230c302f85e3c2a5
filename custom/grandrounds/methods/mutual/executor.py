"""Mutual learning at a site: its own network, its own labels, and what the others say of the public images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from nvflare.apis.shareable import Shareable

from grandrounds.data.partition.files import PUBLIC_NAME as PUBLIC
from grandrounds.data.partition.public_set import PublicSet, first_unlike
from grandrounds.data.site import SiteData
from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.store import SiteStore, copy_to_cpu
from grandrounds.methods.mutual.contributions import RowSum
from grandrounds.methods.mutual.exchange import RowMessage
from grandrounds.methods.mutual.local_executor import OwnLabelsExecutor
from grandrounds.methods.mutual.options import Alignment, AlignmentOptions, Content, ExchangeOptions
from grandrounds.methods.mutual.participant import Choices, Participant, PublicImages
from grandrounds.methods.mutual.public import public_images
from grandrounds.methods.mutual.schedule import Exchanges
from grandrounds.methods.mutual.soft_labels import decode_rows, decode_scores, decode_sum
from grandrounds.methods.mutual.training import Private
from grandrounds.options import take_options
from grandrounds.protocol.messages import Payload, Release, ReleaseKind, Result, State, decode_result
from grandrounds.protocol.registration import Registration

FINGERPRINTS, ROWS = "fingerprints", "rows"
LOSS, CHANGE = "private_loss", "parameter_change"


class MutualExecutor(OwnLabelsExecutor):
    """Learns from the mean of the others' soft labels on public images, and from its own noisy labels.

    MDH-FL (arXiv 2308.00155), RHFL, RHFL+ and FedMD by options; no weight leaves the site.

    In each of the last ``test_rounds`` rounds the model is tested after alignment and after training.

    Args:
        options: those of :class:`~grandrounds.methods.mutual.options.AlignmentOptions` and of
            :class:`~grandrounds.methods.mutual.local_executor.OwnLabelsExecutor`.
    """

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType({ROWS: ReleaseKind.SOFT_LABELS})
    registration_facts: ClassVar[tuple[str, ...]] = (PUBLIC,)
    option_groups: ClassVar[tuple[type, ...]] = (AlignmentOptions,)

    def __init__(self, **options: Any) -> None:
        self.alignment, others = take_options(AlignmentOptions, options)
        super().__init__(**others)
        self._public: tuple[SiteData, PublicSet, PublicImages] | None = None

    def options(self) -> dict[str, Any]:
        """How to learn from the others, and how from the own labels."""
        return {**asdict(self.alignment), **super().options()}

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
        scalars = {"public_images": float(len(images.images)), "classes": float(len(context.problem.classes))}
        return Registration(scalars, {PUBLIC: images.digest})

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Learn from the last exchange and from the own labels, and publish for the next."""
        told = payload.values.get("exchange", {})
        participant, exchanges, rounds = self._participant(payload, context, told)
        number = context.round_number
        metrics = self._learn(participant, exchanges, payload, context, told, rounds)
        releases: dict[str, Release] = {}
        if number < rounds and exchanges.options.content != "none":
            message = participant.publish(number, exchanges.part(number), exchanges.begins_epoch(number))
            releases[ROWS] = self.release_of(message)
            if message.loss is not None:
                metrics |= {LOSS: message.loss, CHANGE: message.change}
        self.kept = {"model": copy_to_cpu(participant.network.state_dict()), "participant": participant.state_dict()}
        metrics |= self.scores_of_round(participant.network, context, rounds)
        samples = len(context.data.rows("labelled"))
        return Result(releases, {name: value for name, value in metrics.items() if math.isfinite(value)}, samples)

    def on_result_released(self, reply: Shareable, payload: Payload, store: SiteStore) -> None:
        """Keep the own rows as they have left: a filter of the site may have rounded them, and so they are in the sum."""
        release = decode_result(reply, payload).releases.get(ROWS)
        if release is None:
            return
        rows, state = release.tensors["rows"], store.staged_state()
        decode = decode_scores if payload.values["exchange"]["options"]["content"] == "logits" else decode_rows
        left = decode(rows, rows.shape[0], rows.shape[-1], "the own rows as they left")
        sent = state["participant"]["sent"]
        if not torch.equal(sent[payload.round_number], left):
            sent[payload.round_number] = left
            store.stage_state(payload.round_number, state)

    def _learn(
        self,
        participant: Participant,
        exchanges: Exchanges,
        payload: Payload,
        context: SiteContext,
        told: Any,
        rounds: int,
    ) -> dict[str, float]:
        metrics: dict[str, float] = {}
        last = context.round_number - 1
        if not self.kept:
            metrics["pretrain_loss"] = participant.pretrain()
        row_sum = self._received(payload, exchanges, last, context, told)
        if row_sum is not None and not participant.can_take_part_in(row_sum):
            metrics["own_rows_lost"] = 1.0
        elif row_sum is not None:
            epoch = exchanges.epoch(last)
            metrics["alignment_loss"] = participant.align(row_sum, exchanges.part(last), last, epoch)
            metrics |= self.scores_of_round(participant.network, context, rounds, "aligned")
        ended = self.alignment.final_phase == "alignment" and context.round_number == rounds
        if last and exchanges.ends_epoch(last) and not ended:
            metrics["loss"] = participant.learn(exchanges.epoch(last))
        return metrics

    def _participant(self, payload: Payload, context: SiteContext, told: Any) -> tuple[Participant, Exchanges, int]:
        try:
            exchange, rounds = ExchangeOptions(**told["options"]), int(told["rounds"])
        except (TypeError, KeyError, ConfigurationError) as error:
            raise MessageError(f"the task does not say what is exchanged: {error}") from error
        _require_fit(exchange.content, self.alignment.alignment)
        public = self._public_set(payload, context)[1]
        exchanges = Exchanges(len(public.images), context.seed, exchange)
        choices = Choices(context.seed, exchanges.epochs(rounds), exchange, self.alignment, self.local)
        network = self.starting_model(payload, context)
        participant = Participant(context.site, network, public, Private.of(context.data), choices, context)
        if "participant" in self.kept:
            participant.load_state_dict(self.kept["participant"])
        return participant, exchanges, rounds

    def _received(
        self, payload: Payload, exchanges: Exchanges, number: int, context: SiteContext, told: Any
    ) -> RowSum | None:
        """The sum of the last exchange, if the server has sent one."""
        if ROWS not in payload.parts:
            return None
        shape = len(exchanges.part(number)), len(context.problem.classes)
        return self.decoded_sum(payload.parts[ROWS], told["contributors"], shape, exchanges.options)

    def release_of(self, message: RowMessage) -> Release:
        """The rows as they leave the site."""
        return Release(ReleaseKind.SOFT_LABELS, {"rows": message.rows})

    def decoded_sum(
        self, sent: State, contributors: Mapping[str, Any], shape: tuple[int, int], options: ExchangeOptions
    ) -> RowSum:
        """The sum from what travelled.

        Args:
            sent: as the controller's ``encoded_sum`` makes it.
            contributors: their ``rounds`` and ``weights``.
            shape: public images and classes.
            options: what is exchanged.

        Raises:
            MessageError: if it is no such sum.
        """
        scores = options.content == "logits"
        return decode_sum(sent["mean"], contributors["rounds"], contributors["weights"], *shape, scores)

    def _public_set(self, payload: Payload, context: SiteContext) -> tuple[PublicSet, PublicImages]:
        data = context.dataset(payload.values["public"])
        if self._public is None or self._public[0] is not data:
            self._public = (data, *public_images(data, context.site))
        return self._public[1:]


def _require_fit(content: Content, alignment: Alignment) -> None:
    """A divergence is between probabilities, a digest is of logits."""
    learnt = {"divergence": "probabilities", "digest": "logits"}.get(alignment)
    if learnt and content not in (learnt, "none"):
        raise MessageError(
            f"executor.alignment={alignment} learns from {learnt}, controller.content is {content}; change one of them"
        )
