"""Optimizers whose state lasts from one round to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from grandrounds.federation.site.training import Algorithm, new_optimizer

OPTIMIZER = "optimizer"


class KeptOptimizers:
    """Makes and keeps the optimizers of an executor; ``kept`` is what lasts until its next round."""

    kept: dict[str, Any]

    def make_optimizer(
        self, network: nn.Module, learning_rate: float, algorithm: Algorithm = "adam", *, role: str = "", **options: Any
    ) -> torch.optim.Optimizer:
        """An optimizer, fresh or with the state that it had at the end of the last round here.

        Args:
            network: whose parameters it is for.
            learning_rate: of all of them.
            algorithm: ``adam`` or ``sgd``.
            role: distinguishes several optimizers of a method.
            options: torch's, such as ``betas``; without them there is no weight decay.
        """
        optimizer = new_optimizer(network.parameters(), algorithm, learning_rate, **options)
        kept = self.kept.get(_optimizer_key(role))
        if kept is not None:
            optimizer.load_state_dict(kept)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
        return optimizer

    def keep_optimizers(self, optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer]) -> None:
        """Keep the state of one optimizer, or of several by role."""
        optimizers = optimizer if isinstance(optimizer, Mapping) else {"": optimizer}
        self.kept.update({_optimizer_key(role): made.state_dict() for role, made in optimizers.items()})


def _optimizer_key(role: str) -> str:
    return f"{OPTIMIZER}.{role}" if role else OPTIMIZER
