"""What a run has trained: as a whole network, and as the start of another run."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from grandrounds.errors import ConfigurationError, DataError
from grandrounds.files import file_digest
from grandrounds.models.adaptation import site_statistics
from grandrounds.models.norm_layers import use_statistics, whole_state
from grandrounds.models.pretrained import named_file
from grandrounds.models.registry import build_model
from grandrounds.models.split import head_name
from grandrounds.models.weights_content import CLASS_LIST, read_content, read_weights
from grandrounds.protocol.problem import MIN_STATISTICS_IMAGES, SITE_NORM, ModelSpec

Images = tuple[NDArray[np.uint8], NDArray[np.integer]]
"""Images ``(images, height, width, channels)``, and which of them count for :func:`~.adaptation.site_statistics`."""
RIDGE = "ridge"
"""The head in closed form of the run's own sites: a simulation computes it, elsewhere a file of this name has it."""
START_VARIABLE = "GRANDROUNDS_START"
"""Names the file of the ridge head that a simulation has computed."""
_NAMED_ENTRIES = 3


class SavedNetwork(NamedTuple):
    """A trained network on disk: how it is built, the file of its entries, and the seed of the run."""

    spec: ModelSpec
    path: Path
    seed: int | None


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
            f"{path} is no {spec.backbone} with {spec.classes} classes as the JSON file beside it says ({reason}); "
            "name a model that this run has written, with its own description"
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


def load_start(network: nn.Module, name: str, classes: Sequence[str]) -> str:
    """Load a run's trained entries into a network, in place; layers that the run had frozen stay as they are.

    Args:
        network: of the new run, with the same backbone and head, whose frozen layers have the same weights.
        name: of the weights folder, or ``ridge``.
        classes: of the new run; where the file says its own, they must be these, in this order.

    Returns:
        The file's SHA-256.

    Raises:
        ConfigurationError: if there is no such file, it is damaged, or it is of another network or other classes.
    """
    path = _start_file(name)
    state, _ = read_weights(path)
    known = read_content(path).get(CLASS_LIST)
    if isinstance(known, list) and known != list(classes):
        raise ConfigurationError(
            f"controller.start_from: the weights {name!r} are of classes {known}, and the problem's are {list(classes)}: an "
            "output would mean another class; start from a run with the same classes in the same order, or leave it out"
        )
    own, prefix = network.state_dict(), f"{head_name(network)}."
    other = [entry for entry, value in state.items() if entry not in own or not _fits(value, own[entry])]
    other += [entry for entry in own if entry.startswith(prefix) and entry not in state]
    if other:
        raise ConfigurationError(
            f"controller.start_from: the weights {name!r} are of another network than the problem's "
            f"({', '.join(sorted(other)[:_NAMED_ENTRIES])}): give problem.backbone, head and classes of the run that they "
            "come from, or leave start_from out"
        )
    network.load_state_dict(state, strict=False)
    return file_digest(path)


def _start_file(name: str) -> Path:
    if name != RIDGE:
        return named_file(name).path
    if given := os.environ.get(START_VARIABLE):
        return Path(given)
    try:
        return named_file(name).path
    except ConfigurationError as error:
        raise ConfigurationError(
            f"controller.start_from=ridge: {error}; it is the selected.pt of the job ridge on the same network and classes, "
            "and --preset scratch needs none"
        ) from error


def _fits(given: Tensor, own: Tensor) -> bool:
    """Whether an entry can replace one of the network: a cast between whole numbers and others would change its values."""
    return given.shape == own.shape and given.is_floating_point() == own.is_floating_point()
