"""``grandrounds report`` and ``grandrounds export``: runs as a page and numbers, and a model with its card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.commands.options import Json
from grandrounds.commands.output import notes, results, say, say_json
from grandrounds.commands.progress import steps_on
from grandrounds.errors import ConfigurationError

if TYPE_CHECKING:
    from grandrounds.reporting.run import Run

HELP = """Report on one run, or compare several.

Writes report.html, one file that needs no network, and beside it figures (SVG), tables (CSV) and report.json.
Nothing in them names an image or a patient. A RUN is a simulation's workspace, the results of a downloaded job, or a
benchmark's result file; NAME=RUN gives it a name. Runs that differ in their seed alone are one method.

Scores are of the one model that the federation selected, where it has one; --model own takes what each site would
choose among the rounds' models. Thresholds are chosen on the sites' validation images. With --sites-dir intervals take the
patient or lesion as a case. --external adds a place that never took part. Of a run that was not simulated on this machine
no count from 1 to 9 is shown.

[bold]Examples[/bold]

\b
  grandrounds report runs/fedperl --out runs/fedperl/report
  grandrounds report FedPerl=runs/fedperl Local=runs/local --out runs/comparison --reference Local
  grandrounds report runs/ham --out runs/ham/report --sites-dir runs/ham/sites --groups runs/ham/sites
"""
EXPORT_HELP = """Export the selected model of a run.

Writes model.safetensors, model_card.json and a MONAI bundle. The card describes the training data and the test
results; with --sites-dir its intervals take the patient or lesion as a case. No image, and no name of one, is in it.

[bold]Examples[/bold]

\b
  grandrounds export runs/fedperl --out runs/fedperl/model
  grandrounds export runs/ham --out runs/ham/model --sites-dir runs/ham/sites --licence CC-BY-NC-4.0
"""


class Model(Enum):
    """Whose predictions a report scores."""

    COMMON = "common"
    OWN = "own"


def report(
    runs: Annotated[list[str], typer.Argument(metavar="[NAME=]RUN...", help="Runs to report on.")],
    out: Annotated[Path, typer.Option(help="Folder for the report; it is made when missing.")],
    sites_dir: Annotated[
        Path | None, typer.Option(help="Folder of the partition that the runs had, if their images are here.")
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option(help="Communities: a partition (each site's commonest source), or a JSON file {SITE: NAME}."),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="The method to compare with; default: local training, else the first.")
    ] = None,
    model: Annotated[
        Model | None, typer.Option(help="Whose scores: one common model, or each site's own choice of a round's model.")
    ] = None,
    external: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A place's result of grandrounds evaluate --out; repeatable."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    json: Json = False,
) -> None:
    """Write the report and print its path."""
    from grandrounds.reporting.external.result import read_result
    from grandrounds.reporting.model import report_on
    from grandrounds.reporting.page import write_report

    with steps_on(notes()) as step:
        step("reading the runs")
        places = [read_result(path) for path in external or ()]
        found = _runs(runs, sites_dir, groups, model.value if model else None)
        step("computing scores and intervals")
        content = report_on(found, title, reference, places)
        page = write_report(content, out, step)
    if json:
        say_json(content.to_json())
    else:
        say(results(), str(page))


def _runs(arguments: Sequence[str], sites_dir: Path | None, groups: Path | None, model: str | None) -> list[Run]:
    from grandrounds.commands.figures import communities_of
    from grandrounds.reporting.predictions import groups_in
    from grandrounds.reporting.runs import names_of, read_run, split_argument

    if sites_dir is not None and not sites_dir.is_dir():
        raise ConfigurationError(f"--sites-dir: there is no folder {sites_dir}")
    named = [(None, Path(text)) if Path(text).exists() else split_argument(text) for text in arguments]
    look_up = groups_in(sites_dir) if sites_dir else None
    found = [read_run(path, name, look_up, model) for (_, path), name in zip(named, names_of(named), strict=True)]
    if sites_dir is not None:
        found = [_with_columns(run, path, sites_dir) for run, (_, path) in zip(found, named, strict=True)]
    if groups is None:
        return found
    return [replace(run, communities=communities_of(groups, run.sites)) for run in found]


def _with_columns(run: Run, path: Path, sites_dir: Path) -> Run:
    """The run with the further columns of its sites' manifests, if it has predictions of single images."""
    from grandrounds.reporting.predictions import read_columns
    from grandrounds.reporting.runs import answers_folder

    if not run.predictions or path.is_file():
        return run
    dataset = str(run.problem["dataset"])
    columns = read_columns(answers_folder(path), list(run.predictions), run.model, dataset, sites_dir)
    return replace(run, columns=columns)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The workspace of a finished run, or its results.")],
    out: Annotated[Path, typer.Option(help="Folder for the model; it is made when missing.")],
    sites_dir: Annotated[Path | None, typer.Option(help="Folder of the partition that the run had.")] = None,
    external: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A place's result of grandrounds evaluate --out, for the card; repeatable."),
    ] = None,
    licence: Annotated[str | None, typer.Option(help="Licence of the data that the model was trained on.")] = None,
) -> None:
    """Write the model and print its path."""
    from grandrounds.reporting.export import export_model
    from grandrounds.reporting.external.result import read_result
    from grandrounds.reporting.model import report_on
    from grandrounds.reporting.predictions import groups_in
    from grandrounds.reporting.runs import read_run

    found = read_run(run, run.absolute().name, groups_in(sites_dir) if sites_dir else None)
    places = [read_result(path) for path in external or ()]
    for path in export_model(report_on([found], places=places), found, out, licence):
        say(results(), str(path))
