"""The section of a report on a place that never took part: tables and figures from the result of its evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from grandrounds.evaluation.clinical.suppression import count_text
from grandrounds.evaluation.curves import CurveCounts
from grandrounds.evaluation.score import Score, no_score
from grandrounds.plotting import Drawing
from grandrounds.reporting.details import FINDING_SCORES
from grandrounds.reporting.figures.external import calibration_figure, decision_figure, external_roc_figure
from grandrounds.reporting.figures.runs import drawing_of
from grandrounds.reporting.format import (
    CLASS_NAMES,
    MISSING,
    SCORE_NAMES,
    Cell,
    PageFigure,
    Table,
    estimate_cell,
    format_estimate,
    format_list,
    format_number,
)

SCORES = ("accuracy", "balanced_accuracy", "f1_weighted", "f1_macro")
CALIBRATION_NAMES = {
    "slope": "calibration slope (1 is calibrated)",
    "intercept": "calibration intercept (0 is calibrated)",
    "ece": "expected calibration error",
    "brier": "Brier score",
}


class ExternalSection(NamedTuple):
    """One place: its name, a line of facts, caveats, tables and figures."""

    name: str
    note: str
    caveats: Sequence[str]
    tables: Sequence[Table]
    figures: Sequence[PageFigure]


def external_section(result: Mapping[str, Any], figures: Sequence[PageFigure]) -> ExternalSection:
    """The section of one place."""
    digests = ", ".join(f"{name} {digest[:12]}" for name, digest in result["sha256"].items())
    note = (
        f"Model of the run {result['run']} ({result['method']}), tested on {result['date'][:10]} with Grand Rounds "
        f"{result['version']}. SHA-256: {digests}. Command: {result['command']}"
    )
    return ExternalSection(result["place"], note, result["caveats"], tables_of(result), figures)


def tables_of(result: Mapping[str, Any]) -> list[Table]:
    """All tables of one place."""
    group = result["group"]
    found: list[Table | None] = [_images_table(result), _score_table(result), _class_table(result)]
    if group:
        found += [_group_table(group, result["minimum"]), _recalibration_table(group, result["minimum"])]
        found.append(_subgroup_table(result))
    return [table for table in found if table]


def drawings_of(result: Mapping[str, Any]) -> list[Drawing]:
    """ROC curve, reliability and net benefit of the positive group, as far as there are enough cases."""
    group = result["group"]
    if not group:
        return []
    found: list[Drawing] = []
    name, fixed = group["positive"], group["operating"]
    if group["roc"]:
        auroc, point = _estimate(group["auroc"]), _operating(group)
        area = format_estimate(auroc)
        found += drawing_of(
            "roc",
            external_roc_figure(_counts(group["roc"]), point),
            f"ROC curve of {name}: area {area}{_phrase(group)}",
            f"{name} against all other classes: area {area}. {_against_chance(auroc)} The cross is the operating point, "
            "fixed on the training sites' validation images."
            if fixed
            else f"{name} against all other classes: area {area}. {_against_chance(auroc)}",
        )
    if group["reliability"]:
        slope, intercept = (_estimate(group["calibration"][key]) for key in ("slope", "intercept"))
        finding = _calibration_finding(slope, intercept)
        found += drawing_of(
            "reliability",
            calibration_figure(_counts(group["reliability"]), name),
            f"Reliability of the probability of {name}: slope {format_estimate(slope)}, intercept "
            f"{format_estimate(intercept)}",
            f"{finding} On the dotted line risks are as often right as they say.",
        )
    if group["decision"]:
        found += drawing_of(
            "net_benefit",
            decision_figure(group["decision"], name),
            f"Net benefit of calling {name}. {_benefit(group['decision'])}",
            f"{_benefit(group['decision'])} A threshold of t weighs one false alarm as t / (1 - t) missed cases, at the "
            f"prevalence of this place ({group['prevalence']:.1%}).",
        )
    return found


def _images_table(result: Mapping[str, Any]) -> Table:
    minimum = result["minimum"]
    total = result["images"]
    shown = [
        [name, count_text(count, minimum), f"{count / total:.1%}" if count is not None and total else MISSING]
        for name, count in result["classes"].items()
    ]
    counted, cases = (_total(result[key], minimum) for key in ("images", "cases"))
    of_cases = "" if result["case"] == "image" else f" of {cases} cases ({result['case']})"
    unreadable = f"; {result['unreadable']} cannot be read and are left out" if result["unreadable"] else ""
    caption = f"{result['place']}: {counted} test images{of_cases} by class{unreadable}"
    return Table([_unit(result), "images", "prevalence"], shown, caption)


def _score_table(result: Mapping[str, Any]) -> Table:
    pooled = result["scores"]["pooled"]
    scores = FINDING_SCORES if result["labels"] == "findings" else SCORES
    cells: list[Cell | str] = [_cell(pooled["scores"].get(name), result["minimum"]) for name in scores]
    ece: list[Cell | str] = [format_number(pooled["confidence"].get("ece"))]
    rows: list[Sequence[Cell | str]] = [["the model", *cells, *ece]]
    rows += [
        [f"site {name}", *(_cell(group["scores"].get(key), result["minimum"]) for key in scores), MISSING]
        for name, group in result["scores"]["sites"].items()
        if len(result["scores"]["sites"]) > 1
    ]
    for name, found in pooled["references"].items():
        rows.append([name, *(format_number(found.get(key)) for key in scores), MISSING])
    header = [result["place"], *(SCORE_NAMES[name] for name in scores), "ECE"]
    together = {"class": "all classes", "group": "all groups", "finding": "all findings"}[_unit(result)]
    return Table(header, rows, f"Scores of {together} together, with 95 % intervals, and those of a constant answer")


def _class_table(result: Mapping[str, Any]) -> Table:
    classes = result["scores"]["pooled"]["classes"]
    keys = [key for key in CLASS_NAMES if any(key in found for found in classes.values())]
    rows: list[Sequence[Cell | str]] = [
        [name, *(_cell(found[key], result["minimum"]) if key in found else MISSING for key in keys)]
        for name, found in classes.items()
    ]
    caption = f"Each {_unit(result)} against all others, with 95 % intervals"
    return Table([_unit(result), *(CLASS_NAMES[key] for key in keys)], rows, caption)


def _group_table(group: Mapping[str, Any], minimum: int) -> Table:
    images = group["images"]
    rows: list[Sequence[Cell | str]] = [
        ["images, positive and other", f"{count_text(images['positive'])} and {count_text(images['other'])}"],
        ["AUROC", _cell(group["auroc"], minimum)],
    ]
    operating = group["operating"]
    if operating:
        fixed = operating["fixed"]
        there = (
            f"; there sensitivity {fixed['sensitivity']:.2f}, specificity {fixed['specificity']:.2f}"
            if fixed["sensitivity"] is not None
            else ""
        )
        rows.append([f"threshold, from {fixed['source']}{there}", format_number(fixed["threshold"], 3)])
        rows += [[name, _cell(operating[name], minimum)] for name in ("sensitivity", "specificity")]
        for number, entry in enumerate(operating["at_prevalence"]):
            own = " (this place)" if number == 0 else ""
            rows += [
                [f"{label} at a prevalence of {entry['prevalence']:.1%}{own}", _cell(entry[key], minimum)]
                for key, label in (("ppv", "positive predictive value"), ("npv", "negative predictive value"))
            ]
    if group["calibration"]:
        rows += [[label, _cell(group["calibration"][key], minimum)] for key, label in CALIBRATION_NAMES.items()]
    members = f" ({', '.join(group['classes'])})" if group["classes"] != [group["positive"]] else ""
    return Table(["", "value"], rows, f"Positive group {group['positive']}{members} against all others")


def _recalibration_table(group: Mapping[str, Any], minimum: int) -> Table | None:
    found = group["recalibration"]
    if not found:
        return None
    rows: list[Sequence[Cell | str]] = [
        [label, *(_cell(found[when][key], minimum) for when in ("before", "after"))]
        for key, label in CALIBRATION_NAMES.items()
    ]
    caption = (
        f"Recalibration fitted on {found['share']:.0%} of the cases drawn at random ({found['fitted_images']} images): "
        f"intercept {found['intercept']:.2f}, temperature {found['temperature']:.2f}; the columns are of the other "
        f"{found['tested_images']} images. AUROC does not change"
    )
    return Table([group["positive"], "before", "after"], rows, caption)


def _subgroup_table(result: Mapping[str, Any]) -> Table | None:
    minimum = result["minimum"]
    rows: list[Sequence[Cell | str]] = [
        [
            entry["column"],
            entry["value"],
            count_text(entry["positive"], minimum),
            count_text(entry["other"], minimum),
            *(_cell(entry[key], minimum) for key in ("auroc", "sensitivity", "specificity")),
        ]
        for entry in result["subgroups"]
    ]
    if not rows:
        return None
    header = ["column", "subgroup", "positive", "other", "AUROC", "sensitivity", "specificity"]
    caption = (
        f"Subgroups, {result['group']['positive']} against all others. There are {len(rows)} of them and intervals are not "
        "adjusted: a difference between two is a question, not a finding"
    )
    return Table(header, rows, caption, text_columns=2)


def _total(count: int | None, minimum: int) -> str:
    return f"fewer than {minimum}" if count is None else str(count)


def _unit(result: Mapping[str, Any]) -> str:
    return {"groups": "group", "findings": "finding"}.get(result["labels"], "class")


def _estimate(entry: Mapping[str, Any] | None) -> Score:
    if entry is None:
        return no_score("")
    value, low, high = (math.nan if entry[key] is None else float(entry[key]) for key in ("value", "low", "high"))
    return Score(value, low, high, entry["cases"], entry.get("reason", ""), entry.get("of", ""))


def _cell(entry: Mapping[str, Any] | None, minimum: int) -> Cell | str:
    """A score as it was written; one whose number of cases is hidden has a value if there are enough of them."""
    if entry is None:
        return MISSING
    if entry["cases"] is None and entry["value"] is None and not entry.get("reason"):
        return Cell(f"too few (under {minimum})", missing=True)
    return estimate_cell(_estimate(entry))


def _counts(entry: Mapping[str, Sequence[float]]) -> CurveCounts:
    return CurveCounts(*(np.array(entry[name]) for name in ("edges", "positives", "negatives")))


def _operating(group: Mapping[str, Any]) -> tuple[float, float] | None:
    """Specificity and sensitivity at the operating point, where both are known."""
    if not group["operating"]:
        return None
    specificity, sensitivity = (_estimate(group["operating"][key]) for key in ("specificity", "sensitivity"))
    known = specificity.enough and sensitivity.enough
    return (specificity.value, sensitivity.value) if known else None


def _phrase(group: Mapping[str, Any]) -> str:
    point = _operating(group)
    return f"; at the operating point sensitivity {point[1]:.2f}, specificity {point[0]:.2f}" if point else ""


def _against_chance(auroc: Score) -> str:
    if not auroc.low > 0.5:
        return "The interval includes 0.5: it is not shown that the model is better than chance here."
    return "The interval is above 0.5, the area of chance."


def _calibration_finding(slope: Score, intercept: Score) -> str:
    parts = []
    if slope.high < 1:
        parts.append("Risks are too extreme (slope below 1).")
    elif slope.low > 1:
        parts.append("Risks are too moderate (slope above 1).")
    if intercept.high < 0:
        parts.append("Risks are too high on average (intercept below 0).")
    elif intercept.low > 0:
        parts.append("Risks are too low on average (intercept above 0).")
    return " ".join(parts) or "No miscalibration is shown: the intervals of slope and intercept include 1 and 0."


def _benefit(decision: Mapping[str, Sequence[float]]) -> str:
    columns = (decision[name] for name in ("thresholds", "low", "treat_all"))
    useful = [f"{t:.0%}" for t, low, everybody in zip(*columns, strict=True) if low > max(everybody, 0) + 1e-12]
    if not useful:
        return "At no threshold is the model's interval above both calling all images positive and calling none."
    return f"At thresholds of {format_list(useful)} the model's interval is above calling all images positive, or none."
