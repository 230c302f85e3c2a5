"""``grandrounds figures``: figures of a run's record and, where they are at hand, of its images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grandrounds.commands.output import notes, results, say
from grandrounds.commands.progress import Step, steps_on
from grandrounds.errors import ConfigurationError
from grandrounds.files import read_json_object

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from grandrounds.reporting.predictions import SitePredictions
    from grandrounds.reporting.run import Run

HELP = """Draw figures from the record of a run.

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
    from grandrounds.evaluation.history import selection_metric
    from grandrounds.reporting.figures.runs import training_drawings
    from grandrounds.reporting.runs import read_history

    if against and sites_dir is None:
        raise typer.BadParameter("--against shows single images: also give --sites-dir")
    with steps_on(notes()) as step:
        step("reading the run")
        history = read_history(run)
        if groups:
            history = history._replace(communities=communities_of(groups, history.sites))
        drawings = training_drawings(history, selection_metric(history.events), history.sites)
        drawn = {drawing.name: drawing.figure for drawing in drawings}
        if sites_dir is not None:
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


def communities_of(path: Path, sites: Sequence[str]) -> dict[str, str]:
    """The community of each site: from a partition the commonest source of its images.

    The clients of FedPerl's paper are in one community when they are of one data set, whatever devices it has; for them
    only the part of a source before the slash counts. ``path`` is a folder with ``partition.json``, this file, or one with a
    JSON object of communities by site.

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


def image_figures(run: Path, sites_dir: Path, step: Step) -> dict[str, Figure]:
    """Sheets of each site's test cases, without and with Grad-CAM, of its errors, and the plane of embeddings.

    Raises:
        GrandRoundsError: if the run has no model for all, or the sites' images are not as they must be.
    """
    from grandrounds.reporting.predictions import site_predictions

    found = _with_model(run, run.absolute().name)
    drawn: dict[str, Figure] = {}
    step("predicting the test images of the sites")
    sites = list(site_predictions(found, sites_dir, "test"))
    for site in sites:
        step(f"drawing the images of {site.site}")
        drawn |= _sheets(site, found.classes, found.name)
    if len(found.classes) == 2:
        drawn |= _plane(sites)
    return drawn


def scenario_figures(run: Path, others: Sequence[str], sites_dir: Path) -> dict[str, Figure]:
    """Where the models of several runs look: where all are right, all are wrong, and where only one differs.

    The model of ``run`` is in question; the first of the others, ``[NAME=]RUN``, is the one that it extends.

    Returns:
        A row for each of the four scenarios that has an image; nothing without such images.

    Raises:
        GrandRoundsError: if a run has no model for all, they differ in classes or sites, or images are not as they must be.
    """
    import numpy as np
    import torch

    from grandrounds.data.images.views import to_tensor
    from grandrounds.evaluation.grad_cam import prediction_maps, scenarios
    from grandrounds.reporting.comparison import require_one_vocabulary
    from grandrounds.reporting.figures.images import scenario_figure
    from grandrounds.reporting.predictions import site_predictions
    from grandrounds.reporting.runs import names_of, split_argument

    named = [(None, run), *map(split_argument, others)]
    runs = [_with_model(path, name) for (_, path), name in zip(named, names_of(named), strict=True)]
    require_one_vocabulary(runs)
    tested = {one.name: list(site_predictions(one, sites_dir, "test")) for one in runs}
    ours, reference = runs[0], runs[1]
    for one in runs[1:]:
        if [found.site for found in tested[one.name]] != [found.site for found in tested[ours.name]]:
            raise ConfigurationError(f"--against: {one.name} and {ours.name} were tested at different sites")
    flags = {
        name: torch.from_numpy(np.concatenate([found.probabilities.argmax(axis=1) == found.labels for found in sites]))
        for name, sites in tested.items()
    }
    rows = [int(found[0]) for found in scenarios(flags, ours.name, reference.name).values() if len(found)]
    if not rows:
        return {}
    images = np.concatenate([found.images for found in tested[ours.name]])[rows]
    maps = {
        name: torch.from_numpy(prediction_maps(sites[0].model, to_tensor(images))) for name, sites in tested.items()
    }
    chosen = scenarios({name: own[rows] for name, own in flags.items()}, ours.name, reference.name)
    breast = _all_mammograms(ours, sites_dir)
    labels = np.concatenate([found.labels for found in tested[ours.name]])[rows]
    answers = {"": [f"is {ours.classes[label]}" for label in labels.tolist()]}
    for name, sites in tested.items():
        probabilities = np.concatenate([found.probabilities for found in sites])[rows]
        answers[name] = [f"{ours.classes[int(row.argmax())]} {row.max():.2f}" for row in probabilities]
    return {"scenarios": scenario_figure(images, maps, chosen, ours.name, reference.name, breast, answers)}


def _with_model(path: Path, name: str) -> Run:
    from grandrounds.reporting.runs import read_run

    found = read_run(path, name)
    if found.weights is None or found.model != "common":
        raise ConfigurationError(
            f"--sites-dir: {path} has no model for all sites to show cases of: it is not finished, or every site kept its "
            "own"
        )
    return found


def _all_mammograms(run: Run, sites_dir: Path) -> bool:
    """Whether all images are prepared mammograms, whose background is black."""
    from grandrounds.data.site import locate_dataset

    dataset = str(run.problem["dataset"])
    return all(locate_dataset(site, dataset, [sites_dir]).preprocess == "mammogram" for site in run.predictions)


def _sheets(found: SitePredictions, classes: Sequence[str], model: str) -> dict[str, Figure]:
    import numpy as np

    from grandrounds.data.images.views import to_tensor
    from grandrounds.evaluation.grad_cam import prediction_maps
    from grandrounds.reporting.figures.images import choose_samples, failure_figure, sample_figure

    # Of these alone the same ones are chosen again: maps are computed for what is shown.
    rows = np.unique(np.concatenate(choose_samples(found.labels, found.probabilities)))
    shown = (found.images[rows], found.labels[rows], found.probabilities[rows], classes)
    maps = prediction_maps(found.model, to_tensor(found.images[rows]))
    title = f"{found.site}, {len(found.labels)} test images, model of {model}"
    return {
        f"samples_{found.site}": sample_figure(*shown, title=title),
        f"grad_cam_{found.site}": sample_figure(*shown, maps, title=title),
        f"failures_{found.site}": failure_figure(
            found.images, found.labels, found.probabilities, classes, f"{found.site}, model of {model}"
        ),
    }


def _plane(sites: Sequence[SitePredictions]) -> dict[str, Figure]:
    """Embeddings of all sites' test images, and what does not depend on the projection below it."""
    import numpy as np
    import torch

    from grandrounds.data.images.views import to_tensor
    from grandrounds.evaluation.embeddings import PERPLEXITY, plane_of, site_silhouette
    from grandrounds.models.split import split_network
    from grandrounds.reporting.figures.images import plane_figure

    names = np.array([found.site for found in sites for _ in found.labels], np.str_)
    if len(names) <= PERPLEXITY or len(sites) < 2:
        return {}
    with torch.no_grad():
        embedded = [split_network(found.model).encoder(to_tensor(found.images)) for found in sites]
    values = torch.cat(embedded).numpy()
    malignant = np.concatenate([found.labels for found in sites]) == 1
    caption = f"silhouette of the sites {site_silhouette(values, names):.2f}"
    planes = {"embedding": plane_of(values, seed=1)}
    return {"embeddings": plane_figure(planes, names.tolist(), malignant, captions={"embedding": caption})}
