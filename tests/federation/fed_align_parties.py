"""Fed-Align-CL sites that go wrong on purpose; jobs name them by their class paths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from grandrounds.federation.site.context import SiteContext
from grandrounds.methods.fed_align_cl.executor import FedAlignExecutor
from grandrounds.protocol.messages import Payload, Release, ReleaseKind, Result


class FaultyAligner(FedAlignExecutor):
    """Goes wrong at site-3 in one round.

    Args:
        at_round: in which.
        how: ``raise`` fails, ``wide`` sends a bank of an unknown backbone, ``alone`` a bank without discriminator,
            ``empty`` a bank without rows, ``huge`` one of huge values, ``sizeless`` no batch size.
        options: of Fed-Align-CL.
    """

    def __init__(self, *, at_round: int, how: str, **options: Any) -> None:
        super().__init__(**options)
        self.at_round = at_round
        self.how = how

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train, and spoil the result."""
        result = super().train(payload, context)
        if (context.site, context.round_number) != ("site-3", self.at_round):
            return result
        if self.how == "raise":
            raise RuntimeError("power cut")
        if self.how == "alone":
            releases = {name: value for name, value in result.releases.items() if name != "discriminator"}
            return replace(result, releases=releases)
        if self.how == "sizeless":
            metrics = {name: value for name, value in result.metrics.items() if name != "batch_size"}
            return replace(result, metrics=metrics)
        shape = {"wide": (28, 13), "empty": (0, 12), "huge": (28, 12)}[self.how]
        bank = Release(ReleaseKind.EMBEDDINGS, {"embeddings": torch.full(shape, 1e15)})
        return replace(result, releases={**result.releases, "bank": bank})
