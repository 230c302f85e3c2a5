"""Scores of a trained model as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

PLACE_COLUMNS: Mapping[str, str] = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced\nacc.",
    "precision_weighted": "weighted\nprecision",
    "recall_weighted": "weighted\nrecall",
    "f1_weighted": "weighted\nF1",
    "ece": "ECE",
    "mce": "MCE",
    "risk": "risk",
    "aurc": "AURC",
    "coverage_at_risk_0.1": "coverage at\nrisk 0.1",
}
CLASS_COLUMNS: Mapping[str, str] = {
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
    "auroc": "AUROC",
    "average_precision": "average\nprecision",
    "auroc_hard_label": "AUROC,\nhard labels",
    "auprc_hard_label": "AUPRC,\nhard labels",
}
READINGS: Mapping[str, str] = {"argmax": "group of the most probable class", "summed": "most probable group"}


def place_table(report: Mapping[str, Any]) -> Table:
    """Scores of each place, their mean, and those of all images together.

    Args:
        report: what :func:`grandrounds.evaluation.report.report` returns.
    """
    unit = "groups of classes" if report["labels"] == "groups" else "classes"
    table = _table("site", f"test images, {unit}", ("images", *PLACE_COLUMNS.values()))
    for place, scores in report["places"].items():
        _add(table, place, scores, PLACE_COLUMNS)
    if len(report["places"]) > 1:
        table.add_section()
        _add(table, "mean", {**report["mean"], "n": ""}, PLACE_COLUMNS)
        _add(table, "pooled", report["pooled"], PLACE_COLUMNS)
    return table


def class_table(classes: Mapping[str, Any]) -> Table:
    """Scores of each class, over all images; with several sites, the mean over those that have the class as well.

    Args:
        classes: the entry ``classes`` of a report.
    """
    several = any(entry["places"] > 1 for entry in classes.values())
    table = _table("class", "classes, each against all others", ("images", *CLASS_COLUMNS.values()))
    for name, entry in classes.items():
        _add(table, f"{name}, pooled" if several else name, entry["pooled"], CLASS_COLUMNS)
    if several:
        table.add_section()
        for name, entry in classes.items():
            _add(table, f"{name}, mean of {entry['places']}", {**entry["mean"], "n": ""}, CLASS_COLUMNS)
    return table


def group_table(groups: Mapping[str, Any]) -> Table:
    """Scores of each group over all images, in both readings.

    Args:
        groups: the entry ``groups`` of a report.
    """
    columns = {name: CLASS_COLUMNS[name] for name in ("precision", "recall", "f1")}
    table = _table("reading", "groups of classes, all sites together", ("group", "images", *columns.values()))
    for reading, label in READINGS.items():
        for group, scores in groups[reading].items():
            table.add_row(label, Text(group), str(scores["n"]), *(_number(scores[name]) for name in columns))
        table.add_section()
    return table


def _table(first: str, title: str, columns: tuple[str, ...]) -> Table:
    table = Table(first, title=title, title_justify="left")
    for label in columns:
        table.add_column(label, justify="left" if label == "group" else "right")
    return table


def _add(table: Table, name: str, scores: Mapping[str, Any], columns: Mapping[str, str]) -> None:
    table.add_row(Text(name), str(scores["n"]), *(_number(scores[column]) for column in columns))


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
