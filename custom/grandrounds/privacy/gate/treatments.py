"""Treatments: what is done to a release before it leaves a site, and what it costs.

A model update is clipped and gets noise. Class statistics are shown only with enough patients behind them. Soft labels must
stay distributions, so they are coarsened and never get noise. Embeddings are clipped row by row.

A treatment knows its cost without seeing the release: the cost is booked before the noise is drawn. Which treatments fit
which kind of release is in :mod:`grandrounds.privacy.gate.kinds`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.clinical.image_moments import MOMENTS, rounded_moments
from grandrounds.evaluation.counts import IMAGES, PATIENTS, SiteCounts, check_counts, has_small_counts
from grandrounds.evaluation.curves.binned import CURVE_COUNTS, coarsen_curves, decode_counts, encode_counts
from grandrounds.options import ABOVE_ZERO, Min, Options, Range, require_value
from grandrounds.privacy.mechanisms.coarsening import quantise_rows, withhold_classes
from grandrounds.privacy.mechanisms.gaussian import GaussianMechanism, clip_rows, require_clip, with_noise
from grandrounds.protocol.messages import is_running_statistic
from grandrounds.protocol.spending import SAMPLED, Mechanism, Spending, Unit, no_guarantee, update_sensitivity

State = Mapping[str, Tensor]
RunningStatistics = Literal["refuse", "average", "drop", "keep"]
MATRIX, SUPPORT = "matrix", "support"
LABEL_MARGINS = "label_margins"
"""Unlabelled images by margin and class, of which follows how many to label; as a release and as its entry."""
DEFAULT_SUM_PATIENTS = 10
"""Minimum number of patients behind each class of sums of products where a policy sets none."""
MULTIPLIER_TOLERANCE = 1e-9
"""Of a noise multiplier that was multiplied by a bound and divided by it again."""
DEFAULT_MIN_PATIENTS = 5
"""Minimum number of patients behind a class where a policy sets none."""
NEAR = 1e-2
"""Distance over the clipping bound below which two embeddings count as one image's: averaging them would halve the noise."""
MAX_ROWS = 8192
NOT_PRIVATE = "the training was not record-level private: set executor.record_noise_multiplier, or use clip_and_noise"
NOISE_SETTINGS = ("clip", "sigma", "noise_multiplier")


class Treatment(ABC):
    """What is done to a release."""

    name: ClassVar[str]
    """In a policy."""
    required: ClassVar[tuple[str, ...]] = ()
    """Settings that a rule of a policy must have."""
    optional: ClassVar[tuple[str, ...]] = ()
    """Settings that a rule of a policy may have."""

    @classmethod
    def from_policy(cls, settings: Mapping[str, Any], unit: Unit) -> Treatment:
        """Build the treatment of a policy's rule from the values of ``required`` and ``optional``.

        Raises:
            ConfigurationError: naming the setting, what was expected and what came.
        """
        return cls(**settings)

    def spending(self, trained: Spending | None) -> Spending:
        """The cost of one release; only ``record_level`` uses how the training itself was protected, if it was.

        Raises:
            ValueError: if the release needs a protected training and had none.
        """
        return no_guarantee()

    def withholds(self, tensors: State) -> bool:
        """Whether a release stays at the site, while the answer that it is in may leave without it."""
        return False

    @abstractmethod
    def apply(self, tensors: State) -> dict[str, Tensor]:
        """Treat a release: new tensors on the CPU, of the same names, shapes and dtypes.

        Raises:
            ValueError: if the release does not have the form that this treatment needs; the entry is named.
        """


@dataclass(frozen=True)
class Quantise(Options, Treatment):
    """Rounds soft labels to a grid on which they stay distributions; data minimisation without a guarantee."""

    name: ClassVar[str] = "quantise"
    required: ClassVar[tuple[str, ...]] = ("levels",)
    levels: Annotated[int, "steps between 0 and 1", Range(2, 255)]

    def apply(self, tensors: State) -> dict[str, Tensor]:
        """See :meth:`Treatment.apply`; the rows of every tensor must be distributions."""
        return {name: quantise_rows(value, self.levels, name) for name, value in tensors.items()}


@dataclass(frozen=True)
class Unmodified(Treatment):
    """Releases copies; nothing is guaranteed."""

    name: ClassVar[str] = "unmodified"

    def apply(self, tensors: State) -> dict[str, Tensor]:
        """Copies."""
        return {name: plain_copy(value) for name, value in tensors.items()}


@dataclass(frozen=True)
class Masked(Options, Treatment):
    """Lets a release out as a part of a secure sum alone: the gate masks it, see :mod:`grandrounds.privacy.secure_sums`."""

    name: ClassVar[str] = "masked"
    optional: ClassVar[tuple[str, ...]] = ("minimum",)
    minimum: Annotated[int, "patients of a class below which a site leaves it out of the sum", Min(2)] = (
        DEFAULT_SUM_PATIENTS
    )

    def apply(self, tensors: State) -> dict[str, Tensor]:
        """Refuse: alone it does not leave.

        Raises:
            ValueError: always.
        """
        raise ValueError("it leaves in a secure sum only")

    def summed(self, tensors: State) -> State:
        """What is added up: without rows of a class of too few patients.

        Raises:
            ValueError: if sums are of such a class.
        """
        if MATRIX in tensors:
            return MinimumSupport(self.minimum).apply(tensors)
        return SumSupport(self.minimum).apply(tensors) if SUPPORT in tensors else tensors


@dataclass(frozen=True)
class Logits(Unmodified):
    """Releases soft labels that are logits and not distributions; nothing is guaranteed."""

    name: ClassVar[str] = "logits"


@dataclass(frozen=True)
class Deny(Treatment):
    """The release does not leave."""

    name: ClassVar[str] = "deny"

    def apply(self, tensors: State) -> dict[str, Tensor]:
        """Refuse.

        Raises:
            ValueError: always.
        """
        raise ValueError("a denied release has no treatment")


def plain_copy(value: Tensor) -> Tensor:
    """Copy the values alone: the memory behind a view is not copied along.

    Example:
        >>> plain_copy(torch.zeros(1000)[:1]).untyped_storage().nbytes()
        4
    """
    return value.detach().cpu().contiguous().clone(memory_format=torch.contiguous_format)


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
        if unit is not Unit.RECORD:
            raise ConfigurationError(f"noise on embeddings protects a record, so unit must be record, got {unit}")
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


OF_EACH_CLASS = ("class_counts", "targets", LABEL_MARGINS)
"""Entries of sums that have a value, or a column, for each class."""


@dataclass(frozen=True)
class MinimumSupport(Options, Treatment):
    """Shows a class's row only with enough patients behind it; the others are uniform and marked as withheld."""

    name: ClassVar[str] = "minimum_support"
    optional: ClassVar[tuple[str, ...]] = ("minimum",)
    # With one patient a row would be this patient's.
    minimum: Annotated[int, "patients (or samples, as the method counts) behind a row", Min(2)] = DEFAULT_MIN_PATIENTS

    def apply(self, tensors: State) -> dict[str, Tensor]:
        """See :meth:`Treatment.apply`; exactly ``matrix`` and ``support``."""
        if tensors.keys() != {MATRIX, SUPPORT}:
            raise ValueError(f"class statistics must be {MATRIX} and {SUPPORT}, got {sorted(tensors)}")
        matrix, support = withhold_classes(tensors[MATRIX], tensors[SUPPORT], self.minimum)
        return {MATRIX: matrix, SUPPORT: support}


@dataclass(frozen=True)
class SumSupport(MinimumSupport):
    """Lets counts and sums out only if none of their classes is of fewer patients than the minimum.

    One image of a class would be its features, which can be read from the sums of its class.
    """

    minimum: Annotated[int, "patients of each class that the sums are of", Min(2)] = DEFAULT_SUM_PATIENTS

    def apply(self, tensors: State) -> dict[str, Tensor]:
        """See :meth:`Treatment.apply`; ``support`` has the patients of each class."""
        if SUPPORT not in tensors:
            raise ValueError(f"sums must come with {SUPPORT}, got {sorted(tensors)}")
        support = tensors[SUPPORT]
        for counts, what in (
            (support, "a class"),
            (tensors.get(LABEL_MARGINS, support), f"a count of {LABEL_MARGINS}"),
        ):
            if bool(((counts > 0) & (counts < self.minimum)).any()):
                raise ValueError(f"{what} is of fewer than {self.minimum} patients")
        if any(bool(tensors[name][..., support == 0].any()) for name in OF_EACH_CLASS if name in tensors):
            raise ValueError("a class of no patients has images")
        return {name: plain_copy(value) for name, value in tensors.items()}


@dataclass(frozen=True)
class MomentSupport(MinimumSupport):
    """Rounds moments of images; of fewer patients than the minimum zeros leave. Of how many more they are stays."""

    minimum: Annotated[int, "patients whose training images the moments are of", Min(2)] = DEFAULT_SUM_PATIENTS

    def apply(self, tensors: State) -> dict[str, Tensor]:
        """See :meth:`Treatment.apply`; exactly ``moments`` and ``support``."""
        if tensors.keys() != {MOMENTS, SUPPORT}:
            raise ValueError(f"moments of images must be {MOMENTS} and {SUPPORT}, got {sorted(tensors)}")
        enough = int(tensors[SUPPORT]) >= self.minimum
        moments = torch.from_numpy(rounded_moments(tensors[MOMENTS].detach().cpu().numpy()))
        return {MOMENTS: moments * enough, SUPPORT: torch.tensor([self.minimum * enough])}


@dataclass(frozen=True)
class CurveSupport(MinimumSupport):
    """Merges bins of a curve until each count is zero or at least the minimum; classes with fewer are left out."""

    def apply(self, tensors: State) -> dict[str, Tensor]:
        """See :meth:`Treatment.apply`; exactly ``counts``, see :mod:`grandrounds.evaluation.curves.binned`."""
        if tensors.keys() != {CURVE_COUNTS}:
            raise ValueError(f"curves must be {CURVE_COUNTS}, got {sorted(tensors)}")
        counts = tensors[CURVE_COUNTS].detach().cpu().numpy()
        rows = [str(row) for row in range(len(counts) - 1)]
        merged = coarsen_curves(decode_counts(counts, rows, minimum=1), self.minimum)
        return {CURVE_COUNTS: torch.from_numpy(encode_counts(merged, rows))}


@dataclass(frozen=True)
class CountSupport(MinimumSupport):
    """Releases a whole table of counts unless one of them is of 1 to ``minimum - 1`` patients."""

    def withholds(self, tensors: State) -> bool:
        """See :meth:`Treatment.withholds`."""
        return has_small_counts(_table(tensors), self.minimum)

    def apply(self, tensors: State) -> dict[str, Tensor]:
        """See :meth:`Treatment.apply`; exactly ``images`` and ``patients``, see :mod:`grandrounds.evaluation.counts`."""
        table = _table(tensors)
        if has_small_counts(table, self.minimum):
            raise ValueError(f"a count is of fewer than {self.minimum} patients")
        return {IMAGES: torch.from_numpy(table.images), PATIENTS: torch.from_numpy(table.patients)}


def _table(tensors: State) -> SiteCounts:
    if tensors.keys() != {IMAGES, PATIENTS}:
        raise ValueError(f"counts must be {IMAGES} and {PATIENTS}, got {sorted(tensors)}")
    images, patients = (tensors[name].detach().cpu().numpy().copy() for name in (IMAGES, PATIENTS))
    return check_counts(images, patients, images.shape)
