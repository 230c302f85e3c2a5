"""Treatments that clip and add noise, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, get_args

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError
from grandrounds.option_annotations import ABOVE_ZERO
from grandrounds.options import Options, require_value
from grandrounds.privacy.gate.treatment import (
    MAX_ROWS,
    MULTIPLIER_TOLERANCE,
    NEAR,
    NOISE_SETTINGS,
    NOT_PRIVATE,
    RunningStatistics,
    State,
    Treatment,
    plain_copy,
)
from grandrounds.privacy.mechanisms.clipping import clip_rows, require_clip
from grandrounds.privacy.mechanisms.gaussian import GaussianMechanism, with_noise
from grandrounds.protocol.entries import is_running_statistic
from grandrounds.protocol.spending import SAMPLED, Mechanism, Spending, no_guarantee
from grandrounds.protocol.unit import Unit, update_sensitivity


@dataclass(frozen=True)
class ClipAndNoise(Treatment):
    """Clips an update as a whole and adds Gaussian noise to every entry.

    Attributes:
        clip: bound on the L2 norm over all entries.
        sigma: standard deviation of the noise.
        unit: whom the noise protects.
        running_statistics: of batch norm; ``average`` treats them like the rest, ``drop`` sends zeros, ``keep`` sends them
            unmodified, which has no finite epsilon, ``refuse`` denies an update that has some.

    Raises:
        ConfigurationError: if ``clip`` or ``sigma`` is not positive and finite.
    """

    name: ClassVar[str] = "clip_and_noise"
    optional: ClassVar[tuple[str, ...]] = (*NOISE_SETTINGS, "running_statistics")
    clip: float
    sigma: float
    unit: Unit = Unit.SITE
    running_statistics: RunningStatistics = "refuse"

    def __post_init__(self) -> None:
        self._mechanism()

    @classmethod
    def from_policy(cls, settings: Mapping[str, Any], unit: Unit) -> Treatment:
        """See :meth:`Treatment.from_policy`."""
        statistics = settings.get("running_statistics", "refuse")
        if statistics not in get_args(RunningStatistics):
            known = ", ".join(get_args(RunningStatistics))
            raise ConfigurationError(f"running_statistics must be one of {known}, got {statistics!r}")
        return cls(*_clip_and_sigma(settings, unit), unit, statistics)

    def spending(self, trained: Spending | None) -> Spending:
        """The Gaussian mechanism's, or that of no guarantee when running statistics are kept."""
        return no_guarantee(self.sigma) if self.running_statistics == "keep" else self._mechanism().spending()

    def apply(self, tensors: State) -> dict[str, Tensor]:
        """See :meth:`Treatment.apply`; an integer entry is refused, because it gets no noise."""
        for name, value in tensors.items():
            if not value.is_floating_point():
                raise ValueError(f"{name!r} is of {value.dtype}: it would get no noise, so it must not leave")
        statistics = [name for name in tensors if is_running_statistic(name)]
        if statistics and self.running_statistics == "refuse":
            raise ValueError(
                f"{min(statistics)!r} is a running statistic of the site's images, which the policy refuses; use group "
                "norm, or running_statistics drop"
            )
        apart = set(statistics) if self.running_statistics in ("drop", "keep") else set()
        noisy = self._mechanism().release({n: v for n, v in tensors.items() if n not in apart})
        untreated = plain_copy if self.running_statistics == "keep" else torch.zeros_like
        return {name: untreated(value).cpu() if name in apart else noisy[name] for name, value in tensors.items()}

    def _mechanism(self) -> GaussianMechanism:
        return GaussianMechanism(self.clip, self.sigma, self.unit)


@dataclass(frozen=True)
class ClipAndNoiseSamples(Treatment):
    """Clips each sample's embedding and adds Gaussian noise; the guarantee is for one record.

    It holds for the row with the encoder taken as given, and only if no image changes another's row (not under batch norm).

    Raises:
        ConfigurationError: if ``clip`` or ``sigma`` is not positive and finite.
    """

    name: ClassVar[str] = "clip_and_noise"
    optional: ClassVar[tuple[str, ...]] = NOISE_SETTINGS
    clip: float
    sigma: float

    def __post_init__(self) -> None:
        require_clip(self.clip)
        self.spending(None)

    @classmethod
    def from_policy(cls, settings: Mapping[str, Any], unit: Unit) -> Treatment:
        """See :meth:`Treatment.from_policy`."""
        _require_record(unit, "noise on embeddings")
        return cls(*_clip_and_sigma(settings, unit))

    def spending(self, trained: Spending | None) -> Spending:
        """One record's row can change by twice the bound; each record may be in one row only."""
        return Spending(Mechanism.GAUSSIAN, Unit.RECORD, 2.0 * self.clip, self.sigma)

    def apply(self, tensors: State) -> dict[str, Tensor]:
        """See :meth:`Treatment.apply`; exactly one tensor of shape ``(samples, features)``, no row twice."""
        if len(tensors) != 1:
            raise ValueError(f"embeddings must be one tensor, whose rows are samples, got {len(tensors)}")
        clipped = {name: clip_rows(value.detach().double(), self.clip) for name, value in tensors.items()}
        if any(_closest(value) < NEAR * self.clip for value in clipped.values()):
            raise ValueError("an embedding occurs twice and would get two noises; set executor.bank_rows=distinct")
        return {name: with_noise(value, self.sigma).to(tensors[name].dtype) for name, value in clipped.items()}


@dataclass(frozen=True)
class RecordLevel(Options, Treatment):
    """Releases what a training with DP-SGD produced; it needs no further noise."""

    name: ClassVar[str] = "record_level"
    required: ClassVar[tuple[str, ...]] = ("min_noise_multiplier",)
    min_noise_multiplier: Annotated[float, "minimum noise multiplier of the training", ABOVE_ZERO]

    @classmethod
    def from_policy(cls, settings: Mapping[str, Any], unit: Unit) -> Treatment:
        """See :meth:`Treatment.from_policy`."""
        if unit not in SAMPLED:
            raise ConfigurationError(f"record-level training protects a record or a patient, not {unit}")
        return cls(**settings)

    def spending(self, trained: Spending | None) -> Spending:
        """That of the training."""
        if trained is None or trained.mechanism is not Mechanism.DP_SGD:
            raise ValueError(NOT_PRIVATE)
        multiplier = trained.sigma / trained.sensitivity
        if multiplier < self.min_noise_multiplier * (1 - MULTIPLIER_TOLERANCE):
            raise ValueError(
                f"the training's noise multiplier is {multiplier:.4g}, the policy needs {self.min_noise_multiplier:g}"
            )
        return trained

    def apply(self, tensors: State) -> dict[str, Tensor]:
        """Copies; an integer entry or a running statistic is refused: DP-SGD adds no noise to it."""
        for name, value in tensors.items():
            if is_running_statistic(name):
                raise ValueError(f"{name!r} is a running statistic, which DP-SGD does not protect: use group norm")
            if not value.is_floating_point() and value.dtype != torch.uint8:
                raise ValueError(f"{name!r} is of {value.dtype}, which DP-SGD does not protect")
        return {name: plain_copy(value) for name, value in tensors.items()}


def _closest(rows: Tensor) -> float:
    """The smallest distance of two rows, shape ``(rows, features)``; infinite if there are fewer than two.

    Raises:
        ValueError: if there are too many to compare.
    """
    if len(rows) > MAX_ROWS:
        raise ValueError(f"embeddings of {len(rows)} images, at most {MAX_ROWS} can be compared with each other")
    return float(torch.pdist(rows).min()) if len(rows) > 1 else math.inf


def _clip_and_sigma(settings: Mapping[str, Any], unit: Unit) -> tuple[float, float]:
    """The bound and the noise's standard deviation of a policy's rule."""
    if "clip" not in settings:
        raise ConfigurationError("clip is missing: noise without clipping has no epsilon")
    if ("sigma" in settings) == ("noise_multiplier" in settings):
        raise ConfigurationError("exactly one of sigma and noise_multiplier is needed")
    for name in NOISE_SETTINGS:
        if name in settings:
            require_value(settings[name], float, ABOVE_ZERO, name)
    clip = float(settings["clip"])
    if "sigma" in settings:
        return clip, float(settings["sigma"])
    return clip, float(settings["noise_multiplier"]) * update_sensitivity(clip, unit)


def _require_record(unit: Unit, what: str) -> None:
    if unit is not Unit.RECORD:
        raise ConfigurationError(f"{what} protects a record, so unit must be record, got {unit}")
