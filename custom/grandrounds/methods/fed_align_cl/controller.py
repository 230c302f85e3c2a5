"""Fed-Align-CL on the server: the mean of the models, and the relay of banks and, if there are any, discriminators."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.federation.server.averaging import AveragingController
from grandrounds.methods.fed_align_cl.bank import (
    BANK,
    BATCH_SIZE,
    BATCH_SIZES,
    DISCRIMINATOR,
    EMBEDDINGS,
    MAX_BATCH_SIZE,
    pack_banks,
    require_bank,
)
from grandrounds.methods.fed_align_cl.loss import received_discriminator
from grandrounds.models.registry import build_model
from grandrounds.models.split import embedding_width, split_network
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import GLOBAL, Payload, ReleaseKind, Result


class FedAlignController(AveragingController):
    """Plain mean of the noisy models; every site gets the banks and discriminators of the others, which are not averaged.

    A round is one communication. What a site has sent reaches the others with the next model, once: of a site that misses a
    communication the others have nothing to align with until it has answered again.
    """

    needs_single_updates: ClassVar[str] = "embeddings and discriminators are single sites'"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._width = 0
        self._sent: dict[str, dict[str, Any]] = {}
        self._for_next: dict[str, dict[str, Any]] = {}

    def start(self) -> None:
        """Build the initial model, and note the width of its embeddings.

        Raises:
            ConfigurationError: if the encoder has no layer to train.
        """
        super().start()
        spec = self.problem.model_spec(pretrained=False)
        encoder, head = split_network(build_model(spec, self.seed))
        if not list(encoder.parameters()):
            raise ConfigurationError(
                "problem.trainable=head freezes the whole encoder, which this method aligns; set it to from:<block>, or run "
                "the job fedavg"
            )
        self._width = embedding_width(head)

    def open_round(self, sites: list[str]) -> None:
        """Expect an update from each of these sites."""
        super().open_round(sites)
        self._for_next = {}

    def payload_for(self, site: str) -> Payload:
        """The global model, and what the others have sent with the last communication."""
        others = {name: self._sent[name] for name in natural_sorted(self._sent) if name != site}
        if not others:
            return self.payload({GLOBAL: self.sent})
        parts = {GLOBAL: self.sent, BANK: {name: sent[BANK] for name, sent in others.items()}}
        discriminators = {name: sent[DISCRIMINATOR] for name, sent in others.items() if DISCRIMINATOR in sent}
        if discriminators:
            parts[DISCRIMINATOR] = pack_banks(discriminators)
        return self.payload(parts, **{BATCH_SIZES: {name: sent[BATCH_SIZE] for name, sent in others.items()}})

    def check(self, site: str, result: Result) -> None:
        """Refuse an update, a bank or a discriminator that does not fit the model.

        Raises:
            MessageError: naming what is wrong.
        """
        super().check(site, result)
        _shared(site, result, self._width)

    def absorb(self, site: str, result: Result) -> None:
        """Add the update to the mean, and keep what is for the others."""
        super().absorb(site, result)
        shared = _shared(site, result, self._width)
        if shared is not None:
            self._for_next[site] = shared

    def close_round(self) -> None:
        """Average; what was received is sent to the others next, but no bank alone where others sent a discriminator."""
        super().close_round()
        complete = {site: sent for site, sent in self._for_next.items() if DISCRIMINATOR in sent}
        if complete and len(complete) < len(self._for_next):
            alone = natural_sorted(self._for_next.keys() - complete.keys())
            self.log_warning(
                self.fl_ctx, f"no other site gets the bank of {', '.join(alone)}, which has no discriminator"
            )
            self._for_next = complete
        self._sent = self._for_next

    def round_notes(self) -> dict[str, Any]:
        """The sites whose banks were received."""
        return {**super().round_notes(), "banks_from": natural_sorted(self._for_next)}

    def state_dict(self) -> dict[str, Any]:
        """The global model, and what the sites get next."""
        return {**super().state_dict(), "for_others": self._sent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what survived."""
        super().load_state_dict(state)
        self._sent = state["for_others"]


def _shared(site: str, result: Result, width: int) -> dict[str, Any] | None:
    """What a result has for the other sites, checked; None if nothing."""
    if BANK not in result.releases:
        if DISCRIMINATOR in result.releases:
            raise MessageError(f"{site} sent a discriminator without a bank")
        return None
    bank = result.releases[BANK]
    if bank.kind is not ReleaseKind.EMBEDDINGS or bank.tensors.keys() != {EMBEDDINGS}:
        raise MessageError(f"bank of {site} must be embeddings, got {bank.kind} with {sorted(bank.tensors)}")
    embeddings: Tensor = bank.tensors[EMBEDDINGS]
    require_bank(embeddings, max(len(embeddings) if embeddings.dim() else 0, 1), width, f"bank of {site}")
    size = result.metrics.get(BATCH_SIZE, 0)
    if size != int(size) or not 1 <= size <= MAX_BATCH_SIZE:
        raise MessageError(
            f"{site} must report the batch size of its bank, a whole number from 1 to {MAX_BATCH_SIZE}, got {size}"
        )
    shared = {BANK: embeddings, BATCH_SIZE: int(size)}
    if DISCRIMINATOR in result.releases:
        discriminator: dict[str, Tensor] = dict(result.releases[DISCRIMINATOR].tensors)
        received_discriminator(discriminator, width, f"discriminator of {site}")
        if any(value.dtype != torch.float32 for value in discriminator.values()):
            raise MessageError(f"discriminator of {site} must be of torch.float32")
        shared[DISCRIMINATOR] = discriminator
    return shared
