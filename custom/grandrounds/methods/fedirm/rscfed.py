"""Consensus of random subsets: models that lie far from the others count less.

Liang et al., "RSCFed: Random Sampling Consensus Federated Semi-supervised Learning", CVPR 2022. The server draws several
subsets of the sites, averages each with weights that fall with the distance from the subset's mean, and averages these
sub-consensus models. There every subset trains anew; here a site trains once a round and its update counts in each subset
that has drawn it, so that a round costs what it costs in federated averaging.

A rival of FedIRM on the same seam: the server's consensus of random subsets (RSCFed, Liang et al., CVPR 2022).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from grandrounds.checks import require_at_least
from grandrounds.federation.aggregation import OrderedMean
from grandrounds.methods.fedirm.controller import FedIRMController
from grandrounds.models.registry import build_model
from grandrounds.options import require_min, take_options
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import State
from grandrounds.seeding import numpy_generator

SUBSETS, SUBSET_SIZE = 3, 5


def distance_weights(distances: Tensor, samples: Tensor, scale: float) -> Tensor:
    r"""Weights of a subset's models.

    .. math:: w_l \propto n_l \exp(-\beta \, d_l / n_l), \qquad \sum_l w_l = 1

    Args:
        distances: :math:`d_l`, of each model from the subset's mean weighted by samples, shape ``(models,)``, at least zero.
        samples: :math:`n_l`, training images behind each, shape ``(models,)``, above zero.
        scale: :math:`\beta`, at least zero; 0 is federated averaging.

    Returns:
        Shape ``(models,)``, float64.

    Raises:
        ValueError: if shapes differ, there is no model, or a value is out of range.

    Example:
        >>> distance_weights(torch.tensor([0.0, 4.0]), torch.tensor([2.0, 2.0]), scale=0.0)
        tensor([0.5000, 0.5000], dtype=torch.float64)
        >>> distance_weights(torch.tensor([0.0, 4.0]), torch.tensor([2.0, 2.0]), scale=1.0)  # 1 : exp(-2)
        tensor([0.8808, 0.1192], dtype=torch.float64)
    """
    require_at_least(scale, 0, "scale")
    if distances.dim() != 1 or distances.shape != samples.shape or not len(distances):
        raise ValueError(
            f"distances and samples must have one entry per model, got {distances.shape} and {samples.shape}"
        )
    if not ((samples > 0).all() and (distances >= 0).all()):
        raise ValueError("samples must be above zero and distances at least zero")
    counts = samples.double()
    return torch.softmax(counts.log() - scale * distances.double() / counts, dim=0)


def sub_consensus(
    updates: Sequence[State], samples: Sequence[float], scale: float, measured: Collection[str]
) -> tuple[dict[str, Tensor], Tensor]:
    """The consensus of one subset.

    Args:
        updates: of its sites, all from the same model; distances of updates are distances of models.
        samples: training images behind each.
        scale: see :func:`distance_weights`.
        measured: the entries over which distance is measured: parameters, because running statistics have other units.

    Returns:
        The weighted mean, entry by entry in the dtype that came; and the weights, shape ``(updates,)``.

    Raises:
        ValueError: if there is no update.
    """
    if not updates:
        raise ValueError("a subset needs an update at least, got none")
    counts = torch.tensor(samples, dtype=torch.float64)
    mean = _weighted(updates, counts / counts.sum(), measured)
    squares = [sum((update[name].double() - mean[name]).square().sum() for name in measured) for update in updates]
    weights = distance_weights(torch.stack([torch.as_tensor(s) for s in squares]).sqrt(), counts, scale)
    total = _weighted(updates, weights, updates[0])
    return {name: value.to(updates[0][name].dtype) for name, value in total.items()}, weights


def draw_subsets(
    sites: Iterable[str], subsets: int, size: int, generator: np.random.Generator
) -> tuple[tuple[str, ...], ...]:
    """Draw subsets of the sites, each without replacement; all sites where there are not more than ``size``.

    Raises:
        ValueError: if a number is below one.
    """
    require_at_least(subsets, 1, "subsets")
    require_at_least(size, 1, "size")
    ordered = natural_sorted(sites)
    count = min(size, len(ordered))
    drawn = (generator.choice(len(ordered), size=count, replace=False) for _ in range(subsets))
    return tuple(tuple(ordered[index] for index in sorted(chosen)) for chosen in drawn)


class ConsensusMean(OrderedMean):
    """The mean of a round's sub-consensus models, in place of the mean of its updates.

    Args:
        sites: the sites that are asked this round.
        subsets: how many are drawn.
        size: sites in each.
        scale: see :func:`distance_weights`.
        measured: see :func:`sub_consensus`.
        generator: draws the subsets.
    """

    def __init__(
        self,
        sites: Iterable[str],
        subsets: int,
        size: int,
        scale: float,
        measured: Collection[str],
        generator: np.random.Generator,
    ) -> None:
        super().__init__(sites)
        self._subsets, self._size, self._scale = subsets, size, scale
        self._measured, self._generator = measured, generator
        self._came: dict[str, tuple[State, float]] = {}
        self.weights: list[dict[str, float]] = []

    def add(self, site: str, update: State, weight: float = 1.0) -> None:
        """Keep one site's update; distances can be measured only when all are there.

        Raises:
            ValueError: if the weight is not positive.
        """
        if not weight > 0:
            raise ValueError(f"the weight of {site} must be positive, got {weight}")
        self._came[site] = (update, weight)

    def close(self) -> dict[str, Tensor] | None:
        """The consensus of those that came, or None when nobody did; :attr:`weights` says who counted how much."""
        if not self._came:
            return None
        mean = OrderedMean(str(number) for number in range(self._subsets))
        for number, chosen in enumerate(draw_subsets(self._came, self._subsets, self._size, self._generator)):
            updates, samples = zip(*(self._came[site] for site in chosen), strict=True)
            consensus, weights = sub_consensus(updates, samples, self._scale, self._measured)
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


@dataclass(frozen=True)
class ConsensusOptions:
    """How the consensus is found.

    Attributes:
        subsets: how many subsets of the round's sites are drawn.
        subset_size: sites in each.
        distance_scale: beta: how fast a model's weight falls with its distance from its subset's mean. It acts only where
            it is about as large as images over distance: with the 0.01 of the authors' command for skin lesions and 700
            images a site all weigh the same (their commands for SVHN and CIFAR-100 have 1e4).
    """

    subsets: int = SUBSETS
    subset_size: int = SUBSET_SIZE
    distance_scale: float = 1e4

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        require_min(self, 1, "subsets", "subset_size")
        require_min(self, 0, "distance_scale")


class ConsensusController(FedIRMController):
    """Averages sub-consensus models instead of the sites' models.

    Its sites train as FedIRM's with ``relation_weight=0``: labelled ones on their labels, the others from a mean teacher.

    Args:
        options: those of :class:`ConsensusOptions` and :class:`~grandrounds.methods.fedirm.controller.FedIRMController`.
    """

    option_groups: ClassVar[tuple[type, ...]] = (ConsensusOptions,)

    def __init__(self, **options: Any) -> None:
        self.consensus, others = take_options(ConsensusOptions, options)
        super().__init__(**others)

    def start(self) -> None:
        """Build the initial model, and note which entries are parameters."""
        super().start()
        network = build_model(self.problem.model_spec(pretrained=False), self.seed)
        self._parameters = tuple(name for name, _ in network.named_parameters())

    def open_round(self, sites: list[str]) -> None:
        """Expect an update from each of these sites."""
        super().open_round(sites)
        generator = numpy_generator(self.seed, "consensus", self.round_number)
        options = self.consensus
        self._consensus = ConsensusMean(
            sites, options.subsets, options.subset_size, options.distance_scale, self._parameters, generator
        )
        self._mean = self._consensus

    def round_notes(self) -> dict[str, Any]:
        """How much each site counted in each subset."""
        weights = [{site: round(weight, 6) for site, weight in of.items()} for of in self._consensus.weights]
        return {**super().round_notes(), "subsets": weights}

    def fingerprint(self) -> dict[str, Any]:
        """How the consensus is found, beside the rest."""
        return {**super().fingerprint(), **asdict(self.consensus)}
