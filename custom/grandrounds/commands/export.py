"""``grandrounds export``: a run's model with its card, for others to load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grandrounds.commands.output import results, say

HELP = """Export the selected model of a run.

Writes model.safetensors, model_card.json and a MONAI bundle. The card describes the training data and the test
results; with --sites-dir its intervals take the patient or lesion as a case. No image, and no name of one, is in it.

[bold]Examples[/bold]

\b
  grandrounds export runs/fedperl --out runs/fedperl/model
  grandrounds export runs/ham --out runs/ham/model --sites-dir runs/ham/sites --licence CC-BY-NC-4.0
"""


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
