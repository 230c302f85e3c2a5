"""A run's model on the validation images of its sites, where these are on this machine: for choosing thresholds."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from grandrounds.data.site import SiteData, load_site_data, locate_dataset
from grandrounds.evaluation.cases import Cases, cases_of
from grandrounds.evaluation.predict import predict
from grandrounds.evaluation.unseen import load_trained
from grandrounds.federation.problem import Problem
from grandrounds.federation.site_data import CACHE_VARIABLE
from grandrounds.reporting.run import Run


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
    if run.weights is None or run.model != "common":
        return {}
    problem = Problem.from_dict(run.problem)
    model = load_trained(problem.model_spec(pretrained=False), run.weights)
    found = {}
    for site in run.places:
        data = site_images(site, problem, sites_dir)
        rows = data.rows("val")
        if len(rows):
            probabilities = predict(model, data.images, rows, torch.device("cpu")).double().numpy()
            found[site] = cases_of(data.labels[rows], probabilities, [data.groups[row] for row in rows])
    return found


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
