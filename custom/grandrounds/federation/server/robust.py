r"""Means of updates that few sites cannot move far, and bounds on what each contributes.

Norms are those of whole updates. A bound is a multiple of the median norm of the last rounds, so that one site cannot move
the mean by more than a few ordinary updates; an update within the bound is used as it is, to the last bit. A median says
nothing where one site could choose it: it must be of three sites at least, and positive. Else a site is bounded by its own
earlier updates; where there is none, the bound is void, which the record says.

Rules for the mean: coordinate-wise median and trimmed mean (Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018),
geometric median by smoothed Weiszfeld iterations (Pillutla et al., "Robust Aggregation for Federated Learning", IEEE TSP
2022).
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.aggregate import Aggregator, Demands
from grandrounds.federation.server.means import HELD_BYTES, HeldUpdates
from grandrounds.options import ABOVE_ZERO, Options, Range
from grandrounds.ordering import natural_sorted
from grandrounds.plugins import Registry
from grandrounds.protocol.messages import Result, State, floating_entries, require_like
from grandrounds.registered import registered, require_parameters

Rule = Literal["auto", "mean", "secure", "median", "trimmed_mean", "geometric_median"]
AUTO: Rule = "auto"
SECURE: Rule = "secure"
MIN_VALUES = 3
"""Sites that a median must be of: of two values, one site chooses it."""
KEPT_VALUES = 100
"""Norms and numbers of samples that the medians are of: the last ones."""
COMPARED_VALUES = 1024
"""About this many evenly spaced values of each entry are compared beside the norm; updates that agree in them are one."""
ITERATIONS = 100
MEDIAN_TOLERANCE = 1e-7
SMOOTHING = 1e-6
OwnRule = Callable[[Sequence[State], Sequence[float]], dict[str, Tensor]]
"""From the updates of a round and their positive weights to one of the same entries."""
OWN_RULES: Registry[OwnRule] = Registry("aggregator")


@dataclass(frozen=True)
class DefenceOptions(Options):
    """How far a single site can move the model."""

    aggregation: Annotated[
        Rule,
        "of updates. secure: the server sees their sum alone; auto: the mean, in kits secure if a site's policy asks for "
        "it; the median, the trimmed mean and the geometric median resist a minority of sites",
    ] = AUTO
    aggregator: Annotated[str | None, "a rule by gr.register_aggregator in place of the mean; null for none"] = None
    trimmed_fraction: Annotated[
        float,
        "of the updates left out at each end by trimmed_mean, rounded down, but at least one of three; as many it resists",
        Range(0, 0.5),
    ] = 0.2
    norm_multiple: Annotated[
        float | None, "bound on an update's L2 norm, over the median norm of the last rounds; null for none", ABOVE_ZERO
    ] = 3.0
    max_norm: Annotated[float | None, "bound on an update's L2 norm; null for none", ABOVE_ZERO] = None
    weight_multiple: Annotated[
        float | None, "bound on a site's samples as a weight, over the median of the sites'; null for none", ABOVE_ZERO
    ] = 10.0

    def check(self) -> None:
        """Refuse to trim everything, and a rule of one's own that does not exist, or beside another one."""
        if self.aggregator is not None:
            registered(OWN_RULES, self.aggregator, "aggregator")
            if self.aggregation not in (AUTO, "mean"):
                raise ConfigurationError(f"aggregator={self.aggregator} needs aggregation=mean, got {self.aggregation}")
        if self.aggregation == "trimmed_mean" and self.trimmed_fraction >= 0.5:
            raise ConfigurationError(f"trimmed_fraction must be below 0.5, got {self.trimmed_fraction}")

    @property
    def is_mean(self) -> bool:
        """Whether the rule is the mean, in whatever way it is computed."""
        return self.aggregator is None and self.aggregation in (AUTO, "mean", SECURE)

    @property
    def rule(self) -> str:
        """What makes updates one, for errors."""
        return f"aggregator={self.aggregator}" if self.aggregator else f"aggregation={self.aggregation}"

    @property
    def bounds(self) -> list[str]:
        """The options that bound contributions."""
        return [name for name in ("norm_multiple", "max_norm", "weight_multiple") if getattr(self, name) is not None]


def update_norm(update: State) -> float:
    """The L2 norm over all floating entries.

    Example:
        >>> update_norm({"w": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])})
        5.0
    """
    floating = list(floating_entries(update).values())
    if not floating:
        return 0.0
    norm = math.hypot(*(part.item() for part in torch._foreach_norm(floating)))
    if math.isfinite(norm):
        return norm
    return float(torch.stack([value.double().norm() for value in floating]).norm())


def shortened(update: State, factor: float) -> State:
    """The update times a factor in fresh tensors; the update itself for a factor of 1."""
    if factor == 1.0:
        return update
    return {name: value * factor if value.is_floating_point() else value for name, value in update.items()}


def trimmed_mean(values: Tensor, left_out: int) -> Tensor:
    """The mean over the first dimension without the ``left_out`` smallest and largest values of each entry.

    Example:
        >>> trimmed_mean(torch.tensor([[1.0], [2.0], [3.0], [1e9]]), 1)
        tensor([2.5000])
    """
    ordered = values.sort(dim=0).values
    return ordered[left_out : len(values) - left_out].mean(dim=0)


def median(values: Tensor) -> Tensor:
    """The median over the first dimension; of an even number the mean of the two in the middle.

    Example:
        >>> median(torch.tensor([[1.0], [2.0], [1e9]]))
        tensor([2.])
    """
    return trimmed_mean(values, (len(values) - 1) // 2)


def geometric_median(updates: Sequence[State], weights: Sequence[float]) -> dict[str, Tensor]:
    r"""The point with the smallest weighted sum of distances to the updates.

    .. math:: \arg\min_z \sum_k w_k \lVert z - \Delta_k \rVert_2

    Args:
        updates: at least one, with floating entries only.
        weights: positive, one for each.

    Example:
        >>> found = geometric_median([{"w": torch.tensor([value])} for value in (0.0, 0.0, 9.0)], [1.0, 1.0, 1.0])
        >>> round(float(found["w"]), 4)
        0.0
    """
    stacks = {name: torch.stack([update[name].double() for update in updates]) for name in updates[0]}
    base = torch.tensor(weights, dtype=torch.float64)
    point = _weighted_mean(stacks, base)
    scale = float(_distances(stacks, point).max())
    for _ in range(ITERATIONS if scale else 0):  # equal updates are at their mean
        factors = base / _distances(stacks, point).clamp(min=SMOOTHING * scale)
        moved = _weighted_mean(stacks, factors)
        step = max(float((moved[name] - point[name]).abs().max()) for name in point)
        point = moved
        if step <= MEDIAN_TOLERANCE * scale:
            break
    return {name: point[name].to(value.dtype) for name, value in updates[0].items()}


def register_aggregator(name: str) -> Callable[[OwnRule], OwnRule]:
    """Register how the updates of a round become one, for ``controller.aggregator``; use it as a decorator.

    The bounds of ``controller.norm_multiple`` and ``controller.weight_multiple`` come before it. The server must see single
    updates, so that it does not go with secure sums.

    Args:
        name: lower-case letters, digits and ``_``.

    Returns:
        A decorator of a function of the updates, in the order of the sites' names, each with the floating entries of the
        model by name, and of their weights (images, or 1). It returns one update with the same names and shapes.

    Raises:
        ConfigurationError: if the name has other characters or is taken, or the function takes other arguments, or gives no
            update for five updates of one entry.

    Example::

        @gr.register_aggregator("plain_mean")
        def plain_mean(updates, weights):
            return {name: torch.stack([update[name] for update in updates]).mean(0) for name in updates[0]}
    """
    OWN_RULES.require_name(name)

    def register(rule: OwnRule) -> OwnRule:
        require_parameters(f"aggregator {name}", rule, "updates", "weights")
        try:
            found = rule([{"w": torch.full((2,), float(number))} for number in range(5)], [1.0] * 5)
            require_like(found, {"w": torch.zeros(2)}, "the aggregate")
        except Exception as error:  # of another's function
            raise ConfigurationError(
                f"aggregator {name} must return the entries of an update by name: {error}"
            ) from error
        OWN_RULES.add(name, rule, rule)
        return rule

    return register


def _weighted_mean(stacks: Mapping[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    return {name: torch.tensordot(weights / weights.sum(), stack, dims=1) for name, stack in stacks.items()}


def _distances(stacks: Mapping[str, Tensor], point: Mapping[str, Tensor]) -> Tensor:
    parts = [(stack - point[name]).flatten(1).square().sum(dim=1) for name, stack in stacks.items()]
    return torch.stack(parts).sum(dim=0).sqrt()


class RobustMean(Aggregator):
    """Holds the updates of a round in memory and aggregates them by a rule that needs all of them.

    Example:
        >>> mean = RobustMean(DefenceOptions(aggregation="median"))
        >>> for site, value in (("site-1", 1.0), ("site-2", 2.0), ("site-3", 1e9)):
        ...     mean.add(site, {"w": torch.tensor([value])})
        >>> mean.close()
        {'w': tensor([2.])}
    """

    def __init__(self, options: DefenceOptions) -> None:
        self._options = options
        self.open(())

    def open(self, sites: Iterable[str]) -> None:
        """A round begins."""
        self._updates: dict[str, tuple[State, float]] = {}

    def add(self, site: str, update: State, weight: float = 1.0) -> None:
        """Take one site's update."""
        self._updates[site] = (floating_entries(update), weight)

    def skip(self, site: str) -> None:
        """A site gives no update; nothing waits for it."""

    def close(self) -> dict[str, Tensor] | None:
        """The aggregate of what came, or None without any.

        The trimmed mean leaves out at least one update at each end where there are three. Only the geometric median uses
        weights, each at most their median: with more, one site would be the result.
        """
        if not self._updates:
            return None
        updates, weights = zip(*(self._updates[site] for site in natural_sorted(self._updates)), strict=True)
        if self._options.aggregator is not None:
            aggregate = registered(OWN_RULES, self._options.aggregator, "aggregator")(updates, weights)
            require_like(aggregate, updates[0], f"the aggregate of {self._options.aggregator}")
            return aggregate
        if self._options.aggregation == "geometric_median":
            most = statistics.median_low([weight for weight in weights if weight > 0] or [0.0])
            return geometric_median(updates, [min(weight, most) for weight in weights])
        fraction = self._options.trimmed_fraction
        least = int(fraction > 0 and len(updates) >= MIN_VALUES)
        left_out = max(math.floor(fraction * len(updates)), least)
        rule: Callable[[Tensor], Tensor] = median
        if self._options.aggregation == "trimmed_mean":
            rule = lambda values: trimmed_mean(values, left_out)  # noqa: E731
        return {
            name: rule(torch.stack([update[name].float() for update in updates])).to(value.dtype)
            for name, value in updates[0].items()
        }


class BoundedContributions(Aggregator):
    """Bounds the norm and the weight of each site's update by the medians of the rounds before, for another aggregator.

    In the first round there is none: updates wait for all of the round, on disk where they are large.

    Args:
        inner: takes the bounded updates; the server can read them.
        options: the bounds.
        held_bytes: how much of what waits is in memory.
    """

    def __init__(self, inner: Aggregator, options: DefenceOptions, held_bytes: int = HELD_BYTES) -> None:
        self._inner, self._options = inner, options
        self._past: list[tuple[str, float, float]] = []
        self._round: dict[str, tuple[float, float]] = {}
        self._waiting = HeldUpdates(held_bytes)
        self._seen: dict[str, str] = {}
        self.bounded: dict[str, dict[str, float]] = {}
        self.void: dict[str, list[str]] = {}
        self.free_riders: dict[str, str] = {}

    def require_possible(self, demands: Demands) -> None:
        """As the inner one."""
        self._inner.require_possible(demands)

    def open(self, sites: Iterable[str]) -> None:
        """A round begins."""
        self._round, self.bounded, self.void, self.free_riders = {}, {}, {}, {}
        self._used: list[tuple[str, float, float]] = []
        self._waiting.clear()
        self._inner.open(sites)

    def check(self, site: str, result: Result, model: State) -> None:
        """As the inner one."""
        self._inner.check(site, result, model)

    def add(self, site: str, update: State, weight: float = 1.0) -> None:
        """Bound an update and its weight; in the first round they wait for the others."""
        self._round[site] = update_norm(update), weight
        self._note_riding(site, update)
        if not self._past and (self._options.norm_multiple or self._options.weight_multiple):
            self._waiting.put(site, update)
        else:
            self._inner.add(site, *self._bound(site, update, weight, self._past))

    def skip(self, site: str) -> None:
        """As the inner one."""
        self._inner.skip(site)

    def close(self) -> dict[str, Tensor] | None:
        """Add what has waited, in canonical order; the round's norms and weights count from now on."""
        sites = natural_sorted(self._round)
        together = [(site, *self._round[site]) for site in sites]
        for site in (site for site in sites if site in self._waiting):
            self._inner.add(site, *self._bound(site, self._waiting.pop(site), self._round[site][1], together))
        self._past = [*self._past, *sorted(self._used, key=lambda entry: sites.index(entry[0]))][-KEPT_VALUES:]
        return self._inner.close()

    def shares(self) -> Mapping[str, float]:
        """Below 1, of the sites whose norm was above the bound."""
        return {site: notes["factor"] for site, notes in self.bounded.items() if "factor" in notes}

    def moved(self, start: State, aggregate: State) -> dict[str, Tensor]:
        """As the inner one."""
        return self._inner.moved(start, aggregate)

    def notes(self) -> dict[str, Any]:
        """Whose update or weight was bounded, and by how much; whose bounds were void; who sent nothing new."""
        notes = {"bounded": self.bounded, "bounds_void": self.void, "free_riders": self.free_riders}
        return {**self._inner.notes(), **{name: sites for name, sites in notes.items() if sites}}

    def _bound(
        self, site: str, update: State, weight: float, values: Sequence[tuple[str, float, float]]
    ) -> tuple[State, float]:
        norm = self._round[site][0]
        norms, weights = [(name, norm) for name, norm, _ in values], [(name, weight) for name, _, weight in values]
        of_norms = self._times_median(self._options.norm_multiple, norms, site, 1)
        of_weights = self._times_median(self._options.weight_multiple, weights, site, 2)
        limit = min((value for value in (of_norms, self._options.max_norm) if value), default=math.inf)
        factor = min(1.0, limit / norm) if norm else 1.0
        allowed = min(weight, of_weights or math.inf)
        notes = {"norm": norm, "factor": factor} if factor < 1 else {}
        notes |= {"weight": weight, "weight_used": allowed} if allowed < weight else {}
        unbounded = norm > 0 and limit == math.inf and self._options.norm_multiple
        claimed = weight > 1 and of_weights is None and self._options.weight_multiple
        self._note_bounds(site, notes, {"norm": bool(unbounded), "weight": bool(claimed)})
        self._used.append((site, norm * factor, allowed))
        return shortened(update, factor), allowed

    def _note_bounds(self, site: str, bounded: Mapping[str, float], void: Mapping[str, bool]) -> None:
        if bounded:
            self.bounded[site] = {name: float(f"{value:.6g}") for name, value in bounded.items()}
        if any(void.values()):
            self.void[site] = [name for name, is_void in void.items() if is_void]

    def _times_median(
        self, multiple: float | None, values: Sequence[tuple[str, float]], site: str, column: Literal[1, 2]
    ) -> float | None:
        """A multiple of the median, or where one site could choose that, of the median of the site's own earlier values."""
        if not multiple:
            return None
        if len({name for name, _ in values}) >= MIN_VALUES and (
            middle := statistics.median(value for _, value in values)
        ):
            return multiple * middle
        own = [entry[column] for entry in self._past if entry[0] == site and entry[column] > 0]
        return multiple * statistics.median(own) if own else None

    def _note_riding(self, site: str, update: State) -> None:
        """Name a site whose update is zero, or is one that has come before, from whichever site."""
        if not self._round[site][0]:
            self.free_riders[site] = "zero"
            return
        digest = hashlib.sha256(self._round[site][0].hex().encode())
        for name, value in sorted(floating_entries(update).items()):
            flat = value.detach().flatten()
            some = flat[:: max(1, flat.numel() // COMPARED_VALUES)].cpu().contiguous()
            digest.update(name.encode() + some.view(torch.uint8).numpy().tobytes())
        received = digest.hexdigest()
        if received in self._seen:
            self.free_riders[site] = f"as {self._seen[received]}"
        self._seen[received] = site
        self._seen = dict(list(self._seen.items())[-KEPT_VALUES:])

    def state_dict(self) -> dict[str, Any]:
        """The norms and weights that the medians are of, digests of updates, and what the inner one keeps."""
        past = [list(entry) for entry in self._past]
        return {"past": past, "seen": dict(self._seen), "inner": self._inner.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self._past = [(site, norm, weight) for site, norm, weight in state["past"]]
        self._seen = dict(state["seen"])
        self._inner.load_state_dict(state["inner"])
