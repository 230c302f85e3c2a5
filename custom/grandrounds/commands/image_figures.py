"""Figures that need a run's images and show them: single cases, what the model looks at, and how it places them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grandrounds.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from grandrounds.reporting.validation import SitePredictions


def image_drawings(run: Path, sites_dir: Path) -> dict[str, Figure]:
    """Sheets of each site's test cases, without and with Grad-CAM, and the plane of embeddings.

    Args:
        run: the workspace of a finished run with one model for all.
        sites_dir: the partition that it had.

    Raises:
        ConfigurationError: if the run has no selected model.
        GrandRoundsError: if the run or the sites' images are not as they must be.
    """
    from grandrounds.reporting.record import read_run
    from grandrounds.reporting.validation import site_predictions

    found = read_run(run, run.absolute().name)
    if found.weights is None or found.model != "common":
        raise ConfigurationError(
            f"--sites-dir: {run} has no model for all sites to show cases of: it is not finished, or every site kept its own"
        )
    drawn: dict[str, Figure] = {}
    sites = list(site_predictions(found, sites_dir, "test"))
    for site in sites:
        drawn |= _sheets(site, found.classes)
    if len(found.classes) == 2:
        drawn |= _plane(sites)
    return drawn


def _sheets(found: SitePredictions, classes: Sequence[str]) -> dict[str, Figure]:
    import numpy as np

    from grandrounds.data.augment import to_tensor
    from grandrounds.evaluation.explanations import prediction_maps
    from grandrounds.evaluation.sample_sheet import choose_samples, sample_figure

    # Of these alone the same ones are chosen again: maps are computed for what is shown.
    rows = np.unique(np.concatenate(choose_samples(found.labels, found.probabilities)))
    shown = (found.images[rows], found.labels[rows], found.probabilities[rows], classes)
    maps = prediction_maps(found.model, to_tensor(found.images[rows]))
    return {f"samples_{found.site}": sample_figure(*shown), f"grad_cam_{found.site}": sample_figure(*shown, maps)}


def _plane(sites: Sequence[SitePredictions]) -> dict[str, Figure]:
    """Embeddings of all sites' test images, and what does not depend on the projection below it."""
    import numpy as np
    import torch

    from grandrounds.data.augment import to_tensor
    from grandrounds.evaluation.domain_probe import PERPLEXITY, plane_of, site_silhouette
    from grandrounds.evaluation.embedding_figures import plane_figure
    from grandrounds.models.split import embeddings_and_penultimate

    names = np.array([found.site for found in sites for _ in found.labels], np.str_)
    if len(names) <= PERPLEXITY or len(sites) < 2:
        return {}
    with torch.no_grad():
        embedded = [embeddings_and_penultimate(found.model, to_tensor(found.images))[0] for found in sites]
    values = torch.cat(embedded).numpy()
    malignant = np.concatenate([found.labels for found in sites]) == 1
    caption = f"silhouette of the sites {site_silhouette(values, names):.2f}"
    planes = {"embedding": plane_of(values, seed=1)}
    return {"embeddings": plane_figure(planes, names.tolist(), malignant, captions={"embedding": caption})}
