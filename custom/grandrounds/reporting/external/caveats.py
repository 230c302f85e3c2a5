"""What to distrust in the scores of a place, and why a model that sees the classes misses them there."""

from __future__ import annotations

from collections.abc import Mapping

from grandrounds.evaluation.clinical.results import Adapted, GroupResult
from grandrounds.evaluation.score import Score
from grandrounds.reporting.caveats import MISSED
from grandrounds.reporting.format import SCORE_NAMES, format_list, format_share
from grandrounds.reporting.parts import format_estimate

RANKS_WELL = 0.85
"""The AUROC from which on images are ranked well."""


def caveats_of_thresholds(classes: Mapping[str, Mapping[str, Score]], group: GroupResult | None) -> list[str]:
    """What is ranked well (AUROC of ``RANKS_WELL`` or more) but told apart badly (a side below ``MISSED``).

    Of a class the side is the sensitivity of the most probable class; of the positive group the sensitivity or the
    specificity at its operating point.
    """
    tests = [(name, found.get("auroc"), "sensitivity", found["sensitivity"]) for name, found in classes.items()]
    if group and group.operating:
        point, name = group.operating, f"{group.positive} at its operating point"
        tests += [(name, group.auroc, side, getattr(point, side)) for side in ("sensitivity", "specificity")]
    listed = [
        f"{name} (AUROC {area.value:.2f}, {side} {score.value:.2f})"
        for name, area, side, score in tests
        if area and area.enough and area.value >= RANKS_WELL and score.enough and score.value < MISSED
    ]
    return [f"Ranks well, thresholds do not transfer: {format_list(listed)}."] if listed else []


def caveats_of_group(group: GroupResult) -> list[str]:
    """What to distrust in the scores of the positive group."""
    found = []
    if group.auroc and group.auroc.low <= 0.5:
        area = format_estimate(group.auroc)
        found.append(f"Does not separate {group.positive} from the others better than chance (AUROC {area}).")
    point = group.operating
    if point and point.sensitivity.value < MISSED:
        found.append(
            f"At its operating point it misses {format_share(1 - point.sensitivity.value)} of {group.positive}."
        )
    if point and point.specificity.value < MISSED:
        called = format_share(1 - point.specificity.value)
        found.append(f"At its operating point it calls {called} of the others {group.positive}.")
    return found


def caveats_of_adaptation(adapted: Adapted, metric: str) -> list[str]:
    """Whether the adapted model is no better than the model as it is."""
    before, after = adapted.before.best(metric), adapted.after.best(metric)
    if not after.value <= before.value:
        return []
    beside = f"{SCORE_NAMES[metric]} {after.value:.2f} against {before.value:.2f}"
    return [f"Adapting made the model no better ({beside}): use it as it is."]
