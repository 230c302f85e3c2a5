"""Predictions of a run's model for images that belong to no partition."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from grandrounds.data.found import look_at, place_at
from grandrounds.data.images.cache import open_cache
from grandrounds.data.images.files.reading import Reading
from grandrounds.data.images.readers import open_images
from grandrounds.data.images.sizing import SIZINGS
from grandrounds.data.importing import Import, account
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.evaluation.external import predict, tensors_of
from grandrounds.models.trained import load_trained
from grandrounds.protocol.problem import Problem
from grandrounds.reporting.external.trained import trained_model
from grandrounds.reporting.predictions import decoded_images

Images = NDArray[np.uint8]


def predict_with(
    run: Path, images: Images | str | Path | Sequence[str | Path], description: Mapping[str, Any]
) -> tuple[list[str], NDArray[np.float64]]:
    """Probabilities of a run's selected model.

    Args:
        run: its workspace.
        images: a file, a folder, several files, or arrays, see :meth:`grandrounds.Run.predict`.
        description: of the partition that the run trained on; its ``windows``, ``preprocess`` and ``bits`` prepare files.

    Returns:
        Names of the images, and probabilities of shape ``(images, classes)``, of findings each for itself.

    Raises:
        ConfigurationError: if the run has no model, or arrays are not 8-bit images.
        DataError: if a file is missing or cannot be read.
    """
    trained = trained_model(run)
    problem = trained.problem
    names, pixels = _arrays(images, problem) if isinstance(images, np.ndarray) else _files(images, problem, description)
    rows = np.arange(len(names))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_trained(problem.model_spec(pretrained=False), trained.weights, trained.seed, (pixels, rows)).to(device)
    found = predict(model, tensors_of(pixels, device), rows, problem.kind, problem.test_view).double().numpy()
    return names, found


def _arrays(images: Images, problem: Problem) -> tuple[list[str], Images]:
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] != 3):
        raise ConfigurationError(
            "images must be 8-bit arrays of shape (n, height, width) or (n, height, width, 3), got "
            f"{images.dtype} of shape {images.shape}"
        )
    if not len(images):
        raise ConfigurationError("there is no image to predict")
    sizing = SIZINGS[problem.preprocessing]
    squares = [sizing.square(Image.fromarray(image), problem.image_size, problem.channels) for image in images]
    return [str(number) for number in range(len(images))], np.stack(squares)


def _names(root: Path) -> list[str]:
    """The images of a folder or archive, by their bytes; a warning says what else is there."""
    place = place_at(root)
    if place is None:
        with open_images(root) as reader:
            return reader.names()
    found = Import("files", *look_at(place))
    if not found.used:
        raise DataError(f"{root} has no image that can be used ({found.found} files of other kinds)")
    if found.left_out:
        warnings.warn(f"{root}: {account(found.facts()['import'])}", UserWarning, stacklevel=5)
    return list(found.used)


def _files(
    images: str | Path | Sequence[str | Path], problem: Problem, description: Mapping[str, Any]
) -> tuple[list[str], Images]:
    given = [Path(images)] if isinstance(images, str | Path) else [Path(path) for path in images]
    for path in given:
        if not path.exists():
            raise DataError(f"{path} does not exist; name images, or a folder or archive of images")
    if not given:
        raise ConfigurationError("there is no image to predict")
    if len(given) == 1 and (given[0].is_dir() or given[0].suffix in (".zip", ".npz", ".gz")):
        root = given[0]
        names = shown = _names(root)
    else:
        whole = [path.absolute() for path in given]
        root = Path(os.path.commonpath([path.parent for path in whole]))
        names = [path.relative_to(root).as_posix() for path in whole]
        shown = [str(path) for path in given]
    reading = Reading.of(description, "partition.json")
    with decoded_images() as cache:
        decoded = open_cache(
            names,
            root,
            problem.image_size,
            problem.channels,
            cache,
            0.0,
            reading,
            problem.preprocessing,
        )
        return shown, np.array(decoded.images)
