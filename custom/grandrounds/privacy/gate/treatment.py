"""Treatments: what is done to a release before it leaves a site, and what it costs.

A model update is clipped and gets noise. Class statistics are shown only with enough patients behind them. Soft labels must
stay distributions, so they are coarsened and never get noise. Embeddings are clipped row by row.

A treatment knows its cost without seeing the release: the cost is booked before the noise is drawn. Which treatments fit
which kind of release is in :mod:`grandrounds.privacy.gate.kinds`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from grandrounds.option_annotations import Range
from grandrounds.options import Options
from grandrounds.privacy.mechanisms.coarsening import quantise_rows
from grandrounds.protocol.spending import Spending, no_guarantee
from grandrounds.protocol.unit import Unit

State = Mapping[str, Tensor]
RunningStatistics = Literal["refuse", "average", "drop", "keep"]
MATRIX, SUPPORT = "matrix", "support"
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
