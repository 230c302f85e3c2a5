"""The mean of updates, and a place for updates that wait.

Floating-point sums depend on their order. Here the order is fixed before the round: each update is added when all sites
before it in the canonical order have been added or are known to be missing, and held until then.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from grandrounds.federation.server.aggregate import Aggregator
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import UPDATE, State, floating_entries, tensor_bytes

HELD_BYTES = 1 << 26


class HeldUpdates:
    """Updates by site that wait in memory up to a limit, and on disk above it.

    Args:
        held_bytes: the limit. The rest waits in a temporary folder (``$TMPDIR``), which is gone after :meth:`clear`, or when
            this object is forgotten.
    """

    def __init__(self, held_bytes: int = HELD_BYTES) -> None:
        self._held_bytes = self._free_bytes = held_bytes
        self._held: dict[str, State | Path] = {}
        self._folder: TemporaryDirectory[str] | None = None

    def __contains__(self, site: str) -> bool:
        return site in self._held

    def put(self, site: str, update: State) -> None:
        """Keep a site's update."""
        size = tensor_bytes({UPDATE: update})[UPDATE]
        if size <= self._free_bytes:
            self._free_bytes -= size
            self._held[site] = update
            return
        self._folder = self._folder or TemporaryDirectory(prefix="grandrounds-")
        path = Path(self._folder.name) / f"{uuid.uuid4().hex}.pt"
        torch.save(dict(update), path)
        self._held[site] = path

    def pop(self, site: str) -> State:
        """Give a site's update back, and forget it.

        Raises:
            KeyError: if none of it is held.
        """
        held = self._held.pop(site)
        if isinstance(held, Path):
            update: State = torch.load(held, weights_only=True)
            held.unlink()
            return update
        self._free_bytes += tensor_bytes({UPDATE: held})[UPDATE]
        return held

    def clear(self) -> None:
        """Forget all updates, and remove the temporary folder."""
        self._held.clear()
        self._free_bytes = self._held_bytes
        if self._folder:
            self._folder.cleanup()
            self._folder = None


class OrderedMean(Aggregator):
    r"""Weighted mean of the updates of several sites.

    .. math:: \bar\Delta = \sum_k w_k \Delta_k / \sum_k w_k

    Floating entries are summed in at least single precision and keep their dtype; integer entries (counters of batch norm)
    take the maximum. Inputs are never changed.

    Args:
        sites: of the first round.
        held_bytes: how much of what came too early waits in memory; the rest waits on disk.
        factor: of a site's weight, positive; None is one for all.

    Example:
        >>> mean = OrderedMean(["site-1", "site-2"])
        >>> mean.add("site-2", {"w": torch.tensor([4.0])}, weight=3.0)
        >>> mean.add("site-1", {"w": torch.tensor([0.0])}, weight=1.0)
        >>> mean.close()
        {'w': tensor([3.])}
    """

    def __init__(
        self, sites: Iterable[str] = (), held_bytes: int = HELD_BYTES, factor: Callable[[str], float] | None = None
    ) -> None:
        self._factor = factor or (lambda site: 1.0)
        self._held = HeldUpdates(held_bytes)
        self.open(sites)

    def open(self, sites: Iterable[str]) -> None:
        """Expect an update from each of these sites."""
        self._waiting = natural_sorted(sites)
        self._held.clear()
        self._weights: dict[str, float] = {}
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
        weight *= self._factor(site)
        if site == self._waiting[0]:
            self._waiting.pop(0)
            self._fold(update, weight)
        else:
            self._held.put(site, update)
            self._weights[site] = weight
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
        self._held.clear()
        if not self._weight:
            return None
        return {
            name: (total / self._weight).to(self._dtypes[name]) if total.is_floating_point() else total
            for name, total in self._sum.items()
        }

    def _advance(self) -> None:
        while self._waiting and self._waiting[0] in self._held:
            site = self._waiting.pop(0)
            self._fold(self._held.pop(site), self._weights.pop(site))

    def _fold(self, update: State, weight: float) -> None:
        self._weight += weight
        if not self._sum:
            self._dtypes = {name: value.dtype for name, value in update.items()}
            for name, value in update.items():
                wide = torch.promote_types(value.dtype, torch.float32) if value.is_floating_point() else value.dtype
                self._sum[name] = value.to(wide) * weight if value.is_floating_point() else value.clone()
            return
        floating = floating_entries(update)
        # One call for all entries: with hundreds of small ones the calls cost as much as the sums.
        if floating:
            torch._foreach_add_([self._sum[name] for name in floating], list(floating.values()), alpha=weight)
        for name, value in update.items():
            if name not in floating:
                torch.maximum(self._sum[name], value, out=self._sum[name])
