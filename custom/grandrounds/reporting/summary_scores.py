"""The scores of a finished run's models, from its summary: by site, over sites, and of all images together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from grandrounds.evaluation.counts import counts_from_json, pooled_counts
from grandrounds.evaluation.estimates import ClassCounts, reference_scores, score_estimates
from grandrounds.evaluation.multi_label.estimates import CHANCE, MEANS, means_of_findings, pooled_findings
from grandrounds.protocol.problem import MULTI

NAMES: Mapping[str, str] = {"common": "selected", "own": "own"}
"""How tables call the models of a summary."""
SCORES = ("accuracy", "balanced_accuracy", "f1_weighted")
FINDING_SCORES = tuple(MEANS)
Scores = Mapping[str, float]


def tested_models(summary: Mapping[str, Any]) -> list[str]:
    """The models that were tested: ``common``, the one that the federation selected, and ``own``, each site's choice."""
    return [model for model in NAMES if any(f"{model}.n" in scores for scores in summary["test"].values())]


def is_multi(summary: Mapping[str, Any]) -> bool:
    """Whether a run's classes are findings."""
    return bool(summary.get("configuration", {}).get("problem", {}).get("task") == MULTI)


def scores_in(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """The scores of a run's tables."""
    return FINDING_SCORES if is_multi(summary) else SCORES


@dataclass(frozen=True)
class ModelScores:
    """Scores of a model on the test images.

    Attributes:
        sites: scores by site.
        images: number of test images by site.
        majority: accuracy of always predicting the most frequent class, by site; of all images under the empty name.
        mean: over sites.
        pooled: of all images together.
        references: of always predicting the most frequent class, and of guessing, for all images.
    """

    sites: Mapping[str, Scores]
    images: Mapping[str, int]
    majority: Mapping[str, float]
    mean: Scores
    pooled: Scores
    references: Mapping[str, Scores]

    @property
    def mean_majority(self) -> float | None:
        """Mean over sites of always predicting the site's most frequent class; None where that is not known of all."""
        known = [self.majority[site] for site in self.images if site in self.majority]
        return fmean(known) if known and len(known) == len(self.images) else None

    @classmethod
    def of(cls, summary: Mapping[str, Any], model: str) -> ModelScores:
        """From a run's summary; without the sites' counts there are only means, and the pooled accuracy."""
        tests = {site: scores for site, scores in summary["test"].items() if scores.get(f"{model}.n", 0) > 0}
        sizes = {site: int(scores[f"{model}.n"]) for site, scores in tests.items()}
        released = {site: found[model] for site, found in summary.get("counts", {}).items() if model in found}
        classes = summary.get("configuration", {}).get("problem", {}).get("classes", [])
        if is_multi(summary):
            return cls._of_findings(model, tests, sizes, released, len(classes))
        right = {site: scores.get(f"{model}.accuracy", math.nan) * sizes[site] for site, scores in tests.items()}

        def counted(names: Sequence[str]) -> ClassCounts:
            parts = [counts_from_json(released[site], len(classes)) for site in names]
            return pooled_counts(parts, sum(sizes[site] for site in names), sum(right[site] for site in names))

        sites: dict[str, Scores] = {}
        majority, references = {}, {}
        groups = {site: [site] for site in tests if site in released}
        if groups and groups.keys() == tests.keys():
            groups[""] = list(tests)
        for name, members in groups.items():
            counts = counted(members)
            found = score_estimates(counts)
            sites[name] = {key: found[key].value for key in SCORES if found[key].enough}
            references = reference_scores(counts, classes)
            frequent = next((reference for reference in references if reference.startswith("always ")), None)
            if frequent:
                majority[name] = references[frequent]["accuracy"]
        pooled = sites.pop("", {"accuracy": sum(right.values()) / sum(sizes.values())} if sizes else {})
        for site, scores in tests.items():
            sites.setdefault(site, {key: scores.get(f"{model}.{key}", math.nan) for key in SCORES})
        mean = {key: _mean([scores[key] for scores in sites.values() if key in scores]) for key in SCORES}
        return cls(sites, sizes, majority, mean, pooled, references if "" in groups else {})

    @classmethod
    def _of_findings(
        cls,
        model: str,
        tests: Mapping[str, Scores],
        sizes: Mapping[str, int],
        released: Mapping[str, Any],
        findings: int,
    ) -> ModelScores:
        """Scores of findings; areas of all images together are known to a report only, which has the predictions."""
        names = {name: f"{model}.{name}" for name in FINDING_SCORES}
        sites = {
            site: {name: scores[key] for name, key in names.items() if key in scores} for site, scores in tests.items()
        }
        mean = {key: _mean([scores[key] for scores in sites.values() if key in scores]) for key in FINDING_SCORES}
        pooled = {}
        if released and released.keys() == tests.keys():
            counts = [counts_from_json(released[site], findings, multi=True) for site in tests]
            pooled = {name: one.value for name, one in means_of_findings(pooled_findings(counts)).items()}
        return cls(sites, sizes, {}, mean, pooled, {"chance": CHANCE})


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan
