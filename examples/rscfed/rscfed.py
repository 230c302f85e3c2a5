"""RSCFed: averaging by the consensus of random subsets, with the sites of FedIRM.

Liang et al., "RSCFed: Random Sampling Consensus Federated Semi-supervised Learning", CVPR 2022. The server draws several
subsets of the sites, averages each with weights that fall with a model's distance from the subset's mean, and averages these
sub-consensus models. In the paper every subset trains separately; here a site trains once per round and its update is used
in each subset that contains it, at the cost of federated averaging.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.aggregate import Aggregator
from grandrounds.federation.server.means import OrderedMean
from grandrounds.methods.fedirm.controller import FedIRMController
from grandrounds.models.registry import build_model
from grandrounds.options import METHOD, Min, Options
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import State
from grandrounds.seeding import numpy_generator


def distance_weights(distances: Tensor, samples: Tensor, scale: float, factors: Tensor | None = None) -> Tensor:
    r"""Weights of a subset's models.

    .. math:: w_l \propto a_l n_l \exp(-\beta \, d_l / n_l), \qquad \sum_l w_l = 1

    Args:
        distances: :math:`d_l`, of each model from the subset's mean, shape ``(models,)``, at least zero.
        samples: :math:`n_l`, training images of each, shape ``(models,)``, above zero.
        scale: :math:`\beta`, at least zero; 0 is federated averaging.
        factors: :math:`a_l`, shape ``(models,)``, above zero; None is one for all.

    Returns:
        Shape ``(models,)``, float64.

    Example:
        >>> distance_weights(torch.tensor([0.0, 4.0]), torch.tensor([2.0, 2.0]), scale=0.0)
        tensor([0.5000, 0.5000], dtype=torch.float64)
        >>> distance_weights(torch.tensor([0.0, 4.0]), torch.tensor([2.0, 2.0]), scale=1.0)  # 1 : exp(-2)
        tensor([0.8808, 0.1192], dtype=torch.float64)
    """
    counts = samples.double()
    shares = counts if factors is None else counts * factors
    return torch.softmax(shares.log() - scale * distances.double() / counts, dim=0)


def sub_consensus(
    updates: Sequence[State],
    samples: Sequence[float],
    scale: float,
    measured: Collection[str],
    factors: Sequence[float],
) -> tuple[dict[str, Tensor], Tensor]:
    """The consensus of one subset.

    Args:
        updates: of its sites, all from the same model.
        samples: training images of each.
        scale: see :func:`distance_weights`.
        measured: the entries that define the distance: parameters, because running statistics have other units.
        factors: see :func:`distance_weights`; the mean from which distances are measured has them, too.

    Returns:
        The weighted mean, in the dtypes of the updates; and the weights, shape ``(updates,)``.
    """
    counts = torch.tensor(samples, dtype=torch.float64)
    extra = torch.tensor(factors, dtype=torch.float64)
    shares = counts * extra
    mean = _weighted(updates, shares / shares.sum(), measured)
    squares = [sum((update[name].double() - mean[name]).square().sum() for name in measured) for update in updates]
    weights = distance_weights(torch.stack([torch.as_tensor(s) for s in squares]).sqrt(), counts, scale, extra)
    total = _weighted(updates, weights, updates[0])
    return {name: value.to(updates[0][name].dtype) for name, value in total.items()}, weights


def draw_subsets(
    sites: Iterable[str], subsets: int, size: int, generator: np.random.Generator
) -> tuple[tuple[str, ...], ...]:
    """Draw subsets of at most ``size`` sites, each without replacement."""
    ordered = natural_sorted(sites)
    count = min(size, len(ordered))
    drawn = (generator.choice(len(ordered), size=count, replace=False) for _ in range(subsets))
    return tuple(tuple(ordered[index] for index in sorted(chosen)) for chosen in drawn)


@dataclass(frozen=True)
class ConsensusOptions(Options):
    """How the consensus is computed.

    ``distance_scale`` has an effect only if it is of the order of images over distance: with the 0.01 of the authors'
    command for skin lesions and 700 images per site all weights are equal (their commands for SVHN and CIFAR-100 have 1e4).
    """

    subsets: Annotated[int, "subsets of the participants", Min(1), METHOD] = 3
    subset_size: Annotated[int, "sites in each subset", Min(1), METHOD] = 5
    distance_scale: Annotated[float, "beta: how fast weights fall with distance; 0 is federated averaging", Min(0)] = (
        1e4
    )


class ConsensusMean(Aggregator):
    """The mean of a round's sub-consensus models instead of its updates.

    Args:
        options: of the subsets and their weights.
        generator: makes what draws the subsets of a round.
        factor: of a site's weight; None is one for all.

    Attributes:
        measured: the entries that define distances.
        weights: of each site by subset, of the last consensus.
    """

    def __init__(
        self,
        options: ConsensusOptions,
        generator: Callable[[], np.random.Generator],
        factor: Callable[[str], float] | None = None,
    ) -> None:
        self._options, self._generator, self._factor = options, generator, factor or (lambda site: 1.0)
        self.measured: Collection[str] = ()
        self.open(())

    def open(self, sites: Iterable[str]) -> None:
        """A round begins."""
        self._updates: dict[str, tuple[State, float]] = {}
        self.weights: list[dict[str, float]] = []

    def add(self, site: str, update: State, weight: float = 1.0) -> None:
        """Keep a site's update until all have arrived.

        Raises:
            ValueError: if the weight is not positive.
        """
        if not weight > 0:
            raise ValueError(f"the weight of {site} must be positive, got {weight}")
        self._updates[site] = (update, weight)

    def skip(self, site: str) -> None:
        """A site gives no update; nothing waits for it."""

    def close(self) -> dict[str, Tensor] | None:
        """The consensus of the updates, or None without any; :attr:`weights` has each site's weight by subset."""
        if not self._updates:
            return None
        subsets, size, scale = self._options.subsets, self._options.subset_size, self._options.distance_scale
        mean = OrderedMean(str(number) for number in range(subsets))
        for number, chosen in enumerate(draw_subsets(self._updates, subsets, size, self._generator())):
            updates, samples = zip(*(self._updates[site] for site in chosen), strict=True)
            factors = [self._factor(site) for site in chosen]
            consensus, weights = sub_consensus(updates, samples, scale, self.measured, factors)
            mean.add(str(number), consensus)
            self.weights.append(dict(zip(chosen, weights.tolist(), strict=True)))
        return mean.close()


def _weighted(updates: Sequence[State], weights: Tensor, names: Iterable[str]) -> Mapping[str, Tensor]:
    factors = weights.tolist()
    return {
        name: torch.stack(
            [factor * update[name].double() for factor, update in zip(factors, updates, strict=True)]
        ).sum(dim=0)
        for name in names
    }


class ConsensusController(FedIRMController):
    """Averages sub-consensus models instead of the sites' models.

    Sites train as in FedIRM with ``relation_weight=0``: labelled ones on their labels, the others with a mean teacher.
    """

    needs_exclusive: ClassVar[bool] = True
    needs_single_updates: ClassVar[str] = "the consensus weighs single updates"
    consensus: ConsensusOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not self.defence.is_mean:
            raise ConfigurationError(f"aggregation must be mean, got {self.defence.rule}: the consensus is the rule")

    def start(self) -> None:
        """Build the initial model, and note which entries are parameters."""
        super().start()
        network = build_model(self.problem.model_spec(pretrained=False), self.seed)
        self._mean.measured = tuple(name for name, _ in network.named_parameters())

    def new_mean(self) -> ConsensusMean:
        """The consensus of random subsets."""
        self._mean = ConsensusMean(
            self.consensus, lambda: numpy_generator(self.seed, "consensus", self.round_number), self.factor
        )
        return self._mean

    def round_notes(self) -> dict[str, Any]:
        """Each site's weight in each subset."""
        weights = [{site: round(weight, 6) for site, weight in of.items()} for of in self._mean.weights]
        return {**super().round_notes(), "subsets": weights}
