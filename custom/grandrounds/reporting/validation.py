"""A run's model on images of its sites, where these are on this machine: to choose thresholds, to look at single cases."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from grandrounds.data.site import Part, SiteData, load_site_data, locate_dataset
from grandrounds.evaluation.cases import Cases, cases_of
from grandrounds.evaluation.external import load_trained, predict
from grandrounds.federation.site.data import CACHE_VARIABLE
from grandrounds.protocol.problem import Problem
from grandrounds.reporting.run import Run


class SitePredictions(NamedTuple):
    """What a run's model says of a split of a site's images.

    Attributes:
        site: whose images they are.
        images: shape ``(n, size, size, channels)``, 8 bit.
        labels: true classes, shape ``(n,)``.
        probabilities: of the classes, shape ``(n, classes)``.
        groups: the patient or lesion of each image.
        model: what has predicted them, in evaluation mode.
    """

    site: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    groups: list[str]
    model: nn.Module


def validation_cases(run: Run, sites_dir: Path) -> dict[str, Cases]:
    """Predictions of the selected model for each site's validation images.

    Args:
        run: with its model's weights; without them, or where each site has its own model, there is nothing to predict with.
        sites_dir: a folder with one folder per site, as the run had it.

    Returns:
        Cases by site; sites without validation images are left out.

    Raises:
        GrandRoundsError: if a site's data or the model are not as they must be.
    """
    return {
        found.site: cases_of(found.labels, found.probabilities, found.groups)
        for found in site_predictions(run, sites_dir, "val")
    }


def site_predictions(run: Run, sites_dir: Path, split: Part) -> Iterator[SitePredictions]:
    """Predict a split of each tested site with the selected model; arguments and errors as :func:`validation_cases`.

    Yields:
        Sites with labelled images in the split, one after the other.
    """
    if run.weights is None or run.model != "common":
        return
    problem = Problem.from_dict(run.problem)
    model = load_trained(problem.model_spec(pretrained=False), run.weights)
    for site in run.places:
        data = site_images(site, problem, sites_dir)
        rows = data.rows(split)
        if len(rows):
            probabilities = predict(model, data.images, rows, torch.device("cpu")).double().numpy()
            groups = [data.groups[row] for row in rows]
            yield SitePredictions(site, data.images[rows], data.labels[rows], probabilities, groups, model)


def site_images(site: str, problem: Problem, sites_dir: Path) -> SiteData:
    """A site's images, decoded as the run saw them.

    Raises:
        GrandRoundsError: if the site's data is not as it must be.
    """
    location = locate_dataset(site, problem.dataset, [sites_dir])
    with _cache() as cache:
        return load_site_data(location, problem.classes, problem.image_size, problem.channels, cache)


@contextmanager
def _cache() -> Iterator[Path]:
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        yield Path(named)
        return
    with tempfile.TemporaryDirectory(prefix="grandrounds-") as temporary:
        yield Path(temporary)
