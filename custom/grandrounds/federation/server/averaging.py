"""Rounds in which a global model goes out and the mean of the sites' updates comes in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from grandrounds.errors import ConfigurationError, GrandRoundsError, MessageError
from grandrounds.federation.encrypted import ENCRYPTION, MIN_SITES, EncryptedSum, encryption_of
from grandrounds.federation.keys import find_key
from grandrounds.federation.server.controller import RoundController
from grandrounds.federation.server.means import OrderedMean
from grandrounds.federation.server.options import AveragingOptions, ServerComputeOptions, StoppingOptions, UpdateOptions
from grandrounds.federation.server.robust import ENCRYPTED, ContributionBounds, DefenceOptions, RobustMean
from grandrounds.federation.server.selection import ServerImages
from grandrounds.models.partial import frozen_digest
from grandrounds.models.registry import architecture_fingerprint, build_model
from grandrounds.protocol.messages import (
    GLOBAL,
    Payload,
    Result,
    State,
    floating_entries,
    require_like,
)
from grandrounds.protocol.names import SERVER
from grandrounds.protocol.paths import key_folders
from grandrounds.protocol.problem import require_whole_models
from grandrounds.protocol.tensors import FULL, UpdatePrecision, apply_update, require_finite_tensors


class AveragingController(RoundController):
    """Federated averaging of one model, and the base of methods that exchange more beside it."""

    averaging: AveragingOptions
    defence: DefenceOptions
    updates: UpdateOptions
    stopping: StoppingOptions
    server_compute: ServerComputeOptions
    needs_single_updates: ClassVar[str] = ""
    """What a method does with each site's update, if it does more than average it; then updates cannot be encrypted."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.averaging.selection_images == "server" and not self.run.validate_every:
            raise ConfigurationError("selection_images=server needs scores: set validate_every to at least 1")
        if self.stopping.patience is not None and not self.run.validate_every:
            raise ConfigurationError("patience needs scores: set validate_every to at least 1")
        self.encrypted = self.defence.aggregation == ENCRYPTED
        if self.encrypted:
            self._require_encryptable()
        self.state: dict[str, Tensor] = {}
        self.sent: State = {}
        self._images: ServerImages | None = None
        self._bounds = ContributionBounds(self.defence)
        self._mean: OrderedMean | RobustMean | EncryptedSum
        self._initial: State = {}
        self._key = b""

    def _require_encryptable(self) -> None:
        if self.needs_single_updates:
            raise ConfigurationError(f"aggregation=encrypted hides single updates, and {self.needs_single_updates}")
        if self.updates.update_precision != FULL:
            raise ConfigurationError("update_precision must be float32 with aggregation=encrypted: ciphertexts keep it")
        if self.averaging.selection_images == "server":
            raise ConfigurationError(
                "selection_images must be sites with aggregation=encrypted: the server has no model"
            )
        if self.run.min_sites < MIN_SITES:
            raise ConfigurationError(
                f"min_sites must be at least {MIN_SITES} with aggregation=encrypted: the sum of one model is that model"
            )

    def start(self) -> None:
        """Build the initial model, the same for all methods with one seed.

        Raises:
            ConfigurationError: if models are encrypted and there is no key, or it is a secret one.
        """
        network = build_model(self.problem.model_spec(pretrained=True), self.seed)
        self.frozen_digest = frozen_digest(network)
        self.state = {name: value.contiguous() for name, value in network.state_dict().items()}
        self._initial = self.state
        if self.encrypted:
            self._key = find_key(key_folders(self.fl_ctx), SERVER)
        if self.averaging.selection_images == "server":
            self.server_images("controller.selection_images=server").require_validation()

    def server_images(self, needed_by: str) -> ServerImages:
        """The server's own images, loaded once.

        Args:
            needed_by: the option that asks for them.

        Raises:
            ConfigurationError: if the server has none, or cannot read the model.
        """
        if self.encrypted:
            raise ConfigurationError(f"{needed_by} needs a model, which the server cannot read: aggregation=encrypted")
        require_whole_models(self.problem, needed_by)
        if self._images is None:
            self._images = ServerImages(self.problem, self.seed, self.fl_ctx, self.server_compute, needed_by)
        return self._images

    def server_scores(self) -> dict[str, float] | None:
        """Scores on the server's images, if they select the model."""
        return (
            self._images.metrics(self.state) if self._images and self.averaging.selection_images == "server" else None
        )

    def open_round(self, sites: list[str]) -> None:
        """Expect an update from each of these sites; they start from ``sent``, the global model."""
        if self.encrypted:
            self._mean = EncryptedSum(self._key, self._initial)
        else:
            self._mean = OrderedMean(sites) if self.defence.aggregation == "mean" else RobustMean(self.defence)
        self._bounds.open()
        self.sent = self.state

    def payload(self, parts: Mapping[str, State] | None = None, **values: Any) -> Payload:
        """See the base; with encrypted models also what a site must know to read them."""
        if self.encrypted:
            values = {**values, ENCRYPTION: encryption_of(self._initial, self.averaging.weighting)}
        return super().payload(parts, **values)

    def payload_for(self, site: str) -> Payload:
        """The global model."""
        return self.payload({GLOBAL: self.sent})

    def check(self, site: str, result: Result) -> None:
        """Refuse a result whose update does not fit the model.

        Raises:
            MessageError: naming the entry.
        """
        if result.update is None:
            raise MessageError("the result has no update")
        if isinstance(self._mean, EncryptedSum):
            self._mean.check(site, result)
        else:
            require_like(result.update, floating_entries(self.state), "update")

    def absorb(self, site: str, result: Result) -> None:
        """Add the site's update to the mean, bounded; one that is encrypted cannot be."""
        if result.update is None:
            return
        if self.encrypted:
            self._mean.add(site, result.update)
        else:
            weight = float(result.samples) if self.averaging.weighting == "samples" else 1.0
            bounded = self._bounds.take(site, result.update, weight)
            if bounded is not None:
                self._mean.add(site, *bounded)

    def missed(self, site: str) -> None:
        """Let the mean go on without the site."""
        self._mean.skip(site)

    def close_round(self) -> None:
        """Move the global model by the mean update.

        Raises:
            GrandRoundsError: if the model would not be finite; it stays as it was.
        """
        for bounded in self._bounds.close():
            self._mean.add(*bounded)
        update = self._mean.close()
        if update is None:
            return
        if self.encrypted:
            self.state = update
            return
        moved = apply_update(self.sent, update)
        try:
            require_finite_tensors(moved, "the model")
        except MessageError as error:
            raise GrandRoundsError(f"round {self.round_number}: {error} after this round's updates") from error
        self.state = moved

    def model(self) -> State:
        """The global model."""
        return self.state

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
        """The options and the architecture."""
        return {**super().fingerprint(), "architecture": architecture_fingerprint(self.state)}

    def update_precision(self) -> UpdatePrecision:
        """As the option ``update_precision``."""
        return self.updates.update_precision

    def round_notes(self) -> dict[str, Any]:
        """Whose update or weight was bounded, and by how much."""
        bounded = {"bounded": self._bounds.bounded} if self._bounds.bounded else {}
        return {**super().round_notes(), **bounded}

    def state_dict(self) -> dict[str, Any]:
        """The global model, and what contributions are bounded by."""
        return {GLOBAL: self.state, "bounds": self._bounds.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the global model and the bounds."""
        self.state = state[GLOBAL]
        self._bounds.load_state_dict(state["bounds"])
