"""Controllers of the baselines: federated averaging, and sites that train alone under the same schedule."""

from __future__ import annotations

from grandrounds.federation.averaging import AveragingController
from grandrounds.federation.controller import RoundController
from grandrounds.federation.messages import Payload, Result


class FedAvgController(AveragingController):
    """Federated averaging (McMahan et al., AISTATS 2017) with FedPerl's plain mean by default."""


class LocalController(RoundController):
    """Rounds without an exchange: every site goes on with its own model, and only metrics travel.

    Sites start from the model that federated runs with this seed start from. Their executor needs ``model: own``.
    """

    def payload_for(self, site: str) -> Payload:
        """Nothing but the problem and the round."""
        return self.payload()

    def absorb(self, site: str, result: Result) -> None:
        """Take in nothing."""

    def close_round(self) -> None:
        """Compute nothing."""

    def model(self) -> None:
        """There is none: each site scores and tests its own."""
