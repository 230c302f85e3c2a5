"""The report's folder: one page that needs nothing else, the figures, the tables and all numbers."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from grandrounds import __version__
from grandrounds.csv_files import write_csv
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.evaluation.score import MIN_CASES, Score, ScoreSheet
from grandrounds.files import write_bytes, write_json
from grandrounds.folders import file_names, written_together
from grandrounds.json_files import read_json_object
from grandrounds.plotting import Drawing
from grandrounds.reporting.details import comparison_section, run_section
from grandrounds.reporting.external.result import ExternalResult
from grandrounds.reporting.external.section import ExternalSection, drawings_of, external_section
from grandrounds.reporting.figures.catalogue import comparison_drawings, file_name, run_drawings
from grandrounds.reporting.model import Report, ReportedRun
from grandrounds.reporting.overview import overview
from grandrounds.reporting.parts import PageFigure, page_template
from grandrounds.reporting.scores import RunScores

PAGE, NUMBERS, WRITTEN = "report.html", "report.json", "files"
ESTIMATE = ("value", "low", "high", "cases")
# Text stays text: it can be searched and read aloud, and the file is smaller. Ids do not depend on chance.
SVG_OPTIONS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "grandrounds",
    "font.family": "sans-serif",
}


def write_report(report: Report, folder: Path, step: Callable[[str], None] = lambda _: None) -> Path:
    """Write a report, replacing an earlier one, when all of it is there: neither an error nor another command mixes two.

    ``step`` is called with what is done next.

    Raises:
        ConfigurationError: if two runs would have the same files.
    """
    _require_different_files(list(report.runs))
    with written_together(folder, lambda: _files_of(folder)) as new:
        figures = new / "figures"
        together = _all_written(comparison_drawings(report), figures, "of all runs", step)
        of_runs = {
            name: _all_written(run_drawings(report, reported), figures, f"of {name}", step)
            for name, reported in report.runs.items()
        }
        places = [
            external_section(place, _all_written(_of_place(place), figures, f"of {place.place}", step))
            for place in report.places
        ]
        step("writing the page")
        header = ["run", "group", "kind", "images", "score", *ESTIMATE]
        write_csv(new / "tables" / "sites.csv", header, _group_rows(report.runs))
        header = ["run", "group", "kind", "class", "score", *ESTIMATE]
        write_csv(new / "tables" / "classes.csv", header, _class_rows(report.runs))
        if report.comparison:
            differences = {method: report.comparison.row(method) for method in report.comparison.differences}
            header = ["method", "reference", *next(iter(differences.values()))]
            rows = [[method, report.comparison.reference, *row.values()] for method, row in differences.items()]
            write_csv(new / "tables" / "comparison.csv", header, rows)
        page = render_page(report, together, of_runs, places)
        write_bytes(new / PAGE, page.encode(), private=bool(report.examples))
        write_json(new / NUMBERS, {**report.to_json(), WRITTEN: file_names(new)})
    return folder / PAGE


def _files_of(folder: Path) -> list[str]:
    """The figures and tables that an earlier report has written, and says so in its numbers."""
    path = folder / NUMBERS
    try:
        named = read_json_object(path).get(WRITTEN, []) if path.is_file() else []
    except GrandRoundsError:  # what a person has changed names nothing
        return []
    places = {"figures": ".svg", "tables": ".csv"}
    paths = [PurePosixPath(name) for name in named if isinstance(name, str)] if isinstance(named, list) else []
    return [str(one) for one in paths if len(one.parts) == 2 and places.get(one.parts[0]) == one.suffix]


def render_page(
    report: Report,
    together: Sequence[PageFigure],
    of_runs: Mapping[str, Sequence[PageFigure]],
    places: Sequence[ExternalSection] = (),
) -> str:
    """The page as HTML, from ``templates/report.html``, with figures of all runs and of each; all text is escaped."""
    return page_template("report.html").render(
        title=report.title,
        overview=overview(report),
        comparison=comparison_section(report, together) if report.several else None,
        runs=[run_section(reported, of_runs.get(name, ()), report.several) for name, reported in report.runs.items()],
        places=places,
        min_cases=MIN_CASES,
        classes=len(report.classes),
        examples=report.examples,
        version=__version__,
    )


def svg_of(drawing: Drawing) -> bytes:
    """A figure as SVG without a date: the same figure gives the same bytes."""
    import matplotlib

    stream = io.BytesIO()
    with matplotlib.rc_context(SVG_OPTIONS):
        drawing.figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def _of_place(place: ExternalResult) -> list[Drawing]:
    prefix = f"external-{file_name(place.place)}-"
    return [drawing._replace(name=f"{prefix}{drawing.name}") for drawing in drawings_of(place)]


def _all_written(
    drawings: Sequence[Drawing], folder: Path, whose: str, step: Callable[[str], None]
) -> list[PageFigure]:
    figures = []
    for drawing in drawings:
        step(f"drawing {drawing.name.replace('_', ' ')} {whose}")
        figures.append(_written(drawing, folder))
    return figures


def _written(drawing: Drawing, folder: Path) -> PageFigure:
    """Write a figure as ``NAME.svg``."""
    svg = svg_of(drawing)
    write_bytes(folder / f"{drawing.name}.svg", svg)
    width = round(drawing.figure.get_size_inches()[0] * 96)
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    return PageFigure(source, width, drawing.alt, drawing.caption)


def _require_different_files(names: Sequence[str]) -> None:
    """Refuse names of runs whose files would overwrite each other."""
    seen: dict[str, str] = {}
    for name in names:
        earlier = seen.setdefault(file_name(name).casefold(), name)
        if earlier != name:
            raise ConfigurationError(f"the runs {earlier!r} and {name!r} would have the same files; rename one of them")


def _group_rows(runs: Mapping[str, ReportedRun]) -> Iterator[list[Any]]:
    for run, reported in runs.items():
        for kind, name, sheet in _all_sheets(reported.scores):
            images = "" if sheet.images is None else sheet.images
            for score, found in sheet.scores.items():
                yield [run, name, kind, images, score, *_cells(found)]
            for score, value in sheet.confidence.items():
                yield [
                    run,
                    name,
                    kind,
                    images,
                    score,
                    f"{value:.6f}",
                    "",
                    "",
                    "" if sheet.cases is None else sheet.cases,
                ]
        for score, found in reported.scores.mean.items():
            yield [run, "mean", "mean over sites", "", score, *_cells(found)]


def _class_rows(runs: Mapping[str, ReportedRun]) -> Iterator[list[Any]]:
    for run, reported in runs.items():
        for kind, name, sheet in _all_sheets(reported.scores):
            for class_name, scores in sheet.classes.items():
                for score, value in scores.items():
                    yield [run, name, kind, class_name, score, *_cells(value)]


def _all_sheets(scores: RunScores) -> Iterator[tuple[str, str, ScoreSheet]]:
    yield from (("site", name, sheet) for name, sheet in scores.sites.items())
    yield from (("community", name, sheet) for name, sheet in scores.communities.items())
    if scores.pooled:
        yield "pooled", "all", scores.pooled


def _cells(score: Score) -> list[Any]:
    content = score.to_json()
    return ["" if content[name] is None else content[name] for name in ESTIMATE]
