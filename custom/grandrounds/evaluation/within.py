r"""The area under the ROC curve within sites: how well a model orders the images of the same hospital.

Pooled over sites, an area also counts pairs of images of different sites, so that a model which knows the site alone has
more than one half where the sites' shares of a class differ. Within sites only pairs of one site count. A site with cases of
both kinds adds :math:`n_+`, :math:`n_+ A` and :math:`n_+^2 \operatorname{var}(A)`, :math:`n_+` its cases (patients, lesions)
with the class and :math:`A` its area (of images). Sums over sites, opened or not, give the mean and its variance:

.. math:: \bar A = \frac{\sum n_+ A}{\sum n_+}, \qquad
    \operatorname{var}(\bar A) = \frac{\sum n_+^2 \operatorname{var}(A)}{(\sum n_+)^2}

The weights are those of a stratified analysis by positive cases; the variance of a site is DeLong's by case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.evaluation.auc import auc
from grandrounds.evaluation.intervals import Array, Interval, area_interval, combined
from grandrounds.evaluation.score import MIN_CASES, Score, WithinClass, no_score
from grandrounds.evaluation.score_sums import AREA_COLUMNS
from grandrounds.evaluation.tables_of_cases import within_sums

if TYPE_CHECKING:
    from grandrounds.evaluation.bootstrap import Cases
    from grandrounds.evaluation.score import ScoreSheet

CONFOUNDED = 0.02
"""A larger difference between the pooled area and that within sites is named as a sign of confounding."""
WITHIN, ACROSS = "auc_within", "auc_across"
"""Names of the two scores: the mean over classes within sites, and pooled over sites for the same classes and positives."""
NO_PAIRS = f"no class has {MIN_CASES} cases at sites with images of both kinds"


@dataclass(frozen=True, eq=False)
class WithinSites:
    """What areas within sites are computed from.

    Attributes:
        sums: over sites, of ``AREA_COLUMNS``, shape ``(names, 5)``.
        across: of each name the area of the same images with it against those without it of all sites, shape ``(names,)``.
        sites: with images.
    """

    sums: Array
    across: Array
    sites: int

    def classes(self, names: Sequence[str], hidden: Sequence[bool] = ()) -> dict[str, WithinClass]:
        """The names of the vocabulary with ten cases in use that are not hidden."""
        known = {}
        for name, hides, row, across in zip(
            names, hidden or [False] * len(names), self.sums.tolist(), self.across.tolist(), strict=True
        ):
            positives, weighted, variance, sites, lost = row
            if hides or round(positives) < MIN_CASES:
                continue
            area = min(max(weighted / positives, 0.0), 1.0)
            score = Score(*area_interval(area, max(variance, 0.0) / positives**2, positives), round(positives))
            known[name] = WithinClass(score, across, round(lost), round(sites))
        return known

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        across = [None if math.isnan(value) else value for value in self.across.tolist()]
        return {"sums": self.sums.tolist(), "across": across, "sites": self.sites}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], names: int) -> WithinSites:
        """What :meth:`to_json` gave.

        Raises:
            ValueError: if it is of another vocabulary.
        """
        across = np.array([math.nan if value is None else value for value in content["across"]], np.float64)
        sums = np.array(content["sums"], np.float64)
        if sums.shape != (names, len(AREA_COLUMNS)) or across.shape != (names,):
            raise ValueError(f"areas within sites must be of {names} classes, got {sums.shape} and {across.shape}")
        return cls(sums, across, int(content["sites"]))


def within_sites(sites: Sequence[Sequence[Cases]]) -> WithinSites:
    """Areas within sites from the predictions of each, for each question of the task."""
    known = [questions for questions in sites if any(len(cases.labels) for cases in questions)]
    across = [
        _across([questions[number] for questions in known], row)
        for number, cases in enumerate(known[0])
        for row in cases.rows
    ]
    return WithinSites(np.sum([within_sums(questions) for questions in known], axis=0), np.array(across), len(known))


def _across(sites: Sequence[Cases], row: int) -> float:
    positive = np.concatenate([cases.labels == row for cases in sites])
    scores = np.concatenate([cases.probabilities[:, row] for cases in sites if cases.probabilities is not None])
    used = np.concatenate([np.full(len(cases.labels), bool((cases.labels != row).any())) for cases in sites])
    kept = used | ~positive
    return auc(positive[kept], scores[kept])


def macro_within(classes: Mapping[str, WithinClass], of: int) -> dict[str, Score]:
    """The mean over the classes that have an area, within sites and across them; of fewer than all it says of how many.

    The classes' correlation is not known from sums, so they count as equal: the interval is not too narrow.
    """
    if not classes:
        return dict.fromkeys((WITHIN, ACROSS), no_score(NO_PAIRS))
    part = f"{len(classes)} of {of} classes" if len(classes) < of else ""
    scores = [one.score for one in classes.values()]
    values, low, high = (np.array(ends) for ends in zip(*(score[:3] for score in scores), strict=True))
    mean = combined(values, Interval(low, high), np.ones(len(values)), np.ones((len(values), len(values))))
    cases = min(score.cases or 0 for score in scores)
    across = float(np.mean([one.across for one in classes.values()]))
    return {WITHIN: Score(*mean, cases, of=part), ACROSS: Score(across, math.nan, math.nan, cases, of=part)}


def confounding_of(sheet: ScoreSheet) -> str:
    """The sentence of :func:`confounding` on a sheet's scores."""
    return confounding(sheet.best(WITHIN), sheet.best(ACROSS))


def confounding(within: Score, across: Score) -> str:
    """A sentence on the difference of two scores of :func:`macro_within`; empty where they are not known.

    Example:
        >>> confounding(Score(0.845, 0.8, 0.9, 40), Score(0.895, 0.8, 0.9, 40))
        'AUROC 0.845 within sites, 0.895 pooled: 0.050 of it is knowing the site, a sign of confounding'
    """
    if not (within.known and across.known):
        return ""
    gap, part = across.value - within.value, f" over {within.of}" if within.of else ""
    sentence = f"AUROC {within.value:.3f} within sites, {across.value:.3f} pooled{part}"
    return f"{sentence}: {gap:.3f} of it is knowing the site, a sign of confounding" if gap > CONFOUNDED else sentence
