"""The unit of privacy, and the cost of a release: the mechanism's parameters for accountant and ledger.

The unit is what may differ between two neighbouring data sets; an epsilon has no meaning without it. The same noise protects
one image well and a whole hospital badly, and protecting a hospital's participation or its data differs by a factor of two
(Dwork & Roth, "The Algorithmic Foundations of Differential Privacy", 2014, chapter 2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from grandrounds.checks import reraised_as
from grandrounds.errors import ConfigurationError, Fault

if TYPE_CHECKING:  # with torch
    from grandrounds.protocol.messages import ReleaseKind


class Unit(StrEnum):
    """What may differ.

    ``record``: one image more or less. ``patient``: all images of one patient more or less. ``presence``: the site's
    contribution is there, or zero in its place. ``site``: all of the site's data, replaced by any other.
    """

    RECORD = "record"
    PATIENT = "patient"
    PRESENCE = "presence"
    SITE = "site"

    @property
    def of_site(self) -> bool:
        """Whether it is about all data sets of a site together, which then share one budget."""
        return self in (Unit.PRESENCE, Unit.SITE)

    @property
    def adjacency(self) -> str:
        """How two neighbouring data sets differ; the same noise gives another epsilon where data are replaced."""
        return "replaced" if self is Unit.SITE else "added or removed"

    def described(self) -> str:
        """The unit in words, with its adjacency.

        Example:
            >>> Unit.SITE.described(), Unit.RECORD.described()
            ('all data of the site, replaced', 'one record, added or removed')
        """
        what = {
            Unit.RECORD: "one record",
            Unit.PATIENT: "all records of one patient",
            Unit.PRESENCE: "the site's taking part",
            Unit.SITE: "all data of the site",
        }[self]
        return f"{what}, {self.adjacency}"


def require_delta(delta: float) -> None:
    """Raise ``ValueError`` unless ``delta`` is a probability strictly between 0 and 1."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must be above 0 and below 1, got {delta}; usual is less than 1 over the records")


def update_sensitivity(clip: float, unit: Unit) -> float:
    """The L2 sensitivity of updates of norm at most ``clip``.

    Without a site's presence the update is zero: ``clip``. Updates of two data sets may be opposite: ``2 clip``. A single
    record can have the same effect, because training is not a contraction.

    Args:
        clip: bound on the L2 norm of the whole update, positive.
        unit: what may differ.

    Example:
        >>> update_sensitivity(1.5, Unit.PRESENCE), update_sensitivity(1.5, Unit.SITE)
        (1.5, 3.0)
    """
    return clip if unit is Unit.PRESENCE else 2.0 * clip


def distance(booked: Unit, claimed: Unit) -> float:
    """The factor of a sensitivity when a release is counted for another unit than it was made for.

    Protection of all data covers a record and the presence: 1. Two data sets are twice as far apart as a data set and
    nothing: 2. Protection of one record or one patient does not cover a site: infinite. Neither do these two cover each
    other: a patient may have several records, and without one of them a patient is another patient, not an absent one.

    Args:
        booked: the unit of the release's sensitivity.
        claimed: the unit that the guarantee is wanted for.

    Example:
        >>> distance(Unit.SITE, Unit.RECORD), distance(Unit.PRESENCE, Unit.SITE), distance(Unit.RECORD, Unit.SITE)
        (1.0, 2.0, inf)
    """
    if booked is claimed or booked is Unit.SITE:
        return 1.0
    return 2.0 if booked is Unit.PRESENCE else math.inf


class Mechanism(StrEnum):
    """How a release was protected.

    ``gaussian``: clipped, and noise added to the result. ``dp_sgd``: noise in every step of training, on gradients that
    were clipped sample by sample (Abadi et al., CCS 2016). ``no_guarantee``: anything else that left, such as noise
    without clipping. ``outside_budget``: left with no guarantee, and the hospital has decided not to count it; no
    epsilon covers it.
    """

    GAUSSIAN = "gaussian"
    DP_SGD = "dp_sgd"
    NO_GUARANTEE = "no_guarantee"
    OUTSIDE_BUDGET = "outside_budget"


SAMPLED = frozenset({Unit.RECORD, Unit.PATIENT})
WITHOUT_EPSILON = frozenset({Mechanism.NO_GUARANTEE, Mechanism.OUTSIDE_BUDGET})


@dataclass(frozen=True)
class GaussianSteps:
    """A number of equal Gaussian mechanisms, each possibly on a Poisson sample of the records.

    Attributes:
        noise_multiplier: :math:`z`, standard deviation of the noise over the sensitivity; positive.
        sampling_rate: :math:`q`, the probability with which each record takes part in a step, in (0, 1].
        steps: how many, at least 1.

    Raises:
        ValueError: if a value is outside its range.
    """

    noise_multiplier: float
    sampling_rate: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.noise_multiplier < math.inf:
            raise ValueError(f"noise_multiplier must be a positive number, got {self.noise_multiplier}")
        if not 0 < self.sampling_rate <= 1:
            raise ValueError(f"sampling_rate must be above 0 and at most 1, got {self.sampling_rate}")
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")


TRAINING_GATE = "grandrounds.privacy.gate"
"""Property of a task's FLARE context: the site's :class:`TrainingGate`, if it has one."""


class TrainingGate(Protocol):
    """What an executor knows of the site's privacy gate."""

    @property
    def hides_failures(self) -> bool:
        """Whether a training that fails must give an answer like any other, which is a zero update."""

    @property
    def counts_updates(self) -> bool:
        """Whether updates cost epsilon here, so that a training whose model stays must not show a failure either."""

    @property
    def is_answered(self) -> bool:
        """Whether the same task was answered before: what has left then leaves again, and nothing is to be done."""

    def leaves(self, reply: MutableMapping[str, Any]) -> None:
        """The answer has passed all filters, and is what leaves; the gate may replace its content by an earlier answer's."""

    def admit_training(self, training: Spending | None) -> None:
        """Check, before a training, that its result could leave; the gate books the cost of one that hides single images.

        Raises:
            GrandRoundsError: if the policy asks for more noise, or the cost would exceed the budget.
        """

    def require_releases(self, releases: Mapping[str, ReleaseKind]) -> None:
        """Check, before any work, that what a job declares may leave, by name.

        Raises:
            GrandRoundsError: if the site's policy has no rule for a release; it becomes the answer.
        """

    def begin_reading(self) -> None:
        """From now on the task reads images, or what is known of each: how it ends is an answer about them."""

    def note_failure(self, cause: str, fault: Fault) -> None:
        """Note why a task has failed, for the site; the server learns the fault if no image has been read."""

    def note_missing_walls(self, missing: str) -> None:
        """Take down that the process in which the site trains lacks walls, and why."""

    def row_noise(self, release: str) -> tuple[float, float] | None:
        """Bound on the norm and standard deviation of the noise of each row of a release; None if rows get no noise."""

    def release_minimum(self, kind: str, release: str) -> int | None:
        """Smallest number of cases behind counts of a release, or of all sites together; None if it is denied."""


@dataclass(frozen=True)
class Spending:
    """The parameters of one release.

    Attributes:
        mechanism: how it was protected.
        unit: whom the sensitivity is about.
        sensitivity: how far two neighbouring results can be apart, in L2; infinite without a guarantee.
        sigma: standard deviation of the noise.
        sampling_rate: probability with which a record or a patient takes part in a step. Below one only for these: the
            server knows which sites take part.
        steps: how often the mechanism was used for this release, for example the steps of training in a round.

    Raises:
        ConfigurationError: if a value is outside its range, or noise comes without clipping.
    """

    mechanism: Mechanism
    unit: Unit
    sensitivity: float
    sigma: float
    sampling_rate: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        if self.mechanism in WITHOUT_EPSILON:
            return
        if not 0 < self.sigma < math.inf:
            raise ConfigurationError(
                f"sigma must be a positive number, got {self.sigma}: a release without noise has no epsilon"
            )
        if not 0 < self.sensitivity < math.inf:
            raise ConfigurationError(
                f"sensitivity must be a positive number, got {self.sensitivity}: noise without clipping has no epsilon"
            )
        if self.sampling_rate < 1 and self.unit not in SAMPLED:
            raise ConfigurationError(
                f"sampling_rate {self.sampling_rate} is for the units record and patient, not {self.unit}: "
                "the server knows which sites take part"
            )
        with reraised_as(ConfigurationError, ValueError):
            GaussianSteps(self.sigma / self.sensitivity, self.sampling_rate, self.steps)

    def towards(self, unit: Unit) -> GaussianSteps | None:
        """The release as seen by a guarantee for ``unit``; None when it gives none.

        Example:
            >>> spending = Spending(Mechanism.GAUSSIAN, Unit.PRESENCE, sensitivity=1.0, sigma=4.0)
            >>> spending.towards(Unit.PRESENCE).noise_multiplier, spending.towards(Unit.SITE).noise_multiplier
            (4.0, 2.0)
        """
        sensitivity = self.sensitivity * distance(self.unit, unit)
        if self.mechanism in WITHOUT_EPSILON or math.isinf(sensitivity):
            return None
        return GaussianSteps(self.sigma / sensitivity, self.sampling_rate, self.steps)


def no_guarantee(sigma: float = 0.0) -> Spending:
    """The cost of a release without clipping, with whatever noise: no finite epsilon describes it."""
    return Spending(Mechanism.NO_GUARANTEE, Unit.SITE, math.inf, sigma)


def outside_budget(unit: Unit) -> Spending:
    """The entry of a release that a hospital has decided not to count, in a ledger whose guarantee is for ``unit``."""
    return Spending(Mechanism.OUTSIDE_BUDGET, unit, math.inf, 0.0)


def counted(spendings: Iterable[Spending]) -> list[Spending]:
    """The releases that an epsilon is about.

    Example:
        >>> counted([outside_budget(Unit.SITE)])
        []
    """
    return [spending for spending in spendings if spending.mechanism is not Mechanism.OUTSIDE_BUDGET]
