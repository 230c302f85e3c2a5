"""``grandrounds report`` and ``grandrounds export``: runs as a page and numbers, and a model with its card."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from grandrounds.commands.options import Json, comma_separated
from grandrounds.console.output import notes, results, say, say_json
from grandrounds.console.steps import steps_on

REPORT_HELP = """Report on one run, or compare several.

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
    from grandrounds.api.reports import report_content
    from grandrounds.reporting.page import write_report
    from grandrounds.reporting.runs import split_argument

    named = [(None, Path(text)) if Path(text).exists() else split_argument(text) for text in runs]
    with steps_on(notes()) as step:
        content = report_content(
            named,
            sites_dir,
            title=title,
            reference=reference,
            model=model.value if model else None,
            communities=groups,
            external=external or (),
            step=step,
        )
        page = write_report(content, out, step)
    if json:
        say_json(content.to_json())
    else:
        say(results(), str(page))


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The workspace of a finished run, or its results.")],
    out: Annotated[Path, typer.Option(help="Folder for the model; it is made when missing.")],
    sites_dir: Annotated[Path | None, typer.Option(help="Folder of the partition that the run had.")] = None,
    external: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A place's result of grandrounds evaluate --out, for the card; repeatable."),
    ] = None,
    licence: Annotated[str | None, typer.Option(help="Licence of the data that the model was trained on.")] = None,
    formats: Annotated[
        str | None, typer.Option(metavar="A,B", help="Further formats: torchscript, onnx (extra onnx).")
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(help="With problem.norm=site: the site of the partition whose images the model is for."),
    ] = None,
) -> None:
    """Write the model and print its path."""
    from grandrounds.api.reports import export as write_model

    more = comma_separated(formats) or ()
    paths = write_model(
        run, out, sites_dir=sites_dir, external=external or (), licence=licence, formats=more, site=site
    )
    for path in paths:
        say(results(), str(path))
