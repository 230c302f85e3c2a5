"""How far the images of a place are from the training images, before a label is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.clinical.image_moments import evenly_spaced, least_deviations, moments_of
from grandrounds.reporting.format import format_list

FAR = 2.0
"""Deviations of the training images from which on many images are called unlike them; of n images 1 + 1 / sqrt(n) times."""
_OLD = "the run's record has no moments of them; it is of an earlier version, or has not been tested"


@dataclass(frozen=True)
class FigureShift:
    """A figure of a place's images: its mean here, mean and deviation in training, and the difference in deviations."""

    name: str
    here: float
    training: float
    deviation: float
    deviations: float

    @property
    def shown(self) -> tuple[str, str]:
        """The means here and in training, as text; sizes in pixels."""
        here, there = (f"{2**one:.0f}" if self.name == "size" else f"{one:.3g}" for one in (self.here, self.training))
        return here, there

    @property
    def in_words(self) -> str:
        """The means and their difference."""
        return f"{self.name} {' against '.join(self.shown)} ({self.deviations:+.1f} deviations)"


@dataclass(frozen=True)
class Appearance:
    """The figures of a place's images beside those of the training images, or why these are unavailable.

    Attributes:
        figures: none where they are unavailable.
        unavailable: the reason.
        far: deviations from which on the images are unlike.
    """

    figures: tuple[FigureShift, ...] = ()
    unavailable: str = ""
    far: float = FAR

    @property
    def unlike(self) -> str:
        """In which figures the images are unlike the training images, the farthest first; empty if in none."""
        ordered = sorted(self.figures, key=lambda one: -abs(one.deviations))
        far = format_list([figure.in_words for figure in ordered if abs(figure.deviations) >= self.far])
        return f"The images are unlike the training images: {far}." if far else ""

    @property
    def finding(self) -> str:
        """In a sentence."""
        if self.unavailable:
            return f"Whether the images are like the training images is unavailable: {self.unavailable}."
        largest = max(self.figures, key=lambda figure: abs(figure.deviations))
        return self.unlike or f"The images are like the training images; the largest difference is {largest.in_words}."


def appearance_of(
    training: Mapping[str, Any], images: Iterable[tuple[NDArray[np.uint8], Sequence[Sequence[int]]]]
) -> Appearance:
    """Compare the images of a place with the training images of a run.

    Args:
        training: the entry of the run's record, see
            :func:`~grandrounds.evaluation.clinical.image_moments.training_moments`.
        images: of the place, in sets: as a network takes them, shape ``(n, side, side, channels)``, and height and width of
            each before it was resized.
    """
    figures: Mapping[str, tuple[float, float]] = training.get("figures", {})
    if not figures:
        return Appearance(unavailable=training.get("unavailable", _OLD))
    moments = [(len(one), moments_of(one, shapes, evenly_spaced(np.arange(len(one))))[0]) for one, shapes in images]
    here = np.average([mean for _, mean in moments], axis=0, weights=[count for count, _ in moments])
    least = least_deviations(1 if "brightness" in figures else 3)
    shifts = []
    for (name, (mean, deviation)), value in zip(figures.items(), here.round(4).tolist(), strict=True):
        unit = max(deviation, least[name])
        shifts.append(FigureShift(name, value, mean, unit, round((value - mean) / unit, 2)))
    count = sum(images for images, _ in moments)
    return Appearance(tuple(shifts), far=round(FAR * (1 + count**-0.5), 2))
