"""Scores: a value, its interval and the independent cases that carry it, or the reason why there is none; and sheets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from grandrounds.plain import to_plain

MIN_CASES = 10
"""A score of fewer independent cases is marked: its interval covers most of [0, 1] (Wilson's of 9 of 9 is [0.70, 1])."""
ALWAYS, CHANCE = "always ", "chance"
"""Names of references; before the most frequent class in the first."""
SHARES = "site shares, no image"
"""The reference that predicts the shares of classes among a site's labelled training images for each of its images."""


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

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Score:
        """The score that :meth:`to_json` gave; also :class:`LookupError`, :class:`TypeError` and :class:`ValueError`."""
        value, low, high = (
            math.nan if content[key] is None else float(content[key]) for key in ("value", "low", "high")
        )
        return cls(value, low, high, content["cases"], content.get("reason", ""), content.get("of", ""))


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


class WithinClass(NamedTuple):
    """The area of a class within sites.

    Attributes:
        score: with its interval; its cases are those with the class at the sites used.
        across: the area of the same images with the class against those without it of all sites.
        lost: cases with the class at sites without an image of the other kind; None where the number must not be shown.
        sites: used.
    """

    score: Score
    across: float
    lost: int | None
    sites: int


@dataclass(frozen=True, eq=False)
class ScoreSheet:
    """Scores of a record, without what must not be shown; a report reads them here, from a run or from a file.

    Attributes:
        images: how many; None where it must not be shown.
        cases: independent cases that they are of; None where it must not be shown or is not known.
        unit: what a case is.
        scores: by name, those over a part of the classes under a name of their own.
        classes: scores of each name of the vocabulary, in its order.
        confidence: calibration and risk of the probabilities, without intervals; empty where they are not known.
        references: the scores of models beside this one, of always predicting the most frequent class, and of guessing.
        shares: of each name of the vocabulary among the images, NaN where it is not known.
        missing: why there is no score of any other name.
        within: areas within sites, of the classes that have one.
    """

    images: int | None
    cases: int | None
    unit: str
    scores: Mapping[str, Score]
    classes: Mapping[str, Mapping[str, Score]]
    confidence: Mapping[str, float]
    references: Mapping[str, Mapping[str, float]]
    shares: Mapping[str, float] = field(default_factory=dict)
    missing: str = ""
    within: Mapping[str, WithinClass] = field(default_factory=dict)

    def score(self, name: str) -> Score:
        """A score over all classes, or the reason why there is none."""
        return self.scores.get(name, no_score(self.missing))

    def best(self, name: str) -> Score:
        """The score over all classes, else that over the classes that are shown, with its part, else the reason."""
        score = self.score(name)
        part = next((entry for key, entry in self.scores.items() if entry.of and key.startswith(f"{name}_of_")), score)
        return score if score.known else part

    @property
    def counted(self) -> bool:
        """Whether there are scores of single classes."""
        return any(score.known for scores in self.classes.values() for score in scores.values())

    @property
    def majority(self) -> str | None:
        """The most frequent class; None where it is not known."""
        return next((name.removeprefix(ALWAYS) for name in self.references if name.startswith(ALWAYS)), None)

    @property
    def always(self) -> Mapping[str, float]:
        """The scores of always predicting the most frequent class; empty where it is not known."""
        return self.references.get(f"{ALWAYS}{self.majority}", {})

    @property
    def models_beside(self) -> list[str]:
        """The names of the references that are models."""
        return [name for name in self.references if name not in (CHANCE, SHARES) and not name.startswith(ALWAYS)]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        rounded = {"confidence": _rounded(self.confidence), "shares": _rounded(self.shares)}
        return {
            **{name: to_plain(getattr(self, name)) for name in ("images", "cases", "unit", "scores", "classes")},
            "references": {name: _rounded(found) for name, found in self.references.items()},
            "within": {name: to_plain(one) for name, one in self.within.items()},
            **rounded,
        }


def _rounded(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: to_plain(round(value, 6)) for name, value in values.items()}
