"""The report's folder: the page, the figures, the tables and all numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grandrounds.evaluation.estimates import Estimate
from grandrounds.files import replacing, write_csv, write_json
from grandrounds.reporting.figures.catalogue import OfMethod, run_drawings, unique_names
from grandrounds.reporting.figures.shared import shared_drawings
from grandrounds.reporting.figures.style import Drawing, figure_element, svg_of, write_drawing
from grandrounds.reporting.html import Html
from grandrounds.reporting.model import Report
from grandrounds.reporting.page import page
from grandrounds.reporting.scores import Place, RunScores

PAGE, NUMBERS = "report.html", "report.json"
ESTIMATE = ("value", "low", "high", "cases")


def write_report(report: Report, folder: Path, of_method: OfMethod) -> Path:
    """Write a report; the page comes last, so that it is never there without the rest.

    Args:
        report: what to say.
        folder: is made when missing; files of an earlier report of the same names are replaced.
        of_method: figures that a method's record has beyond those of all runs.

    Returns:
        The page.

    Raises:
        ConfigurationError: if two runs would have the same files.
    """
    unique_names([run.name for run in report.runs])
    figures = folder / "figures"
    shared = [_written(drawing, figures) for drawing in shared_drawings(report)]
    of_runs = {
        run.name: [_written(drawing, figures) for drawing in run_drawings(report, run, of_method)]
        for run in report.runs
    }
    write_json(folder / NUMBERS, report.to_json())
    write_csv(folder / "tables" / "sites.csv", ["run", "place", "kind", "images", "score", *ESTIMATE], _places(report))
    header = ["run", "place", "kind", "class", "score", *ESTIMATE]
    write_csv(folder / "tables" / "classes.csv", header, _classes(report))
    if report.comparison:
        names = [
            "method",
            "reference",
            "mean",
            "low",
            "high",
            "n",
            "p_value",
            "adjusted_p",
            "relative_improvement_percent",
        ]
        write_csv(folder / "tables" / "comparison.csv", names, _differences(report))
    with replacing(folder / PAGE) as stream:
        stream.write(page(report, shared, of_runs).encode())
    return folder / PAGE


def _written(drawing: Drawing, folder: Path) -> Html:
    svg = svg_of(drawing.figure)
    write_drawing(drawing, folder, svg)
    return figure_element(drawing, svg)


def _places(report: Report) -> Iterator[list[Any]]:
    for run in report.runs:
        scores = report.scores[run.name]
        for kind, name, place in _all_places(scores):
            for score, estimate in place.scores.items():
                yield [run.name, name, kind, place.images, score, *_cells(estimate)]
            for score, value in place.sureness.items():
                yield [run.name, name, kind, place.images, score, f"{value:.6f}", "", "", place.cases]
        for score, estimate in scores.mean.items():
            yield [run.name, "mean", "mean over sites", "", score, *_cells(estimate)]


def _classes(report: Report) -> Iterator[list[Any]]:
    for run in report.runs:
        for kind, name, place in _all_places(report.scores[run.name]):
            for class_name, found in zip(run.classes, place.classes, strict=True):
                for score, estimate in found.items():
                    yield [run.name, name, kind, class_name, score, *_cells(estimate)]


def _all_places(scores: RunScores) -> Iterator[tuple[str, str, Place]]:
    yield from (("site", name, place) for name, place in scores.sites.items())
    yield from (("community", name, place) for name, place in scores.communities.items())
    if scores.pooled:
        yield "pooled", "all", scores.pooled


def _differences(report: Report) -> Iterator[list[Any]]:
    comparison = report.comparison
    if comparison:
        for method, difference in comparison.differences.items():
            yield [method, comparison.reference, *difference.to_json().values()]


def _cells(estimate: Estimate) -> list[Any]:
    found: Mapping[str, Any] = estimate.to_json()
    return ["" if found[name] is None else found[name] for name in ESTIMATE]
