"""``grandrounds figures``: figures of a run's record and, where they are at hand, of its images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from grandrounds.commands.output import results, say
from grandrounds.errors import ConfigurationError
from grandrounds.files import read_json_object

HELP = """Draw figures from the record of a run.

Learning curves, communication, and the figures of the run's method: peer frequency, similarity of the models, relation
matrices, pseudo-labels, or entropy of the soft labels. With --groups the sites of a community are side by side, and
similarity within communities is compared with that between them.

With --sites-dir, where the images are on this machine, single cases are shown as well: for each site a sheet of right, wrong
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
    from grandrounds.commands.image_figures import image_figures, scenario_figures
    from grandrounds.evaluation.history import selection_metric
    from grandrounds.reporting.figures.training import training_drawings
    from grandrounds.reporting.runs import read_history

    if against and sites_dir is None:
        raise typer.BadParameter("--against shows single images: give --sites-dir as well")
    history = read_history(run)
    if groups:
        history = history._replace(communities=communities_of(groups, history.sites))
    drawings = training_drawings(history, selection_metric(history.events), history.sites)
    drawn = {drawing.name: drawing.figure for drawing in drawings}
    if sites_dir is not None:
        drawn |= image_figures(run, sites_dir)
        drawn |= scenario_figures(run, against, sites_dir) if against else {}
    if not drawn:
        raise ConfigurationError(
            f"{run}: there is nothing to draw yet: no site has sent a score or trained with others"
        )
    out.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        path = out / f"{name}.png"
        figure.savefig(path)
        say(results(), str(path))


def communities_of(path: Path, sites: Sequence[str]) -> dict[str, str]:
    """The community of each site: from a partition the commonest source of its images.

    The clients of FedPerl's paper are in one community when they are of one data set, whatever devices it has; for them
    only the part of a source before the slash counts.

    Args:
        path: a folder with ``partition.json``, this file, or one with a JSON object of communities by site.
        sites: the sites that must have a community.

    Raises:
        ConfigurationError: if there is no such file, or a site has no community in it.
    """
    from grandrounds.data.partition.files import DESCRIPTION_FILE

    file = path / DESCRIPTION_FILE if path.is_dir() else path
    if not file.is_file():
        raise ConfigurationError(f"{file} is not there; give a partition or a JSON file of communities")
    content = read_json_object(file)
    named = _communities(content) if isinstance(content.get("sites"), dict) else content
    if not all(isinstance(name, str) for name in named.values()):
        raise ConfigurationError(f"{file} must be an object with a community's name for each site")
    missing = [site for site in sites if not named.get(site)]
    if missing:
        raise ConfigurationError(
            f"{file} has no community of {', '.join(missing)}; add it, or give the run's partition"
        )
    return {site: named[site] for site in sites}


def _communities(description: Mapping[str, Any]) -> dict[str, str]:
    """Communities from ``partition.json``, without a prefix that all names share."""
    of_data_set = description.get("scheme") == "fedperl"
    named: dict[str, str] = {}
    for site, summary in description["sites"].items():
        counts: Counter[str] = Counter()
        for source, count in summary.get("sources", {}).items():
            counts[source.partition("/")[0] if of_data_set else source] += count
        # Of equally common sources the first by name.
        named[site] = min(counts, key=lambda source: (-counts[source], source), default="")
    prefixes = {name.partition("/")[0] for name in named.values()}
    common = f"{prefixes.pop()}/" if len(prefixes) == 1 else ""
    return {site: name.removeprefix(common) for site, name in named.items()}
