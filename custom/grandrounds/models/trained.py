"""What a run has trained, as a whole network."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from grandrounds.errors import ConfigurationError, DataError
from grandrounds.models.adaptation import MIN_STATISTICS_IMAGES, site_statistics
from grandrounds.models.norm_layers import use_statistics, whole_state
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import SITE_NORM, ModelSpec

Images = tuple[NDArray[np.uint8], NDArray[np.integer]]
"""Images ``(images, height, width, channels)``, and which of them count for :func:`~.adaptation.site_statistics`."""


def load_trained(spec: ModelSpec, path: Path, seed: int | None, images: Images | None = None) -> nn.Module:
    """Build a network and load what a run has trained; every entry must be there and fit.

    Frozen layers come from the weights that the run started from, or from its seed. They are layers like the others here,
    see :meth:`ModelSpec.as_whole`.

    Args:
        spec: of the run's network.
        path: of the trained entries.
        seed: of the run.
        images: of the site or device that the model is for; only ``problem.norm=site`` needs them.

    Raises:
        ConfigurationError: if the file cannot be read or is of another network, or images are needed and there are none.
        DataError: if the images are too few.
    """
    seed = seed or 0
    model = build_model(spec, seed)
    if spec.norm == SITE_NORM:
        use_statistics(model, site_statistics(spec, seed, *_enough(path, images)))
    try:
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except (OSError, RuntimeError, EOFError, LookupError, ValueError, TypeError, pickle.UnpicklingError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigurationError(
            f"{path} is no {spec.backbone} with {spec.classes} classes as its run's summary says ({reason}); "
            "name a model that this run has written"
        ) from error
    if spec.has_frozen:
        trained, model = whole_state(model), build_model(spec.as_whole(), seed)
        model.load_state_dict(trained, strict=False)
    return model.eval()


def trained_models(spec: ModelSpec, path: Path, seed: int | None) -> Callable[[Images], nn.Module]:
    """What gives the trained model for a site from its images: one for all sites unless ``problem.norm=site``.

    Raises:
        ConfigurationError: as of :func:`load_trained`.
    """
    if spec.norm == SITE_NORM:
        return lambda images: load_trained(spec, path, seed, images)
    model = load_trained(spec, path, seed)
    return lambda images: model


def _enough(path: Path, images: Images | None) -> Images:
    if images is None:
        raise ConfigurationError(
            f"{path} has no statistics of batch norm: with problem.norm=site they belong to a site, which has its own model "
            "in its folder of the run (common.pt); export it for a site with --site and --sites-dir"
        )
    if len(images[1]) < MIN_STATISTICS_IMAGES:
        raise DataError(
            f"{path} was trained with problem.norm=site and takes the statistics of the images: it needs at least "
            f"{MIN_STATISTICS_IMAGES} of one device, got {len(images[1])}"
        )
    return images
