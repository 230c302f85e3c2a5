"""Rounds in which a global model goes out and the mean of the sites' updates comes in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from grandrounds.errors import ConfigurationError, GrandRoundsError, MessageError
from grandrounds.federation.server.aggregate import (
    Aggregator,
    Demands,
    ModelAverage,
    ServerOptimizer,
    ServerOptimizerOptions,
)
from grandrounds.federation.server.controller import RoundController
from grandrounds.federation.server.means import OrderedMean
from grandrounds.federation.server.options import (
    AveragingOptions,
    ServerComputeOptions,
    Start,
    StartOptions,
    StoppingOptions,
    UpdateOptions,
)
from grandrounds.federation.server.robust import SECURE, BoundedContributions, DefenceOptions, RobustMean
from grandrounds.federation.server.selection import ServerImages
from grandrounds.federation.server.start import RIDGE, START_FILE, load_start
from grandrounds.federation.server.sums import OF_UPDATES, SecureMean
from grandrounds.models.depths import forget_risks
from grandrounds.models.partial import frozen_digest
from grandrounds.models.registry import architecture_fingerprint, build_model
from grandrounds.protocol.messages import GLOBAL, Payload, ReleaseKind, Result, State
from grandrounds.protocol.problem import DEPTHS, require_whole_models
from grandrounds.protocol.tensors import UpdatePrecision


class AveragingController(RoundController):
    """Federated averaging of one model, and the base of methods that exchange more beside it."""

    averaging: AveragingOptions
    defence: DefenceOptions
    updates: UpdateOptions
    server_step: ServerOptimizerOptions
    beginning: StartOptions
    stopping: StoppingOptions
    server_compute: ServerComputeOptions
    needs_single_updates: ClassVar[str] = ""
    """What a method does with each site's update, if it does more than average it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.averaging.selection_images == "server" and not self.run.validate_every:
            raise ConfigurationError("selection_images=server needs scores: set validate_every to at least 1")
        if self.stopping.patience is not None and not self.run.validate_every:
            raise ConfigurationError("patience needs scores: set validate_every to at least 1")
        start = Start.parse(self.beginning.start_from).name if self.beginning.start_from is not None else ""
        if start == self.run.run_name and start != RIDGE:
            raise ConfigurationError(f"start_from names this very run, {start!r}: give the new run another run_name")
        if start == RIDGE and self.problem.head != DEPTHS:
            raise ConfigurationError("start_from=ridge is a head of several depths: set problem.head=depths")
        decay = self.server_step.average_decay
        self.average = None if decay is None else ModelAverage(decay)
        self.aggregator = self._new_aggregator(self.defence.aggregation == SECURE)
        self.optimizer = ServerOptimizer(self.server_step, ())
        self.start_digest: str | None = None
        self.state: dict[str, Tensor] = {}
        self.sent: State = {}
        self._images: ServerImages | None = None

    def _new_aggregator(self, secure: bool) -> Aggregator:
        if secure:
            aggregator = self.new_secure_mean()
        else:
            mean = self.new_mean()
            aggregator = BoundedContributions(mean, self.defence) if self.defence.bounds else mean
        aggregator.require_possible(Demands(self.updates.update_precision, tuple(self.readers())))
        return aggregator

    def new_mean(self) -> Aggregator:
        """What makes a round's updates one, before any bounds."""
        return OrderedMean() if self.defence.is_mean else RobustMean(self.defence)

    def new_secure_mean(self) -> Aggregator:
        """The same where the server sees their sum alone."""
        return SecureMean(self, weighted=self.averaging.weighting == "samples")

    def summed_releases(self) -> Mapping[str, ReleaseKind]:
        """What sites add up in a round where the server sees the sum alone, by name."""
        return OF_UPDATES

    def readers(self) -> list[str]:
        """What at the server reads single updates, as sentences for errors."""
        rule = "" if self.defence.is_mean else f"{self.defence.rule} compares them"
        # Those by default are void where sites bound their updates themselves.
        chosen = [
            name for name in self.defence.bounds if getattr(self.defence, name) != getattr(DefenceOptions(), name)
        ]
        bounds = f"{', '.join(chosen)} compares each with the others" if chosen else ""
        return [reader for reader in (self.needs_single_updates, rule, bounds) if reader]

    def is_secure(self) -> bool:
        """Whether the aggregator sees the sum of updates alone."""
        return isinstance(self.aggregator, SecureMean)

    def sites_ready(self, sites: list[str]) -> None:
        """Settle whether sums are secure: as the option says; ``auto`` in kits, if the gate of a site asks for it.

        Raises:
            ConfigurationError: if something reads single updates and a site's policy lets none out.
        """
        if self.sums.settle(self.defence.aggregation, ReleaseKind.MODEL_UPDATE, sites) and not self.is_secure():
            self.aggregator = self._new_aggregator(secure=True)

    def start(self) -> None:
        """Build the initial model, the same for all methods with one seed, or load the one to start from.

        Raises:
            ConfigurationError: if the model to start from is missing or another network's.
        """
        network = build_model(self.problem.model_spec(pretrained=True), self.seed)
        if self.beginning.start_from is not None:
            start, goes_on = self.beginning.start_from, self.run.resume != "never" and bool(self._checkpoints.rounds())
            kept = self.folder / START_FILE
            if not goes_on:
                kept.unlink(missing_ok=True)
            self.start_digest = load_start(network, start, self.problem, self.seed, self.fl_ctx, kept)
        if not self.job_arguments.get("logit_adjustment"):
            forget_risks(network)
        self.frozen_digest = frozen_digest(network)
        self.optimizer = ServerOptimizer(self.server_step, (name for name, _ in network.named_parameters()))
        self.state = {name: value.contiguous() for name, value in network.state_dict().items()}
        if self.averaging.selection_images == "server":
            self.server_images("controller.selection_images=server").require_validation()

    def server_images(self, needed_by: str) -> ServerImages:
        """The server's own images, loaded once.

        Args:
            needed_by: the option that asks for them.

        Raises:
            ConfigurationError: if the server has none, or cannot read the model.
        """
        require_whole_models(self.problem, needed_by)
        if self._images is None:
            self._images = ServerImages(self.problem, self.seed, self.fl_ctx, self.server_compute, needed_by)
        return self._images

    def server_scores(self) -> dict[str, float] | None:
        """Scores on the server's images, if they select the model."""
        return (
            self._images.metrics(self.model()) if self._images and self.averaging.selection_images == "server" else None
        )

    def starts_trained(self) -> bool:
        """Whether there is a model to start from."""
        return self.start_digest is not None

    def open_round(self, sites: list[str]) -> None:
        """Expect an update from each of these sites; they start from ``sent``, the global model."""
        self.aggregator.open(sites)
        self.sent = self.state

    def payload_for(self, site: str) -> Payload:
        """The global model."""
        return self.payload({GLOBAL: self.sent})

    def check(self, site: str, result: Result) -> None:
        """Refuse a result whose update does not fit the model.

        Raises:
            MessageError: naming the entry.
        """
        self.aggregator.check(site, result, self.state)

    def absorb(self, site: str, result: Result) -> None:
        """Add the site's update to the aggregate."""
        if result.update is not None:
            weight = float(result.samples) if self.averaging.weighting == "samples" else 1.0
            self.aggregator.add(site, result.update, weight)

    def missed(self, site: str) -> None:
        """Let the aggregate go on without the site."""
        self.aggregator.skip(site)

    def close_round(self) -> None:
        """Move the global model by the aggregate of the updates.

        Raises:
            GrandRoundsError: if the model would not be finite; it stays as it was.
        """
        aggregate = self.aggregator.close()
        if aggregate is None:
            return
        try:
            self.state = self.aggregator.moved(self.sent, self.optimizer.step(aggregate))
        except MessageError as error:
            raise GrandRoundsError(f"round {self.round_number}: {error} after this round's updates") from error
        if self.average is not None:
            self.average.add(self.state)

    def model(self) -> State:
        """What is scored and kept: the global model, or the moving average of those so far."""
        return self.state if self.average is None else self.average.model or self.state

    def stop_reason(self, best: int | None) -> str:
        """The last ``patience`` rounds that were scored are after that of the best model."""
        patience, every = self.stopping.patience, self.run.validate_every
        if patience is None or best is None:
            return ""
        scored = (self.round_number - 1) // every * every
        if scored - best < patience:
            return ""
        return (
            f"stopped after round {self.round_number}: no better model in {scored - best} rounds (patience {patience})"
        )

    def fingerprint(self) -> dict[str, Any]:
        """The options, the architecture, and the model to start from."""
        started = {"start": self.start_digest} if self.start_digest else {}
        return {**super().fingerprint(), "architecture": architecture_fingerprint(self.state), **started}

    def update_precision(self) -> UpdatePrecision:
        """As the option ``update_precision``."""
        return self.updates.update_precision

    def round_notes(self) -> dict[str, Any]:
        """What the aggregator notes: whose update or weight was bounded, and by how much."""
        return {**super().round_notes(), **self.aggregator.notes()}

    def state_dict(self) -> dict[str, Any]:
        """The global model, and the states of the aggregator, of the server's optimizer and of the moving average."""
        aggregator, optimizer = self.aggregator.state_dict(), self.optimizer.state_dict()
        average = {} if self.average is None else {"average": self.average.state_dict()}
        return {GLOBAL: self.state, "aggregator": aggregator, "server_optimizer": optimizer, **average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.state = state[GLOBAL]
        if state["aggregator"]:  # secure sums keep nothing, and whether a run has them is settled after this
            self.aggregator.load_state_dict(state["aggregator"])
        self.optimizer.load_state_dict(state["server_optimizer"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
