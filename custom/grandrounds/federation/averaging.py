"""Rounds in which a global model goes out and the mean of the sites' updates comes in."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.federation.aggregation import OrderedMean, apply_update
from grandrounds.federation.controller import RoundController
from grandrounds.federation.messages import GLOBAL, Payload, Result, State, floating_entries, require_like
from grandrounds.models.registry import architecture_fingerprint, build_model


class AveragingController(RoundController):
    """Federated averaging of one model, and the base of methods that exchange more beside it.

    Args:
        weighting: ``uniform`` is the plain mean over the participants (FedPerl, Algorithm 1, line 19); ``samples`` weights
            by the number of training samples (FedAvg).
        options: those of :class:`~grandrounds.federation.controller.RoundController`.
    """

    def __init__(self, *, weighting: Literal["uniform", "samples"] = "uniform", **options: Any) -> None:
        super().__init__(**options)
        if weighting not in ("uniform", "samples"):
            raise ConfigurationError(f"weighting must be uniform or samples, got {weighting!r}")
        self.weighting = weighting
        self.state: dict[str, Tensor] = {}

    def start(self) -> None:
        """Build the initial model, the same for all methods with one seed."""
        network = build_model(self.problem.model_spec(pretrained=True), self.seed)
        self.state = {name: value.contiguous() for name, value in network.state_dict().items()}

    def open_round(self, sites: list[str]) -> None:
        """Expect an update from each of these sites."""
        self._mean = OrderedMean(sites)

    def payload_for(self, site: str) -> Payload:
        """The global model."""
        return self.payload({GLOBAL: self.state})

    def check(self, site: str, result: Result) -> None:
        """Refuse a result whose update does not fit the model.

        Raises:
            MessageError: naming the entry.
        """
        if result.update is None:
            raise MessageError("the result has no update")
        require_like(result.update, floating_entries(self.state), "update")

    def absorb(self, site: str, result: Result) -> None:
        """Add the site's update to the mean."""
        if result.update is not None:
            self._mean.add(site, result.update, float(result.samples) if self.weighting == "samples" else 1.0)

    def missed(self, site: str) -> None:
        """Let the mean go on without the site."""
        self._mean.skip(site)

    def close_round(self) -> None:
        """Move the global model by the mean update."""
        update = self._mean.close()
        if update is not None:
            self.state = apply_update(self.state, update)

    def model(self) -> State:
        """The global model."""
        return self.state

    def fingerprint(self) -> dict[str, Any]:
        """The architecture and the weighting."""
        return {"architecture": architecture_fingerprint(self.state), "weighting": self.weighting}

    def state_dict(self) -> dict[str, Any]:
        """The global model."""
        return {GLOBAL: self.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the global model."""
        self.state = state[GLOBAL]
