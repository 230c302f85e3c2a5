"""Predictions of a run's model for images that belong to no partition."""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image

from grandrounds.checks import as_path
from grandrounds.console.output import notes, say
from grandrounds.csv_files import csv_cells
from grandrounds.data.image_files import look_at, place_at
from grandrounds.data.images.cache import open_cache
from grandrounds.data.images.files.reading import Reading
from grandrounds.data.images.readers import open_images
from grandrounds.data.images.sizing import SIZINGS
from grandrounds.data.importing import Import, account
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.evaluation.prediction import predict, tensors_of
from grandrounds.federation.site.context import choose_device
from grandrounds.models.trained import load_trained
from grandrounds.protocol.problem import Problem
from grandrounds.reporting.external.appearance import appearance_of
from grandrounds.reporting.external.trained import Ensemble, trained_model
from grandrounds.reporting.predictions import decoded_images

Images = NDArray[np.uint8]
Object = Images | torch.Tensor | Image.Image
Decoded = tuple[list[str], Images, Sequence[Sequence[int]]]
"""Names, squares, and height and width of each image before."""
Predictable = str | Path | Object | Iterable[str | Path] | Sequence[Object]
"""What :meth:`grandrounds.Run.predict` takes; a MONAI tensor is one of torch."""
_OBJECTS = "or an 8-bit array, a tensor or a PIL image, or a list of one kind"


def predict_with(
    run: Path, images: Predictable, description: Mapping[str, Any], ensemble: Ensemble = False
) -> tuple[list[str], NDArray[np.float64]]:
    """Probabilities of a run's selected model, or the mean of those of its sites' models.

    Args:
        run: its workspace.
        images: files or objects, see :meth:`grandrounds.Run.predict`.
        description: of the partition that the run trained on; its ``windows``, ``preprocess`` and ``bits`` prepare files.
        ensemble: see :meth:`grandrounds.Run.predict`.

    Returns:
        Names of the images, and probabilities of shape ``(images, classes)``, of findings each for itself.

    Raises:
        ConfigurationError: if the run has no model, or arrays are not 8-bit images.
        DataError: if a file is missing or cannot be read.
    """
    trained = trained_model(run, ensemble)
    problem = trained.problem
    names, pixels, shapes = _decoded(images, problem, description)
    if unlike := appearance_of(trained.image_moments, [(pixels, shapes)]).unlike:
        say(notes(), unlike)
    rows = np.arange(len(names))
    device = choose_device("auto")
    models = (load_trained(*network, (pixels, rows)).to(device) for network in trained.networks)
    inputs = tensors_of(pixels, device)
    probabilities = [predict(model, inputs, rows, problem.kind, problem.test_view).double().numpy() for model in models]
    return names, np.mean(probabilities, axis=0)


def written_predictions(record: Path, model: str) -> pd.DataFrame:
    """What the sites of a run have written of their test images.

    Args:
        record: folder of the run's results.
        model: whose predictions, such as ``common``.

    Returns:
        A row for each image, with the columns ``site``, ``image``, label, prediction, probabilities and the number of the
        case at its site.

    Raises:
        DataError: if there are none: in a federation they stay at the sites.
    """
    frames = []
    for path in sorted(record.glob(f"*/predictions_{model}.csv")):
        with path.open(newline="", encoding="utf-8") as stream:
            header, *lines = map(csv_cells, csv.reader(stream))
        frame = pd.DataFrame(lines, columns=header)
        numbers = [name for name in header if name.startswith("probability_")]
        frame[numbers] = frame[numbers].astype(float)
        frame.insert(0, "site", path.parent.name)
        frames.append(frame)
    if not frames:
        raise DataError(f"{record} has no predictions_{model}.csv: in a federation predictions stay at the sites")
    return pd.concat(frames, ignore_index=True)


def _decoded(images: Predictable, problem: Problem, description: Mapping[str, Any]) -> Decoded:
    if isinstance(images, np.ndarray | torch.Tensor):
        arrays = _channels_last(images)
        is_one = arrays.ndim == 2 or (arrays.ndim == 3 and arrays.shape[2] == 3)
        return _arrays(arrays[None] if is_one else arrays, problem)
    given: list[Any] = [images]
    if isinstance(images, Sequence | Iterator | pd.Series) and not isinstance(images, str | bytes):
        given = list(images)
    kinds = {_kind(image) for image in given}
    if kinds == {Image.Image}:
        with TemporaryDirectory() as folder:  # read like files: turned, with their palette and depth
            paths = [_saved(image, Path(folder) / f"{number}.png") for number, image in enumerate(given)]
            return [path.stem for path in paths], *_files(paths, problem, description)[1:]
    if kinds == {np.ndarray}:
        return _joined([_arrays(_channels_last(image)[None], problem) for image in given])
    return _files([as_path(image, "an image", _OBJECTS) for image in given], problem, description)


def _joined(images: Sequence[Decoded]) -> Decoded:
    names = [str(number) for number in range(len(images))]
    return names, np.concatenate([squares for _, squares, _ in images]), [shapes[0] for *_, shapes in images]


def _kind(image: object) -> type:
    """What is read in the same way."""
    if isinstance(image, np.ndarray | torch.Tensor):
        return np.ndarray
    return Image.Image if isinstance(image, Image.Image) else type(image)


def _channels_last(images: Images | torch.Tensor) -> Images:
    if isinstance(images, np.ndarray):
        return images
    if images.dtype != torch.uint8 or images.layout != torch.strided:
        raise _refused(images)
    array: Images = np.asarray(images.cpu().numpy())
    if array.ndim in (3, 4) and array.shape[-3] in (1, 3) and array.shape[-1] != 3:
        array = np.moveaxis(array, -3, -1)
        array = array[..., 0] if array.shape[-1] == 1 else array
    return array


def _refused(images: Images | torch.Tensor) -> ConfigurationError:
    kind = str(images.dtype).removeprefix("torch.")
    return ConfigurationError(
        "images must be 8-bit arrays of shape (n, height, width) or (n, height, width, 3), values 0 to 255, got "
        f"{kind} of shape {tuple(images.shape)}"
    )


def _saved(image: Image.Image, path: Path) -> Path:
    try:
        image.save(path, "PNG", exif=image.getexif())
    except OSError as error:
        raise ConfigurationError(f"PIL image {path.stem} has mode {image.mode}; convert it to RGB or L") from error
    return path


def _arrays(images: Images, problem: Problem) -> Decoded:
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] != 3):
        raise _refused(images)
    if not len(images):
        raise ConfigurationError("there is no image to predict")
    sizing = SIZINGS[problem.preprocessing]
    squares = [sizing.square(Image.fromarray(image), problem.image_size, problem.channels) for image in images]
    return [str(number) for number in range(len(images))], np.stack(squares), [images.shape[1:3]] * len(images)


def _names(root: Path) -> list[str]:
    """The images of a folder or archive, by their bytes; a warning says what else is there."""
    place = place_at(root)
    if place is None:
        with open_images(root) as reader:
            return reader.names()
    found = Import("files", *look_at(place))
    if not found.used:
        raise DataError(f"{root} has no image that can be used ({account(found.facts()['import'])})")
    if found.left_out:
        warnings.warn(f"{root}: {account(found.facts()['import'])}", UserWarning, stacklevel=5)
    return list(found.used)


def _files(given: Sequence[Path], problem: Problem, description: Mapping[str, Any]) -> Decoded:
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
        return shown, np.array(decoded.images), decoded.originals
