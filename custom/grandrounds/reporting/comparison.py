"""Comparison of methods on the same sites or seeds, with paired differences and significance tests."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.tests import (
    MIN_BLOCKS,
    Anova,
    MethodsCompared,
    PairedDifference,
    Win,
    anova,
    bonferroni,
    compare_methods,
    paired_difference,
    wins,
)
from grandrounds.ordering import natural_sorted
from grandrounds.reporting.run import Run
from grandrounds.reporting.scores import RunScores

METRIC, AUROC = "balanced_accuracy", "auroc"
MIN_SEEDS = 3
NOT_COMPARED = ("seed", "run_name", "resume")
"""Options in which seeds of one method may differ."""


@dataclass(frozen=True)
class Difference:
    """A method less the reference: paired over the sites that both have, and relative to its mean in percent.

    The p-value is times the number of comparisons (Bonferroni); ``relative`` is NaN where the reference is zero.
    """

    paired: PairedDifference
    adjusted_p: float
    relative: float

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        found = {**self.paired._asdict(), "adjusted_p": self.adjusted_p, "relative_improvement_percent": self.relative}
        return {name: None if math.isnan(value) else round(value, 6) for name, value in found.items()}


@dataclass(frozen=True)
class Comparison:
    """Several methods in the blocks that all of them have.

    Attributes:
        metric: what is compared.
        reference: the method that the others are compared with.
        kind: what a block is: ``site``, or ``seed`` where only scores of all test images together are known.
        blocks: those that all compared methods have, sites with enough cases.
        values: the metric by method, in ``blocks``, of sites the mean over seeds.
        seeds: how many runs each method has.
        differences: of each other method to the reference, paired by block.
        over_blocks: analysis of variance with blocks; None where there are too few.
        over_seeds: analysis of variance of means over sites, seeds as repetitions; None where there are too few.
        wins: in how many blocks one was better than the other.
        left_out: methods without results in these blocks, which are in no comparison.
    """

    metric: str
    reference: str
    kind: str
    blocks: tuple[str, ...]
    values: Mapping[str, tuple[float, ...]]
    seeds: Mapping[str, int]
    differences: Mapping[str, Difference]
    over_blocks: Anova | None
    over_seeds: MethodsCompared | None
    wins: Mapping[tuple[str, str], Win]
    left_out: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "metric": self.metric,
            "reference": self.reference,
            "kind": self.kind,
            "blocks": list(self.blocks),
            "values": {method: [round(value, 6) for value in found] for method, found in self.values.items()},
            "seeds": dict(self.seeds),
            "differences": {method: found.to_json() for method, found in self.differences.items()},
            "anova_over_blocks": _plain(self.over_blocks),
            "anova_over_seeds": _seeds_plain(self.over_seeds),
            "wins": [{"first": a, "second": b, **win._asdict()} for (a, b), win in self.wins.items()],
            "left_out": list(self.left_out),
        }


def compare(
    methods: Mapping[str, Sequence[Run]], scores: Mapping[str, RunScores], reference: str, metric: str = METRIC
) -> Comparison | None:
    """Compare methods on the sites that they share, or by seed where no run has scores of single sites.

    A site counts where every run has at least ``MIN_CASES`` cases. A method that has none of the reference's sites (one
    trained on all images at one site, say), or not all of its seeds, is left out and named. ``scores`` are by name of run.

    Returns:
        None if no other method shares a site or seed with the reference.
    """
    found, kind = {m: [_by_site(scores[run.name], metric) for run in runs] for m, runs in methods.items()}, "site"
    if not any(of_run for runs in found.values() for of_run in runs):
        found, kind = {method: [_by_seed(runs, scores, metric)] for method, runs in methods.items()}, "seed"
    expected = set(found[reference][0])
    enough = expected if kind == "seed" else set()
    compared = {
        method: runs
        for method, runs in found.items()
        if all(set(of_run) & expected and enough <= set(of_run) for of_run in runs)
    }
    if reference not in compared or len(compared) < 2:
        return None
    shared = set.intersection(*(set(of_run) for runs in compared.values() for of_run in runs))
    if not shared:
        return None
    blocks = tuple(natural_sorted(shared))
    values = {
        method: tuple(fmean(of_run[block] for of_run in runs) for block in blocks) for method, runs in compared.items()
    }
    means = {m: [fmean(of_run[block] for block in blocks) for of_run in runs] for m, runs in compared.items()}
    others = [method for method in values if method != reference]
    return Comparison(
        metric=metric,
        reference=reference,
        kind=kind,
        blocks=blocks,
        values=values,
        seeds={method: len(methods[method]) for method in compared},
        differences={method: _difference(values[method], values[reference], len(others)) for method in others},
        over_blocks=anova(list(values.values()), blocks=True)
        if len(values) > 2 and len(blocks) >= MIN_BLOCKS
        else None,
        over_seeds=compare_methods(means) if min(len(runs) for runs in means.values()) >= MIN_SEEDS else None,
        wins=wins(values),
        left_out=tuple(method for method in found if method not in compared),
    )


def methods_of(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ in their seed alone, under one name.

    Returns:
        Runs by method; a method of one run has the run's name, one of several their names without the seed at the end.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_key(run), []).append(run)
    found: dict[str, list[Run]] = {}
    for members in groups.values():
        seeds = {run.seed for run in members}
        if len(members) == 1 or len(seeds) < len(members):
            found |= {run.name: [run] for run in members}
        else:
            name = re.sub(r"[\s_.-]*(seed)?[\s_.-]*\d+$", "", members[0].name) or members[0].name
            found[name if name not in found else members[0].name] = members
    return found


def require_one_vocabulary(runs: Sequence[Run]) -> None:
    """Check that all runs have the same classes.

    Raises:
        ConfigurationError: naming two runs whose classes differ, or are in another order.
    """
    first = runs[0]
    for run in runs[1:]:
        if run.classes != first.classes:
            raise ConfigurationError(
                f"{first.name} and {run.name} have different classes ({', '.join(first.classes)}; "
                f"{', '.join(run.classes)}), so no score of theirs can be compared; report on them one by one"
            )


def relative_improvement(value: float, reference: float) -> float:
    r"""Relative improvement over a reference, in percent: :math:`\mathrm{RI}(a|b) = 100 (a - b) / b`.

    Raises:
        ValueError: if the reference is not above zero.

    Example:
        >>> round(relative_improvement(0.747, 0.647), 3)
        15.456
    """
    if not reference > 0:
        raise ValueError(f"reference must be above 0, got {reference}")
    return 100 * (value - reference) / reference


def _by_site(scores: RunScores, metric: str) -> dict[str, float]:
    return {site: found.value for site, found in scores.by_site(metric).items() if found.enough}


def _by_seed(runs: Sequence[Run], scores: Mapping[str, RunScores], metric: str) -> dict[str, float]:
    reported = {f"seed {run.seed}": scores[run.name].reported.get(metric) for run in runs}
    return {seed: estimate.value for seed, estimate in reported.items() if estimate}


def _difference(values: Sequence[float], reference: Sequence[float], comparisons: int) -> Difference:
    paired = paired_difference(values, reference)
    mean = fmean(reference)
    relative = relative_improvement(fmean(values), mean) if mean > 0 else math.nan
    return Difference(paired, bonferroni(paired.p_value, comparisons), relative)


def _plain(found: Anova | None) -> dict[str, Any] | None:
    return {**found._asdict(), "statistic": _or_none(found.statistic)} if found else None


def _seeds_plain(found: MethodsCompared | None) -> dict[str, Any] | None:
    if found is None:
        return None
    pairs = [{"first": a, "second": b, "adjusted_p": _or_none(p)} for (a, b), p in found.pairs.items()]
    return {"statistic": _or_none(found.statistic), "p_value": _or_none(found.p_value), "pairs": pairs}


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _key(run: Run) -> str:
    shared = {name: value for name, value in run.configuration.items() if name not in NOT_COMPARED}
    return json.dumps([run.method, shared, dict(run.options), list(run.sites)], sort_keys=True, default=str)
