"""The tables of scores, alike for a run and for a place that never took part: by group, by class, and at thresholds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from grandrounds.evaluation.score import Score, ScoreSheet
from grandrounds.reporting.format import CLASS_NAMES, CONFIDENCE_NAMES, MISSING, SCORE_NAMES, format_number
from grandrounds.reporting.parts import Cell, PageTable, estimate_cell

TABLE_SCORES = ("auc_macro", "balanced_accuracy", "accuracy", "f1_weighted", "f1_macro", "precision_weighted")
"""Scores over all classes; a table has those that the task defines."""
AT_THRESHOLD = ("sensitivity", "specificity", "precision")
LESIONS = {
    "ak": "actinic keratosis",
    "akiec": "actinic keratosis, Bowen's disease",
    "bcc": "basal cell carcinoma",
    "bkl": "benign keratosis",
    "df": "dermatofibroma",
    "mel": "melanoma",
    "nv": "nevus",
    "scc": "squamous cell carcinoma",
    "vasc": "vascular lesion",
}
"""What the classes of HAM10000 and the ISIC challenges stand for."""
Row = list[Cell | str]


class OperatingRow(NamedTuple):
    """A threshold, sensitivity and specificity on the images that it was fixed on, and its scores on test images."""

    name: str
    threshold: float
    sensitivity: float | None
    specificity: float | None
    test: Mapping[str, Score]


def groups_table(
    what: str, groups: Mapping[str, ScoreSheet], others: Mapping[str, Mapping[str, Score | float]], caption: str
) -> PageTable:
    """Scores of groups of images, a row each, with the constant answer that each group's model must exceed.

    Args:
        what: the groups are.
        groups: scores by name of the group.
        others: further rows of scores alone, such as means and references.
        caption: of the table.
    """
    sheets = groups.values()
    names = _known(TABLE_SCORES, [sheet.scores for sheet in sheets])
    known = _known(CONFIDENCE_NAMES, [sheet.confidence for sheet in sheets])
    constant = ["always: accuracy", "always: balanced"] if any(sheet.majority for sheet in sheets) else []
    rows: list[Row] = []
    for name, sheet in groups.items():
        leading = [name, count_cell(sheet.images), count_cell(sheet.cases), *(_always(sheet) if constant else [])]
        estimates = [estimate_cell(sheet.best(score)) for score in names]
        rows.append([*leading, *estimates, *(format_number(sheet.confidence.get(key)) for key in known)])
    for name, scores in others.items():
        cells = [score_cell(scores.get(score)) for score in names]
        rows.append([name, "", "", *[""] * len(constant), *cells, *[MISSING] * len(known)])
    titles = [*(SCORE_NAMES[name] for name in names), *(CONFIDENCE_NAMES[key] for key in known)]
    return PageTable([what, "images", "cases", *constant, *titles], rows, caption)


def class_titles(classes: Sequence[str]) -> dict[str, str]:
    """The classes as a reader sees them, by name; skin lesions with their full names, if all classes are some.

    Example:
        >>> class_titles(["mel", "nv"]), class_titles(["mel", "other"])
        ({'mel': 'mel (melanoma)', 'nv': 'nv (nevus)'}, {'mel': 'mel', 'other': 'other'})
    """
    lesions = all(name in LESIONS for name in classes)
    return {name: f"{name} ({LESIONS[name]})" if lesions else name for name in classes}


def class_table(noun: str, sheet: ScoreSheet, sites: Iterable[ScoreSheet], caption: str) -> PageTable:
    """Scores of each class, all images together; ``sites`` are those that the images are of."""
    known = _known(CLASS_NAMES, sheet.classes.values())
    of_sites, titles = list(sites), class_titles(list(sheet.classes))
    rows: list[Row] = []
    for name, scores in sheet.classes.items():
        at = sum(site.classes[name]["sensitivity"].known for site in of_sites)
        leading = [
            titles[name],
            count_cell(scores["sensitivity"].cases),
            str(at),
            format_number(sheet.shares.get(name)),
        ]
        rows.append([*leading, *(estimate_cell(scores[key]) if key in scores else MISSING for key in known)])
    return PageTable([noun, "cases", "sites", "share", *(CLASS_NAMES[key] for key in known)], rows, caption)


def operating_table(noun: str, points: Sequence[OperatingRow], caption: str) -> PageTable:
    """Thresholds that were fixed on other images, and what they do on test images."""
    known = _known(AT_THRESHOLD, [point.test for point in points])
    rows: list[Row] = [
        [
            point.name,
            f"{point.threshold:.3g}",
            format_number(point.sensitivity),
            format_number(point.specificity),
            *(estimate_cell(point.test[key]) for key in known),
        ]
        for point in points
    ]
    header = [noun, "threshold", "validation: sensitivity", "specificity", *(f"test: {key}" for key in known)]
    return PageTable(header, rows, caption)


def count_cell(count: int | None) -> str:
    """A number of images or cases, or a dash where it is not shown."""
    return MISSING if count is None else str(count)


def score_cell(score: Score | float | None) -> Cell | str:
    """A score, or a reference without an interval."""
    return estimate_cell(score) if isinstance(score, Score) else format_number(score)


def _known(names: Iterable[str], scores: Collection[Mapping[str, object]]) -> list[str]:
    """The scores that at least one group has."""
    return [name for name in names if any(name in group for group in scores)]


def _always(sheet: ScoreSheet) -> list[str]:
    if not sheet.always:
        return ["", MISSING]
    accuracy, balanced = sheet.always["accuracy"], sheet.always.get("balanced_accuracy")
    return [f"{accuracy:.2f} ({sheet.majority})", format_number(balanced)]
