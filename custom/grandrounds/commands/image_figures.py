"""Figures of ``grandrounds figures --sites-dir`` that show a run's images: single cases, Grad-CAM, and embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grandrounds.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from grandrounds.reporting.predictions import SitePredictions
    from grandrounds.reporting.run import Run


def image_figures(run: Path, sites_dir: Path) -> dict[str, Figure]:
    """Sheets of each site's test cases, without and with Grad-CAM, and the plane of embeddings.

    Args:
        run: the workspace of a finished run with one model for all.
        sites_dir: the partition that it had.

    Raises:
        ConfigurationError: if the run has no selected model.
        GrandRoundsError: if the run or the sites' images are not as they must be.
    """
    from grandrounds.reporting.predictions import site_predictions

    found = _with_model(run, run.absolute().name)
    drawn: dict[str, Figure] = {}
    sites = list(site_predictions(found, sites_dir, "test"))
    for site in sites:
        drawn |= _sheets(site, found.classes)
    if len(found.classes) == 2:
        drawn |= _plane(sites)
    return drawn


def scenario_figures(run: Path, others: Sequence[str], sites_dir: Path) -> dict[str, Figure]:
    """Where the models of several runs look: where all are right, all are wrong, and where one stands alone.

    Args:
        run: whose model is in question.
        others: ``[NAME=]RUN``; the first is the one that ``run`` extends.
        sites_dir: the partition that all had.

    Returns:
        A row for each of the four scenarios that has an image; nothing without such images.

    Raises:
        ConfigurationError: if a run has no selected model, or they differ in classes or sites.
        GrandRoundsError: if a run or the sites' images are not as they must be.
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
    return {"scenarios": scenario_figure(images, maps, chosen, ours.name, reference.name, breast)}


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


def _sheets(found: SitePredictions, classes: Sequence[str]) -> dict[str, Figure]:
    import numpy as np

    from grandrounds.data.images.views import to_tensor
    from grandrounds.evaluation.grad_cam import prediction_maps
    from grandrounds.reporting.figures.images import choose_samples, sample_figure

    # Of these alone the same ones are chosen again: maps are computed for what is shown.
    rows = np.unique(np.concatenate(choose_samples(found.labels, found.probabilities)))
    shown = (found.images[rows], found.labels[rows], found.probabilities[rows], classes)
    maps = prediction_maps(found.model, to_tensor(found.images[rows]))
    return {f"samples_{found.site}": sample_figure(*shown), f"grad_cam_{found.site}": sample_figure(*shown, maps)}


def _plane(sites: Sequence[SitePredictions]) -> dict[str, Figure]:
    """Embeddings of all sites' test images, and what does not depend on the projection below it."""
    import numpy as np
    import torch

    from grandrounds.data.images.views import to_tensor
    from grandrounds.evaluation.domain_probe import PERPLEXITY, plane_of, site_silhouette
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
