"""``grandrounds figures``: figures of a run's record and, where they are at hand, of its images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grandrounds.console.output import notes, results, say
from grandrounds.console.steps import steps_on
from grandrounds.errors import ConfigurationError

FIGURES_HELP = """Draw figures from the record of a run.

Learning curves, communication, and the figures of the run's method: peer frequency, similarity of the models, relation
matrices, pseudo-labels, or entropy of the soft labels. With --groups the sites of a community are side by side, and
similarity within communities is compared with that between them.

With --sites-dir, where the images are on this machine, single cases are also shown: for each site a sheet of right, wrong
and uncertain predictions, with and without Grad-CAM, and for two classes the embeddings of all test images in a plane. With
--against other runs of the same partition, a sheet shows where each model looks in an image that all models have right, that
all have wrong, and that only one has right; for mammograms it gives the share of the map inside the breast. These figures
show patients' images and must stay where the images are; a report has none of them.

[bold]Examples[/bold]

\b
  grandrounds figures runs/fedperl --out runs/fedperl/figures
  grandrounds figures runs/ham --out runs/ham/figures --groups runs/ham/sites
  grandrounds figures runs/ham --out runs/ham/private --sites-dir runs/ham/sites
  grandrounds figures runs/fed-align-cl --out DIR --sites-dir SITES --against runs/fed-align --against runs/fed
"""


def figures(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A simulation's workspace, or the folder of events.jsonl.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the figures; it is made when missing.")],
    groups: Annotated[
        Path | None,
        typer.Option(help="Communities: a partition (each site's commonest source), or a JSON file {SITE: NAME}."),
    ] = None,
    sites_dir: Annotated[
        Path | None, typer.Option(help="Folder of the run's partition, to show single images; keep what is written.")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]RUN",
            help="With --sites-dir: a run to compare what the models look at with; repeatable, the first is the one "
            "that RUN extends.",
        ),
    ] = None,
) -> None:
    """Draw the figures and print their paths."""
    from grandrounds.api.reports import history_of, training_figures

    if against and sites_dir is None:
        raise typer.BadParameter("--against shows single images: also give --sites-dir")
    with steps_on(notes()) as step:
        step("reading the run")
        drawn = training_figures(history_of(run, groups))
        if sites_dir is not None:
            from grandrounds.reporting.figures.cases import image_figures, scenario_figures

            drawn |= image_figures(run, sites_dir, step)
            step("comparing the models")
            drawn |= scenario_figures(run, against, sites_dir) if against else {}
        if not drawn:
            raise ConfigurationError(
                f"{run}: there is nothing to draw yet: no site has sent a score or trained with others"
            )
        out.mkdir(parents=True, exist_ok=True)
        for name, figure in drawn.items():
            step(f"writing {name}.png")
            path = out / f"{name}.png"
            figure.savefig(path)
            say(results(), str(path))
