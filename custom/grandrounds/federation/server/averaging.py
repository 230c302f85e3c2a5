"""Rounds in which a global model goes out and the mean of the sites' updates comes in.

Floating-point sums depend on their order. Here the order is fixed before the round: each update is added when all sites
before it in the canonical order have been added or are known to be missing, and held until then.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError, GrandRoundsError, MessageError
from grandrounds.federation.server.controller import RoundController
from grandrounds.federation.server.options import AveragingOptions, ServerComputeOptions, UpdateOptions
from grandrounds.federation.server.robust import ContributionBounds, DefenceOptions, RobustMean
from grandrounds.federation.server.selection import ServerImages
from grandrounds.models.partial import frozen_digest
from grandrounds.models.registry import architecture_fingerprint, build_model
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import (
    GLOBAL,
    UPDATE,
    Payload,
    Result,
    State,
    floating_entries,
    require_like,
    tensor_bytes,
)
from grandrounds.protocol.tensors import UpdatePrecision, apply_update, require_finite_tensors

HELD_BYTES = 1 << 26


class OrderedMean:
    r"""Weighted mean of the updates of several sites.

    .. math:: \bar\Delta = \sum_k w_k \Delta_k / \sum_k w_k

    Floating entries are summed in at least single precision and keep their dtype; integer entries (counters of batch norm)
    take the maximum. Inputs are never changed.

    Args:
        sites: the sites that are asked this round.
        held_bytes: how much of what came too early waits in memory; the rest waits in a temporary folder (``$TMPDIR``),
            which is gone when the mean is closed, or forgotten.

    Example:
        >>> mean = OrderedMean(["site-1", "site-2"])
        >>> mean.add("site-2", {"w": torch.tensor([4.0])}, weight=3.0)
        >>> mean.add("site-1", {"w": torch.tensor([0.0])}, weight=1.0)
        >>> mean.close()
        {'w': tensor([3.])}
    """

    def __init__(self, sites: Iterable[str], held_bytes: int = HELD_BYTES) -> None:
        self._waiting = natural_sorted(sites)
        self._free_bytes = held_bytes
        self._held: dict[str, tuple[State | Path, float]] = {}
        self._folder: TemporaryDirectory[str] | None = None
        self._sum: dict[str, Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._weight = 0.0

    def add(self, site: str, update: State, weight: float = 1.0) -> None:
        """Take one site's update.

        Raises:
            ValueError: if the site was not asked or has answered already, or the weight is not positive.
        """
        if site not in self._waiting or site in self._held:
            raise ValueError(f"{site} was not asked for an update, or has given one already")
        if not weight > 0:
            raise ValueError(f"the weight of {site} must be positive, got {weight}")
        if site == self._waiting[0]:
            self._waiting.pop(0)
            self._fold(update, weight)
        else:
            self._held[site] = (self._set_aside(update), weight)
        self._advance()

    def skip(self, site: str) -> None:
        """Note that a site will not give an update this round."""
        if site in self._waiting and site not in self._held:
            self._waiting.remove(site)
            self._advance()

    def close(self) -> dict[str, Tensor] | None:
        """Return the mean of what came, or None when nothing did. Sites that are still awaited count as missing."""
        for site in list(self._waiting):
            self.skip(site)
        if self._folder:
            self._folder.cleanup()
        if not self._weight:
            return None
        return {
            name: (total / self._weight).to(self._dtypes[name]) if total.is_floating_point() else total
            for name, total in self._sum.items()
        }

    def _set_aside(self, update: State) -> State | Path:
        """The update, or where it is on disk if there is no room for it in memory."""
        size = tensor_bytes({UPDATE: update})[UPDATE]
        if size <= self._free_bytes:
            self._free_bytes -= size
            return update
        self._folder = self._folder or TemporaryDirectory(prefix="grandrounds-")
        path = Path(self._folder.name) / f"{uuid.uuid4().hex}.pt"
        torch.save(dict(update), path)
        return path

    def _advance(self) -> None:
        while self._waiting and self._waiting[0] in self._held:
            held, weight = self._held.pop(self._waiting.pop(0))
            self._fold(self._taken_back(held), weight)

    def _taken_back(self, held: State | Path) -> State:
        if isinstance(held, Path):
            update: State = torch.load(held, weights_only=True)
            held.unlink()
            return update
        self._free_bytes += tensor_bytes({UPDATE: held})[UPDATE]
        return held

    def _fold(self, update: State, weight: float) -> None:
        self._weight += weight
        if not self._sum:
            self._dtypes = {name: value.dtype for name, value in update.items()}
            for name, value in update.items():
                wide = torch.promote_types(value.dtype, torch.float32) if value.is_floating_point() else value.dtype
                self._sum[name] = value.to(wide, copy=True)
                if value.is_floating_point():
                    self._sum[name].mul_(weight)
            return
        floating = floating_entries(update)
        # One call for all entries: with hundreds of small ones the calls cost as much as the sums.
        if floating:
            torch._foreach_add_([self._sum[name] for name in floating], list(floating.values()), alpha=weight)
        for name, value in update.items():
            if name not in floating:
                torch.maximum(self._sum[name], value, out=self._sum[name])


class AveragingController(RoundController):
    """Federated averaging of one model, and the base of methods that exchange more beside it."""

    averaging: AveragingOptions
    defence: DefenceOptions
    updates: UpdateOptions
    server_compute: ServerComputeOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.averaging.selection_images == "server" and not self.run.validate_every:
            raise ConfigurationError("selection_images=server needs scores: set validate_every to at least 1")
        self.state: dict[str, Tensor] = {}
        self.sent: State = {}
        self._images: ServerImages | None = None
        self._bounds = ContributionBounds(self.defence)
        self._mean: OrderedMean | RobustMean

    def start(self) -> None:
        """Build the initial model, the same for all methods with one seed."""
        network = build_model(self.problem.model_spec(pretrained=True), self.seed)
        self.frozen_digest = frozen_digest(network)
        self.state = {name: value.contiguous() for name, value in network.state_dict().items()}
        if self.averaging.selection_images == "server":
            self.server_images("controller.selection_images=server").require_validation()

    def server_images(self, needed_by: str) -> ServerImages:
        """The server's own images, loaded once.

        Args:
            needed_by: the option that asks for them.

        Raises:
            ConfigurationError: if the server has none.
        """
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
        self._mean = OrderedMean(sites) if self.defence.aggregation == "mean" else RobustMean(self.defence)
        self._bounds.open()
        self.sent = self.state

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
        require_like(result.update, floating_entries(self.state), "update")

    def absorb(self, site: str, result: Result) -> None:
        """Add the site's update to the mean, bounded."""
        if result.update is not None:
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
        for site, bounded in self._bounds.close().items():
            self._mean.add(site, *bounded)
        update = self._mean.close()
        if update is None:
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
