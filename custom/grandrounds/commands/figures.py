"""``grandrounds figures``: pictures of what a run's record says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grandrounds.commands.output import results, say
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.files import read_json_object

if TYPE_CHECKING:
    from grandrounds.reporting.run import Event

HELP = """Draw figures from the record of a run.

Peer frequency, similarity of the models, relation matrices, scores of each site during training, pseudo-labels, entropy of
the soft labels and communication: those that the run's method has. With --groups the sites of a community stand side by
side, and within is compared with between.

With --sites-dir, where the images are on this machine, single cases are shown as well: for each site a sheet of right, wrong
and uncertain ones, with and without what the model looks at, and for two classes the embeddings of all test images in a
plane. With --against other runs of the same partition, a sheet shows where each model looks in an image that all have right,
that all have wrong, and that one has right alone; for mammograms it says how much of that is inside the breast. These
pictures show patients' images and must stay where those are; a report has none of them.

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
    """Draw the figures and say where they are."""
    from grandrounds.commands.image_figures import image_drawings, scenario_drawings
    from grandrounds.commands.method_figures import drawings
    from grandrounds.reporting.figures.training import sites_of

    if against and sites_dir is None:
        raise typer.BadParameter("--against shows single images: give --sites-dir as well")
    events = events_of(run)
    sites = sites_of(events)
    drawn = drawings(events, sites, groups_of(groups, sites) if groups else None, classes_of(run))
    if sites_dir is not None:
        drawn |= image_drawings(run, sites_dir)
        drawn |= scenario_drawings(run, against, sites_dir) if against else {}
    if not drawn:
        raise ConfigurationError(
            f"{run}: there is nothing to draw yet: no site has sent a score or trained with others"
        )
    out.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        place = out / f"{name}.png"
        figure.savefig(place)
        say(results(), str(place))


def events_of(run: Path) -> list[Event]:
    """The events of a run, without the void ones.

    Raises:
        ConfigurationError: if there is no record.
        DataError: if it is damaged.
    """
    from grandrounds.federation.server.record import EVENTS, read_events

    for folder in (run, run / "results"):
        if (folder / EVENTS).is_file():
            try:
                return list(read_events(folder))
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{folder / EVENTS} is damaged ({error!r}); restore it or run the job again") from error
    raise ConfigurationError(
        f"{run} has no record of a run: neither it nor its folder results has {EVENTS}; give the workspace of a "
        "simulation or the results of a downloaded job"
    )


def classes_of(run: Path) -> list[str]:
    """The vocabulary of a run; empty where its summary does not tell."""
    from grandrounds.federation.server.record import SUMMARY

    for folder in (run, run / "results"):
        with suppress(ConfigurationError, LookupError, TypeError):
            return list(read_json_object(folder / SUMMARY)["configuration"]["problem"]["classes"])
    return []


def groups_of(path: Path, sites: Sequence[str]) -> dict[str, str]:
    """The community of each site: from a partition the commonest source of its images.

    The clients of FedPerl's paper are in one community when they are of one data set, whatever devices it has; for them
    only the part of a source before the slash counts.

    Args:
        path: a folder with ``partition.json``, this file, or one with a JSON object of communities by site.
        sites: who must have a community.

    Raises:
        ConfigurationError: if there is no such file, or a site has no community in it.
    """
    from grandrounds.data.partition.files import DESCRIPTION_FILE

    place = path / DESCRIPTION_FILE if path.is_dir() else path
    if not place.is_file():
        raise ConfigurationError(f"{place} is not there; give a partition or a JSON file of communities")
    content = read_json_object(place)
    named = _communities(content) if isinstance(content.get("sites"), dict) else content
    if not all(isinstance(name, str) for name in named.values()):
        raise ConfigurationError(f"{place} must be an object with a community's name for each site")
    missing = [site for site in sites if not named.get(site)]
    if missing:
        raise ConfigurationError(
            f"{place} has no community of {', '.join(missing)}; add it, or give the run's partition"
        )
    return {site: named[site] for site in sites}


def _communities(description: Mapping[str, Any]) -> dict[str, str]:
    """What ``partition.json`` says, without a data set's name that all sources have in front."""
    of_data_set = description.get("scheme") == "fedperl"
    named: dict[str, str] = {}
    for site, summary in description["sites"].items():
        counts: Counter[str] = Counter()
        for source, count in summary.get("sources", {}).items():
            counts[source.partition("/")[0] if of_data_set else source] += count
        # Of equally common ones the first by name.
        named[site] = min(counts, key=lambda source: (-counts[source], source), default="")
    fronts = {name.partition("/")[0] for name in named.values()}
    common = f"{fronts.pop()}/" if len(fronts) == 1 else ""
    return {site: name.removeprefix(common) for site, name in named.items()}
