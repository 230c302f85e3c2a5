"""Figures of single images: test cases of each site, what models look at, and embeddings; they stay where the images are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from grandrounds.data.images.tensors import to_tensor
from grandrounds.data.site import locate_dataset
from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.explanation.embeddings import PERPLEXITY, plane_of, site_silhouette
from grandrounds.evaluation.explanation.grad_cam import prediction_maps, scenarios
from grandrounds.models.inference.forward import Forward
from grandrounds.models.split import split_network
from grandrounds.reporting.comparison import require_one_vocabulary
from grandrounds.reporting.figures.images import (
    JudgedImages,
    choose_samples,
    failure_figure,
    plane_figure,
    sample_figure,
    scenario_figure,
)
from grandrounds.reporting.predictions import SitePredictions, site_predictions
from grandrounds.reporting.run import ReadRun
from grandrounds.reporting.runs import named_runs, read_run, split_argument

Step = Callable[[str], None]
"""Called with what is done next."""


def image_figures(run: Path, sites_dir: Path, step: Step) -> dict[str, Figure]:
    """Sheets of each site's test cases, without and with Grad-CAM, of its errors, and the plane of embeddings.

    Raises:
        GrandRoundsError: if the run has no model for all, or the sites' images are not as they must be.
    """
    read = _with_model(run, run.absolute().name)
    drawn: dict[str, Figure] = {}
    step("predicting the test images of the sites")
    sites = list(site_predictions(read, sites_dir, "test"))
    for site, judged in zip(sites, _judged(read, sites), strict=True):
        step(f"drawing the images of {site.site}")
        drawn |= _sheets(site, judged, read.name)
    if len(read.classes) == 2:
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
    named = named_runs([(None, run), *map(split_argument, others)])
    runs = [_with_model(path, name) for name, path in named.items()]
    require_one_vocabulary(runs)
    tested = {one.name: list(site_predictions(one, sites_dir, "test")) for one in runs}
    ours, reference = runs[0], runs[1]
    for one in runs[1:]:
        if [site.site for site in tested[one.name]] != [site.site for site in tested[ours.name]]:
            raise ConfigurationError(f"--against: {one.name} and {ours.name} were tested at different sites")
    judged = {one.name: _joined(_judged(one, tested[one.name])) for one in runs}
    flags = {name: torch.from_numpy(images.right) for name, images in judged.items()}
    rows = [int(chosen[0]) for chosen in scenarios(flags, ours.name, reference.name).values() if len(chosen)]
    if not rows:
        return {}
    shown = {name: images.at(np.array(rows)) for name, images in judged.items()}
    tensors = to_tensor(shown[ours.name].images)
    maps = {name: torch.from_numpy(prediction_maps(sites[0].model, tensors)) for name, sites in tested.items()}
    chosen = scenarios({name: own[rows] for name, own in flags.items()}, ours.name, reference.name)
    breast, answers = _all_mammograms(ours, sites_dir), _answers(shown, ours.name)
    images = shown[ours.name].images
    return {"scenarios": scenario_figure(images, maps, chosen, ours.name, reference.name, breast, answers)}


def _answers(shown: Mapping[str, JudgedImages], ours: str) -> dict[str, list[str]]:
    """Below each image its class, then what each model calls it and how sure it is."""
    words = {name: [images.words(row) for row in range(len(images.labels))] for name, images in shown.items()}
    answers = {"": [f"is {true}" for true, _, _ in words[ours]]}
    return answers | {name: [f"{predicted} {sure}" for _, predicted, sure in rows] for name, rows in words.items()}


def _with_model(path: Path, name: str) -> ReadRun:
    run = read_run(path, name)
    if run.origin.weights is None or run.tests.model != "common":
        raise ConfigurationError(
            f"--sites-dir: {path} has no model for all sites to show cases of: it is not finished, or every site kept its "
            "own"
        )
    return run


def _all_mammograms(run: ReadRun, sites_dir: Path) -> bool:
    """Whether all images are prepared mammograms, whose background is black."""
    dataset = str(run.log.problem["dataset"])
    located = (locate_dataset(site, dataset, [sites_dir]) for site in run.tests.predictions)
    return all(location.reading.preprocess == "mammogram" for location in located)


def _judged(run: ReadRun, sites: Sequence[SitePredictions]) -> list[JudgedImages]:
    return [JudgedImages(site.images, site.labels, site.probabilities, run.classes, run.task) for site in sites]


def _joined(parts: Sequence[JudgedImages]) -> JudgedImages:
    """The images of several sites together."""
    return replace(
        parts[0],
        images=np.concatenate([part.images for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        probabilities=np.concatenate([part.probabilities for part in parts]),
    )


def _sheets(predictions: SitePredictions, judged: JudgedImages, model: str) -> dict[str, Figure]:
    # Of these alone the same ones are chosen again: maps are computed for what is shown.
    shown = judged.at(np.unique(np.concatenate(choose_samples(judged))))
    maps = prediction_maps(predictions.model, to_tensor(shown.images))
    title = f"{predictions.site}, {len(predictions.labels)} test images, model of {model}"
    return {
        f"samples_{predictions.site}": sample_figure(shown, title),
        f"grad_cam_{predictions.site}": sample_figure(shown, title, maps),
        f"failures_{predictions.site}": failure_figure(judged, f"{predictions.site}, model of {model}"),
    }


def _plane(sites: Sequence[SitePredictions]) -> dict[str, Figure]:
    """Embeddings of all sites' test images, and what does not depend on the projection below it."""
    names = np.array([site.site for site in sites for _ in site.labels], np.str_)
    if len(names) <= PERPLEXITY or len(sites) < 2:
        return {}
    embedded = [Forward(split_network(site.model).encoder)(to_tensor(site.images)) for site in sites]
    values = torch.cat(embedded).numpy()
    malignant = np.concatenate([site.labels for site in sites]) == 1
    caption = f"silhouette of the sites {site_silhouette(values, names):.2f}"
    return {"embeddings": plane_figure(plane_of(values, seed=1), names, malignant, caption)}
