"""Treatments of counts, sums and moments: what is of too few patients does not leave a site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from grandrounds.evaluation.clinical.image_moments import MOMENTS, rounded_moments
from grandrounds.evaluation.counts import IMAGES, PATIENTS, SiteCounts, check_counts, has_small_counts
from grandrounds.evaluation.curves.binned import coarsen_curves
from grandrounds.evaluation.curves.files import CURVE_COUNTS, decode_counts, encode_counts
from grandrounds.option_annotations import Min
from grandrounds.options import Options
from grandrounds.privacy.gate.treatment import (
    DEFAULT_MIN_PATIENTS,
    DEFAULT_SUM_PATIENTS,
    MATRIX,
    SUPPORT,
    State,
    Treatment,
    plain_copy,
)
from grandrounds.privacy.mechanisms.coarsening import withhold_classes

OF_EACH_CLASS = ("class_counts", "targets")
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
        if bool(((support > 0) & (support < self.minimum)).any()):
            raise ValueError(f"a class is of fewer than {self.minimum} patients")
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
    """Lets a table of counts out whole, if none of them is of 1 to ``minimum - 1`` patients; else it stays."""

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
