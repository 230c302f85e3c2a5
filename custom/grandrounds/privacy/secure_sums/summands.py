"""What sites add up: how the tensors of each kind of release become numbers with a bound.

Bounds are options of the signed job. A site's gate clips to them, and the server reads the sum by the same encoding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grandrounds.errors import MessageError
from grandrounds.evaluation.counts import IMAGES, MOST_COUNTED
from grandrounds.evaluation.metrics import WORST_LOSS
from grandrounds.evaluation.score_sums import TOTALS
from grandrounds.options import ABOVE_ZERO, Min, Options, take_options
from grandrounds.privacy.secure_sums.numbers import FixedPointEncoding, Words
from grandrounds.protocol.messages import ReleaseKind, State, is_running_statistic

Numbers = NDArray[np.float64]
WEIGHT = "weight"
"""The name of the sum of weights, beside the names of releases and their tensors, such as ``update/head.weight``."""
SUM_OF_WEIGHTS, LARGEST_NORM = "weight", "largest_norm"
"""Values of a task of ridge regression: S, an upper bound of the sum of all images' weights, and R."""
MOST_LOGIT = 1e3
"""Absolute value of a published logit: one site's must not be all that a mean is."""
OF_TRAINING = frozenset({ReleaseKind.MODEL_UPDATE, ReleaseKind.CLASS_STATISTICS})
"""Kinds that come with an update, whose contributors may change from round to round."""
CONTRIBUTING = "sites"
"""Beside these sums, how many sites have images."""
MOST_LOST = MOST_COUNTED * WORST_LOSS
"""Bound of sums of losses."""
SIGNED = {np.dtype("<u4"): np.dtype("<i4"), np.dtype("<u8"): np.dtype("<i8")}


@dataclass(frozen=True)
class SumOptions(Options):
    """Bounds of what a site adds to a secure sum; its gate clips to them."""

    update_norm: Annotated[
        float,
        "bound on the L2 norm of an update in a secure sum, without running statistics; the gate clips",
        ABOVE_ZERO,
    ] = 50.0
    statistics_bound: Annotated[
        float, "bound on the change of each running mean and variance in a secure sum; the gate clips", ABOVE_ZERO
    ] = 50.0
    most_samples: Annotated[int, "largest weight of a site in a secure sum with weighting=samples", Min(1)] = 10_000


@dataclass(frozen=True)
class SumTerms:
    """What the numbers of a sum depend on; all sites and the server have the same.

    Attributes:
        sites: of the roster.
        weighted: whether a site's numbers are multiplied by its images, and these are added up, too.
        job: the arguments of the signed job's executors.
        values: of the task.
    """

    sites: int
    weighted: bool = False
    job: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def options(self) -> SumOptions:
        """The bounds that the job sets, or their defaults."""
        return take_options(SumOptions, dict(self.job))[0]

    @property
    def most_weight(self) -> int:
        """The largest weight of a site."""
        return self.options.most_samples if self.weighted else 1


class Summand(Protocol):
    """How releases of one kind become numbers that can be added up."""

    def prepared(self, tensors: State, samples: int, terms: SumTerms) -> dict[str, Numbers]:
        """A site's numbers within their bounds, by tensor; what is left out stays at the site.

        Args:
            tensors: of the release.
            samples: training images behind it.
            terms: of the sum.

        Raises:
            MessageError: if the release has not the form that is needed.
        """
        ...

    def encoding(self, name: str, terms: SumTerms) -> FixedPointEncoding:
        """The encoding of a tensor, by its name."""
        ...


class UpdateSummand:
    """Updates of models: clipped in L2, times the weight. Integer entries, counters of batch norm, stay at the site."""

    def prepared(self, tensors: State, samples: int, terms: SumTerms) -> dict[str, Numbers]:
        """See :class:`Summand`."""
        exact = {name: _exact(value) for name, value in tensors.items() if value.is_floating_point()}
        learnt = [value for name, value in exact.items() if not is_running_statistic(name)]
        norm = math.sqrt(sum(float(np.dot(value.ravel(), value.ravel())) for value in learnt))
        factor = min(1.0, terms.options.update_norm / norm) if norm else 1.0
        weight, bound = weight_of(samples, terms), terms.options.statistics_bound
        return {
            name: weight * (np.clip(value, -bound, bound) if is_running_statistic(name) else value * factor)
            for name, value in exact.items()
        }

    def encoding(self, name: str, terms: SumTerms) -> FixedPointEncoding:
        """See :class:`Summand`: 32 bits; with weights 64, because a large weight takes their precision."""
        options = terms.options
        bound = options.statistics_bound if is_running_statistic(name) else options.update_norm
        return FixedPointEncoding(64 if terms.weighted else 32, bound * terms.most_weight, terms.sites)


class StatisticsSummand:
    """Counts and sums of ridge regression, as of at most ``most_samples`` images, with the number of these and of sites."""

    def prepared(self, tensors: State, samples: int, terms: SumTerms) -> dict[str, Numbers]:
        """See :class:`Summand`."""
        share = min(1.0, terms.options.most_samples / max(samples, 1))
        shared = {name: share * _exact(value) for name, value in tensors.items()}
        return {**shared, IMAGES: np.array([share * samples]), CONTRIBUTING: np.array([float(samples > 0)])}

    def encoding(self, name: str, terms: SumTerms) -> FixedPointEncoding:
        """See :class:`Summand`; a product of features of an image of weight w is at most w R^2, of one with a target w R."""
        weight, norm = (float(terms.values[value]) for value in (SUM_OF_WEIGHTS, LARGEST_NORM))
        largest = max(norm, 1.0)
        bounds = {"products": largest**2 * weight, "targets": largest * weight, "losses": MOST_LOST}
        return FixedPointEncoding(64, bounds.get(name, float(MOST_COUNTED)), terms.sites)


class RelationSummand:
    """Class relation matrices: each row times whether it is known, and how many sites know it."""

    def prepared(self, tensors: State, samples: int, terms: SumTerms) -> dict[str, Numbers]:
        """See :class:`Summand`; a row counts unless site or gate withhold it, whatever a server asks for."""
        known = _exact(tensors["support"]) >= 0
        return {"matrix": _exact(tensors["matrix"]) * known[:, None], "support": known.astype(np.float64)}

    def encoding(self, name: str, terms: SumTerms) -> FixedPointEncoding:
        """See :class:`Summand`: rows are distributions."""
        return FixedPointEncoding(64, 1.0, terms.sites)


class SoftLabelSummand:
    """Predictions on public images: probabilities, or the logits of FedMD."""

    def prepared(self, tensors: State, samples: int, terms: SumTerms) -> dict[str, Numbers]:
        """See :class:`Summand`."""
        return {name: _exact(value) for name, value in tensors.items()}

    def encoding(self, name: str, terms: SumTerms) -> FixedPointEncoding:
        """See :class:`Summand`: probabilities with the bytes of single precision."""
        logits = terms.values["exchange"]["options"]["content"] == "logits"
        return FixedPointEncoding(64, MOST_LOGIT, terms.sites) if logits else FixedPointEncoding(32, 1.0, terms.sites)


class ScoreSummand:
    """Tables of scores."""

    def prepared(self, tensors: State, samples: int, terms: SumTerms) -> dict[str, Numbers]:
        """See :class:`Summand`."""
        return {name: _exact(value) for name, value in tensors.items()}

    def encoding(self, name: str, terms: SumTerms) -> FixedPointEncoding:
        """See :class:`Summand`."""
        return FixedPointEncoding(64, MOST_LOST if name == TOTALS else float(MOST_COUNTED), terms.sites)


SUMMANDS: Mapping[ReleaseKind, Summand] = MappingProxyType(
    {
        ReleaseKind.MODEL_UPDATE: UpdateSummand(),
        ReleaseKind.CLASS_STATISTICS: RelationSummand(),
        ReleaseKind.SOFT_LABELS: SoftLabelSummand(),
        ReleaseKind.SUFFICIENT_STATISTICS: StatisticsSummand(),
        ReleaseKind.SCORES: ScoreSummand(),
    }
)
"""Of the kinds of releases that can be added up."""


def weight_of(samples: int, terms: SumTerms) -> int:
    """A site's weight: 1, or its images, at most as many as the job allows.

    Example:
        >>> weight_of(70_000, SumTerms(3, weighted=True)), weight_of(70_000, SumTerms(3))
        (10000, 1)
    """
    return min(max(samples, 0), terms.most_weight) if terms.weighted else 1


def summed_words(
    releases: Mapping[str, tuple[ReleaseKind, State]], samples: int, terms: SumTerms
) -> tuple[dict[str, Words], int]:
    """A site's releases as words of the ring.

    Args:
        releases: kind and tensors, by name.
        samples: training images behind them.
        terms: of the sum.

    Returns:
        The words by ``release/tensor``, and how many numbers were clipped to their bound.

    Raises:
        MessageError: if a kind cannot be added up, or a number is not finite.
    """
    words, clipped = {}, 0
    for release, (kind, tensors) in releases.items():
        if kind not in SUMMANDS:
            raise MessageError(f"{release}: releases of kind {kind} cannot be added up")
        for name, numbers in SUMMANDS[kind].prepared(tensors, samples, terms).items():
            encoded, beyond = SUMMANDS[kind].encoding(name, terms).encode(numbers)
            words[f"{release}/{name}"] = encoded
            clipped += beyond
    if terms.weighted:
        words[WEIGHT], _ = weight_encoding(terms).encode(np.array([weight_of(samples, terms)], np.float64))
    return words, clipped


def words_to_tensors(words: Mapping[str, Words]) -> dict[str, Tensor]:
    """Words as tensors: of the same bits, in signed types, which travel everywhere."""
    return {name: torch.from_numpy(value.view(SIGNED[value.dtype])) for name, value in words.items()}


def weight_encoding(terms: SumTerms) -> FixedPointEncoding:
    """The encoding of weights."""
    return FixedPointEncoding(64, float(terms.most_weight), terms.sites)


def _exact(value: Tensor) -> Numbers:
    return value.detach().cpu().contiguous().double().numpy()
