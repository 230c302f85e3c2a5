"""What is done to a release before it leaves a site, and what it costs.

Each kind of release has treatments of its own. A model's update is clipped and gets noise. A row of class statistics is
shown only when enough patients are behind it. Soft labels must stay distributions, so they are made coarser and never get
noise. Of embeddings each sample's row is bounded for itself.

A treatment knows its cost without seeing the release: it is booked before the noise is drawn.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.curves import COUNTS, coarser_curves, counts_of, curves_from
from grandrounds.privacy.mechanisms.clipping import RUNNING_STATISTICS, NormPolicy, clip_rows, require_clip
from grandrounds.privacy.mechanisms.coarsening import quantise_rows, withhold_classes
from grandrounds.privacy.mechanisms.gaussian import GaussianMechanism
from grandrounds.privacy.mechanisms.secure_noise import RandomBytes, with_noise
from grandrounds.protocol.messages import ReleaseKind
from grandrounds.protocol.spending import Mechanism, Spending, Unit, no_guarantee

State = Mapping[str, Tensor]
RunningStatistics = Literal["refuse", "average", "drop", "keep"]
UPDATES = frozenset({ReleaseKind.MODEL_UPDATE, ReleaseKind.DISCRIMINATOR})
MATRIX, SUPPORT = "matrix", "support"
ROUNDING = 1e-9
"""Of a noise multiplier that was multiplied by a bound and divided by it again."""
MIN_SUPPORT = 5
"""Patients behind what is told of a class, where a policy does not say."""


class Treatment(ABC):
    """What is done to a release of certain kinds."""

    name: ClassVar[str]
    """As a policy calls it."""
    kinds: ClassVar[frozenset[ReleaseKind]]
    """What it may be used on."""

    def spending(self, trained: Spending | None) -> Spending:
        """What one release costs.

        Args:
            trained: how the training itself was protected, if it was; only ``record_level`` looks at it.

        Raises:
            ValueError: if the release needs a protected training and had none.
        """
        return no_guarantee()

    @abstractmethod
    def apply(self, tensors: State, random_bytes: RandomBytes = os.urandom) -> dict[str, Tensor]:
        """What may leave, in new tensors on the CPU, of the same names, shapes and dtypes.

        Raises:
            ValueError: if the release is not as this treatment needs it; the entry is named.
        """


@dataclass(frozen=True)
class ClipAndNoise(Treatment):
    """An update is clipped as a whole and gets Gaussian noise on every entry.

    Attributes:
        clip: bound on the L2 norm over all entries.
        sigma: standard deviation of the noise.
        unit: whom the noise protects.
        running_statistics: of batch norm; ``average`` treats them like the rest, ``drop`` sends zeros, ``keep`` sends
            them as they are, which has no finite epsilon, ``refuse`` lets no update with them out.

    Raises:
        ConfigurationError: if ``clip`` or ``sigma`` is not positive.
    """

    name: ClassVar[str] = "clip_and_noise"
    kinds: ClassVar[frozenset[ReleaseKind]] = UPDATES
    clip: float
    sigma: float
    unit: Unit = Unit.SITE
    running_statistics: RunningStatistics = "refuse"

    def __post_init__(self) -> None:
        self._mechanism()

    def spending(self, trained: Spending | None) -> Spending:
        """The Gaussian mechanism's, or that of no guarantee when running statistics are kept."""
        return no_guarantee(self.sigma) if self.running_statistics == "keep" else self._mechanism().spending()

    def apply(self, tensors: State, random_bytes: RandomBytes = os.urandom) -> dict[str, Tensor]:
        """See :meth:`Treatment.apply`; an integer entry is refused, because noise does not reach it."""
        for name, value in tensors.items():
            if not value.is_floating_point():
                raise ValueError(f"{name!r} is of {value.dtype}: noise does not reach it, so it must not leave")
        kept = {}
        if self.running_statistics == "keep":
            kept = {name: value for name, value in tensors.items() if name.rpartition(".")[2] in RUNNING_STATISTICS}
        treated = {name: value for name, value in tensors.items() if name not in kept}
        noised = self._mechanism().release(treated, ReleaseKind.MODEL_UPDATE, random_bytes)
        return {name: plain_copy(kept[name]) if name in kept else noised[name] for name in tensors}

    def _mechanism(self) -> GaussianMechanism:
        policies = {"average": NormPolicy.TREAT, "drop": NormPolicy.ZERO}
        return GaussianMechanism(
            self.clip, self.sigma, self.unit, policies.get(self.running_statistics, NormPolicy.REFUSE)
        )


@dataclass(frozen=True)
class ClipAndNoiseSamples(Treatment):
    """Each sample's embedding is clipped for itself and gets Gaussian noise; the guarantee is for one record.

    It holds for the row with the encoder taken as given, and where no image moves another's row (not under batch norm).

    Attributes:
        clip: bound on the L2 norm of a row.
        sigma: standard deviation of the noise on each entry.

    Raises:
        ConfigurationError: if ``clip`` or ``sigma`` is not positive.
    """

    name: ClassVar[str] = "clip_and_noise"
    kinds: ClassVar[frozenset[ReleaseKind]] = frozenset({ReleaseKind.EMBEDDINGS})
    clip: float
    sigma: float

    def __post_init__(self) -> None:
        require_clip(self.clip)
        self.spending(None)

    def spending(self, trained: Spending | None) -> Spending:
        """One record's row can move by twice the bound; each record may be in one row only."""
        return Spending(Mechanism.GAUSSIAN, Unit.RECORD, 2.0 * self.clip, self.sigma)

    def apply(self, tensors: State, random_bytes: RandomBytes = os.urandom) -> dict[str, Tensor]:
        """See :meth:`Treatment.apply`; exactly one tensor of shape ``(samples, features)``, no row twice."""
        if len(tensors) != 1:
            raise ValueError(f"embeddings must be one tensor, whose rows are samples, got {len(tensors)}")
        if any(len(torch.unique(value, dim=0)) < len(value) for value in tensors.values()):
            raise ValueError("an embedding comes twice and would get two noises; set executor.bank_rows=distinct")
        return {
            name: with_noise(clip_rows(value.detach().double(), self.clip), self.sigma, random_bytes).to(value.dtype)
            for name, value in tensors.items()
        }


@dataclass(frozen=True)
class MinimumSupport(Treatment):
    """A class's row is shown when at least so many stand behind it; the others are uniform and say that they are hidden.

    Attributes:
        least: patients (or samples, as the method counts) behind a row; at least 2.
    """

    name: ClassVar[str] = "minimum_support"
    kinds: ClassVar[frozenset[ReleaseKind]] = frozenset({ReleaseKind.CLASS_STATISTICS})
    least: int = MIN_SUPPORT

    def __post_init__(self) -> None:
        if self.least < 2:
            raise ConfigurationError(f"least must be at least 2, got {self.least}: one patient's row is this patient's")

    def apply(self, tensors: State, random_bytes: RandomBytes = os.urandom) -> dict[str, Tensor]:
        """See :meth:`Treatment.apply`; exactly ``matrix`` and ``support``."""
        if tensors.keys() != {MATRIX, SUPPORT}:
            raise ValueError(f"class statistics must be {MATRIX} and {SUPPORT}, got {sorted(tensors)}")
        matrix, support = withhold_classes(tensors[MATRIX], tensors[SUPPORT], self.least)
        return {MATRIX: matrix, SUPPORT: support}


@dataclass(frozen=True)
class CurveSupport(MinimumSupport):
    """Ranges of a curve are merged until each count is zero or of so many patients; classes with fewer are left out."""

    kinds: ClassVar[frozenset[ReleaseKind]] = frozenset({ReleaseKind.CURVES})

    def apply(self, tensors: State, random_bytes: RandomBytes = os.urandom) -> dict[str, Tensor]:
        """See :meth:`Treatment.apply`; exactly ``counts``, see :mod:`grandrounds.evaluation.curves`."""
        if tensors.keys() != {COUNTS}:
            raise ValueError(f"curves must be {COUNTS}, got {sorted(tensors)}")
        counts = tensors[COUNTS].detach().cpu().numpy()
        rows = [str(row) for row in range(len(counts) - 1)]
        merged = coarser_curves(curves_from(counts, rows, least=1), self.least)
        return {COUNTS: torch.from_numpy(counts_of(merged, rows))}


@dataclass(frozen=True)
class Quantise(Treatment):
    """Soft labels are rounded to a grid and stay distributions; this is data minimisation, and no guarantee.

    Attributes:
        levels: the steps between 0 and 1, from 2 to 255.
    """

    name: ClassVar[str] = "quantise"
    kinds: ClassVar[frozenset[ReleaseKind]] = frozenset({ReleaseKind.SOFT_LABELS})
    levels: int

    def __post_init__(self) -> None:
        if not 2 <= self.levels <= 255:
            raise ConfigurationError(f"levels must be from 2 to 255, got {self.levels}")

    def apply(self, tensors: State, random_bytes: RandomBytes = os.urandom) -> dict[str, Tensor]:
        """See :meth:`Treatment.apply`; every tensor must hold distributions in its rows."""
        return {name: quantise_rows(value, self.levels, name) for name, value in tensors.items()}


@dataclass(frozen=True)
class Unmodified(Treatment):
    """The release leaves unchanged; nothing is guaranteed. Not for what needs a least number of patients."""

    name: ClassVar[str] = "as_it_is"
    kinds: ClassVar[frozenset[ReleaseKind]] = frozenset(ReleaseKind) - MinimumSupport.kinds - CurveSupport.kinds

    def apply(self, tensors: State, random_bytes: RandomBytes = os.urandom) -> dict[str, Tensor]:
        """Copies."""
        return {name: plain_copy(value) for name, value in tensors.items()}


@dataclass(frozen=True)
class Deny(Treatment):
    """The release does not leave."""

    name: ClassVar[str] = "deny"
    kinds: ClassVar[frozenset[ReleaseKind]] = frozenset(ReleaseKind)

    def apply(self, tensors: State, random_bytes: RandomBytes = os.urandom) -> dict[str, Tensor]:
        """Refuse.

        Raises:
            ValueError: always.
        """
        raise ValueError("a release that is denied has no treatment")


@dataclass(frozen=True)
class RecordLevel(Treatment):
    """The training itself was protected, image by image; what comes out of it alone needs no further noise.

    Attributes:
        min_noise_multiplier: what the training must have used at least.
    """

    name: ClassVar[str] = "record_level"
    kinds: ClassVar[frozenset[ReleaseKind]] = frozenset({*UPDATES, ReleaseKind.SOFT_LABELS})
    min_noise_multiplier: float

    def __post_init__(self) -> None:
        if not 0 < self.min_noise_multiplier < math.inf:
            raise ConfigurationError(f"min_noise_multiplier must be a positive number, got {self.min_noise_multiplier}")

    def spending(self, trained: Spending | None) -> Spending:
        """That of the training."""
        if trained is None or trained.mechanism is not Mechanism.DP_SGD:
            raise ValueError(
                "the training was not record-level private: set the executor's option, or use clip_and_noise"
            )
        if trained.sigma / trained.sensitivity < self.min_noise_multiplier * (1 - ROUNDING):
            raise ValueError(
                f"the training's noise multiplier is {trained.sigma / trained.sensitivity:.4g}, the policy needs "
                f"{self.min_noise_multiplier:g}"
            )
        return trained

    def apply(self, tensors: State, random_bytes: RandomBytes = os.urandom) -> dict[str, Tensor]:
        """Copies; an integer entry or a running statistic is refused: the training's noise did not reach it."""
        for name, value in tensors.items():
            if name.rpartition(".")[2] in RUNNING_STATISTICS:
                raise ValueError(f"{name!r} is a running statistic, which no noise has reached: use group norm")
            if not value.is_floating_point() and value.dtype != torch.uint8:
                raise ValueError(f"{name!r} is of {value.dtype}, which no noise has reached")
        return {name: plain_copy(value) for name, value in tensors.items()}


def plain_copy(value: Tensor) -> Tensor:
    """The same values and nothing else: no memory of the original travels along, as behind a view.

    Example:
        >>> plain_copy(torch.zeros(1000)[:1]).untyped_storage().nbytes()
        4
    """
    return value.detach().cpu().contiguous().clone(memory_format=torch.contiguous_format)
