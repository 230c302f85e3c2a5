"""``grandrounds report`` and ``grandrounds export``: runs as a page and numbers, and a model with its card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.commands.options import Json
from grandrounds.commands.output import results, say, say_json
from grandrounds.errors import ConfigurationError

if TYPE_CHECKING:
    from grandrounds.reporting.run import Run

HELP = """Report on one run, or compare several.

Writes report.html, one file that needs no network, and beside it figures (PNG, SVG), tables (CSV) and report.json.
Nothing in them names an image or a patient. A RUN is a simulation's workspace, the results of a downloaded job, or a
benchmark's result file; NAME=RUN gives it a name. Runs that differ in their seed alone are one method.

Scores are of the one model that the federation selected, where it has one; --model own takes what each site would
choose among the rounds' models. With --sites-dir intervals take the patient or lesion as a case, and thresholds are chosen
on the sites' validation images.

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
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    json: Json = False,
) -> None:
    """Write the report and print its path."""
    from grandrounds.reporting.model import operating_points, report_on
    from grandrounds.reporting.page import write_report
    from grandrounds.reporting.predictions import validation_cases

    found = _runs(runs, sites_dir, groups, model.value if model else None)
    operations = {}
    if sites_dir is not None:
        operations = {run.name: operating_points(run, validation_cases(run, sites_dir)) for run in found}
    content = report_on(found, title, reference, operations)
    page = write_report(content, out)
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
    if groups is None:
        return found
    return [replace(run, communities=communities_of(groups, run.sites)) for run in found]


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The workspace of a finished run, or its results.")],
    out: Annotated[Path, typer.Option(help="Folder for the model; it is made when missing.")],
    sites_dir: Annotated[Path | None, typer.Option(help="Folder of the partition that the run had.")] = None,
    licence: Annotated[str | None, typer.Option(help="Licence of the data that the model was trained on.")] = None,
) -> None:
    """Write the model and print its path."""
    from grandrounds.reporting.export import export_model
    from grandrounds.reporting.model import report_on
    from grandrounds.reporting.predictions import groups_in
    from grandrounds.reporting.runs import read_run

    found = read_run(run, run.absolute().name, groups_in(sites_dir) if sites_dir else None)
    for path in export_model(report_on([found]), found, out, licence):
        say(results(), str(path))
