"""Predictions of a run's model for images that belong to no partition."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from grandrounds.checks import as_path, reraised_as
from grandrounds.console.output import notes, say
from grandrounds.csv_files import csv_cells, write_csv
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
from grandrounds.remedies import missing
from grandrounds.reporting.external.prediction import Ensemble, trained_model
from grandrounds.reporting.external.result import appearance_of
from grandrounds.reporting.runs import decoded_images

if TYPE_CHECKING:
    import pandas as pd

Images = NDArray[np.uint8]
Object = Images | torch.Tensor | Image.Image
Decoded = tuple[list[str], Images, Sequence[Sequence[int]]]
"""Names, squares, and height and width of each image before."""
Predictable = str | Path | Object | Iterable[str | Path] | Sequence[Object]
"""What :meth:`grandrounds.Run.predict` takes; a MONAI tensor is one of torch."""
READABLE = (torch.uint8, torch.float16, torch.float32, torch.float64)
_OBJECTS = "or an 8-bit array, a tensor or a PIL image, or a list of one kind"


def predict_with(
    run: Path, images: Predictable, description: Mapping[str, Any], ensemble: Ensemble = False
) -> tuple[list[str], NDArray[np.float64], NDArray[np.int64]]:
    """Predictions of a run's selected model, or by the mean probabilities of its sites' models.

    Args:
        run: its workspace.
        images: files or objects, see :meth:`grandrounds.Run.predict`.
        description: of the partition that the run trained on; its ``windows``, ``preprocess`` and ``bits`` prepare files.
        ensemble: see :meth:`grandrounds.Run.predict`.

    Returns:
        Names of the images, probabilities of shape ``(images, classes)``, of findings each for itself, and the predicted
        labels.

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
    predicted = [predict(model, inputs, rows, problem.kind, problem.test_view) for model in models]
    risks, decisions = (np.mean([one.double().numpy() for one in of], axis=0) for of in zip(*predicted, strict=True))
    return names, risks, problem.kind.decide(decisions)


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
    import pandas as pd

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
    single = isinstance(images, str | bytes | os.PathLike | Image.Image)
    given: list[Any] = [images] if single else [*_items(images)]
    kinds = {_kind(image) for image in given}
    if kinds == {Image.Image}:
        with TemporaryDirectory() as folder:  # read like files: turned, with their palette and depth
            paths = [_saved(image, Path(folder) / f"{number}.png") for number, image in enumerate(given)]
            return [path.stem for path in paths], *_files(paths, problem, description)[1:]
    if kinds == {np.ndarray}:
        return _joined([_arrays(_channels_last(image)[None], problem) for image in given])
    return _files([as_path(image, "an image", _OBJECTS) for image in given], problem, description)


def _items(images: Any) -> Iterator[Any]:
    """The images of a list, a data set or a loader of batches, whose items may be pairs with labels or dictionaries."""
    sized = hasattr(images, "__getitem__") and hasattr(images, "__len__") and not hasattr(images, "iloc")
    if isinstance(images, Mapping):
        images = [images]
    elif hasattr(images, "columns") or not (sized or hasattr(images, "__iter__")):
        as_path(images, "an image", _OBJECTS)
    for item in (images[number] for number in range(len(images))) if sized else images:
        found: Any = (
            item.get("image") if isinstance(item, Mapping) else item[0] if isinstance(item, tuple | list) else item
        )
        batch = isinstance(found, torch.Tensor | np.ndarray) and found.ndim == 4
        yield from found if batch else [found]


def written_dataset(dataset: Any, folder: Path, classes: Sequence[str] | None) -> Path:
    """Write a data set's images as PNG and their table; see :meth:`grandrounds.Sites.from_dataset`.

    Raises:
        ConfigurationError: if the folder has something else, or an item is no pair and no dictionary with image and label.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigurationError(f"{folder} is not empty; name a new folder for the images of the data set")
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, str]] = []
    for number in range(len(dataset)):
        row = _row(dataset[number], number)
        name, label, image = f"{number:06}.png", row["label"], row.pop("image")
        where = f"item {number} of the data set: expected an array (height, width, 3) or a tensor (3, height, width)"
        with reraised_as(ConfigurationError, TypeError, where=where):
            shown = image if isinstance(image, Image.Image) else Image.fromarray(_channels_last(image))
        _saved(shown, folder / "images" / name)
        whole = getattr(label, "item", lambda label=label: label)()
        row["label"] = classes[whole] if classes and isinstance(whole, int) else whole
        plain = {key: str(value) for key, value in row.items() if isinstance(value, str | int | float)}
        rows.append({"image": name, **plain})
    header = list(dict.fromkeys(key for row in rows for key in row))
    write_csv(folder / "images.csv", header, ([row.get(key, "") for key in header] for row in rows))
    return folder / "images.csv"


def _row(item: Any, number: int) -> dict[str, Any]:
    """The image, the label and the further columns of an item of a data set."""
    pair = dict(zip(("image", "label"), item, strict=False)) if isinstance(item, tuple | list) else {}
    row = dict(item) if isinstance(item, Mapping) else pair
    if "image" not in row or "label" not in row:
        raise ConfigurationError(
            f"item {number} of the data set must be a pair (image, label) or a dictionary with these"
        )
    return row


def _joined(images: Sequence[Decoded]) -> Decoded:
    names = [str(number) for number in range(len(images))]
    return names, np.concatenate([squares for _, squares, _ in images]), [shapes[0] for *_, shapes in images]


def _kind(image: object) -> type:
    """What is read in the same way."""
    if isinstance(image, np.ndarray | torch.Tensor):
        return np.ndarray
    return Image.Image if isinstance(image, Image.Image) else type(image)


def _channels_last(images: Images | torch.Tensor) -> Images:
    if isinstance(images, torch.Tensor) and (images.layout != torch.strided or images.dtype not in READABLE):
        raise _refused(images)
    if np.issubdtype(np.asarray(images[:0]).dtype, np.floating):
        images = _eight_bits(images)
    if isinstance(images, np.ndarray):
        return images
    array: Images = np.asarray(images.cpu().numpy())
    if array.ndim in (3, 4) and array.shape[-3] in (1, 3) and array.shape[-1] != 3:
        array = np.moveaxis(array, -3, -1)
        array = array[..., 0] if array.shape[-1] == 1 else array
    return array


def _eight_bits(images: Images | torch.Tensor) -> Images | torch.Tensor:
    """Images whose values are from 0 to 1 as bytes; of a MONAI tensor, without what it knows of itself."""
    values = images if isinstance(images, np.ndarray) else torch.as_tensor(images.detach().cpu().numpy())
    if not (values.size if isinstance(values, np.ndarray) else values.numel()):
        return values
    lowest, highest = float(values.min()), float(values.max())
    if not 0 <= lowest <= highest <= 1:
        raise ConfigurationError(
            f"images of decimal numbers must have values from 0 to 1, got {lowest:g} to {highest:g}; scale them, without "
            "subtracting a mean"
        )
    if isinstance(values, np.ndarray):
        return np.rint(values * 255).astype(np.uint8)
    return (values * 255).round().to(torch.uint8)


def _refused(images: Images | torch.Tensor) -> ConfigurationError:
    kind = str(images.dtype).removeprefix("torch.")
    return ConfigurationError(
        "images must be 8-bit arrays of shape (n, height, width) or (n, height, width, 3), values 0 to 255, or tensors of "
        "shape (n, channels, height, width), 8-bit or from 0 to 1; got "
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
        say(notes(), f"{root}: {account(found.facts()['import'])}")
    return list(found.used)


def _files(given: Sequence[Path], problem: Problem, description: Mapping[str, Any]) -> Decoded:
    for path in given:
        if not path.exists():
            raise DataError(missing(path, "images, or a folder or archive of images"))
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
    size, channels, sizing = problem.image_size, problem.channels, problem.preprocessing
    with decoded_images() as cache:
        decoded = open_cache(names, root, size, channels, cache, 1.0, reading, sizing)
        if decoded.quarantined:
            raise DataError(f"{root}: an image cannot be predicted: {decoded.quarantined[0][2]}")
        return shown, np.array(decoded.images), decoded.originals
