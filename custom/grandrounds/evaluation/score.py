"""One score: its value, its interval, the independent cases that carry it, or the reason why there is none."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

MIN_CASES = 10
"""A score of fewer independent cases is marked: its interval covers most of [0, 1] (Wilson's of 9 of 9 is [0.70, 1])."""


class Score(NamedTuple):
    """A score; NaN where it is not known.

    Attributes:
        value: of the score.
        low: lower end of the 95 % interval.
        high: upper end.
        cases: independent cases that carry it, of a mean over classes or sites those of the rarest one; None where the
            number must not be shown or is not known.
        reason: why there is no value.
        of: what part a mean is over where it is not all, such as ``3 of 5 classes``: it then has another name.
    """

    value: float
    low: float
    high: float
    cases: int | None
    reason: str = ""
    of: str = ""

    @property
    def known(self) -> bool:
        """Whether there is a value."""
        return not math.isnan(self.value)

    @property
    def few(self) -> bool:
        """Whether it rests on fewer than ``MIN_CASES`` cases, which every table must mark."""
        return self.known and self.cases is not None and self.cases < MIN_CASES

    @property
    def enough(self) -> bool:
        """Whether it is known and rests on enough cases."""
        return self.known and not self.few

    def to_json(self) -> dict[str, Any]:
        """Plain values, null for what is not known; ``few``, ``reason`` and ``of`` only where they say something."""
        plain = {
            name: None if math.isnan(part) else round(part, 6)
            for name, part in zip(("value", "low", "high"), self[:3], strict=True)
        }
        said = {"few": self.few, "reason": self.reason, "of": self.of}
        return {**plain, "cases": self.cases, **{name: text for name, text in said.items() if text}}


def no_score(reason: str, cases: int | None = None) -> Score:
    """A score that is not known."""
    return Score(math.nan, math.nan, math.nan, cases, reason)


def named(name: str, score: Score) -> str:
    """The name of a score, which a mean over a part of the classes or sites does not share with that over all.

    Example:
        >>> named("balanced_accuracy", Score(0.6, 0.5, 0.7, 40, of="3 of 5 classes"))
        'balanced_accuracy_of_3_classes'
    """
    if not score.of:
        return name
    number, _, _, what = score.of.split()
    return f"{name}_of_{number}_{what}"
