"""A trained model's predictions for test images, of sites that took part or not."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from grandrounds.csv_files import write_csv
from grandrounds.data.images.files.reading import Reading
from grandrounds.data.images.preparation import Shape
from grandrounds.data.keys import comparison_key
from grandrounds.data.manifest import Record, read_manifest
from grandrounds.data.site import DatasetLocation
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.evaluation.grouping import GROUP_READINGS, Grouping, grouped_cases
from grandrounds.evaluation.prediction import predict, tensors_of
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """The readable test images of a site that have a label, and how many could not be read.

    Attributes:
        images: uint8, shape ``(n, size, size, channels)``.
        labels: index into the vocabulary, int64, shape ``(n,)``; of findings 1, 0 or -1, shape ``(n, findings)``.
        groups: the patient or lesion of each image, where it is known.
        shapes: height, width and channels of each image before resizing, where they are known.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    names: tuple[str, ...]
    unreadable: int
    groups: tuple[str, ...] = ()
    shapes: tuple[Shape, ...] = ()


@dataclass(frozen=True, eq=False)
class ImagePredictions:
    """A model's predictions for a site's test images.

    Attributes:
        labels: index into the vocabulary of the labels, int64, shape ``(n,)``; of findings as of :class:`LabelledImages`.
        probabilities: of the model's classes, float64, shape ``(n, classes)``.
        decisions: by which the labels are predicted, likewise.
        groups: the patient or lesion of each image, where it is known.
    """

    names: tuple[str, ...]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    decisions: NDArray[np.float64]
    groups: tuple[str, ...] = ()


def labels_are_groups(locations: Mapping[str, DatasetLocation], classes: Sequence[str], groups: Sequence[str]) -> bool:
    """Whether the sites' test images are labelled with groups of classes and not with classes.

    Labels that could be either are classes; so are labels that are neither, which a reader of classes will refuse.
    """
    labels = {r.label for location in locations.values() for r in _test_records(location, None, SINGLE)}
    return bool(labels) and not labels <= set(classes) and labels <= set(groups)


def load_test_images(
    site: str, location: DatasetLocation, problem: Problem, vocabulary: Sequence[str], cache_dir: Path
) -> LabelledImages:
    """Decode the labelled test images of a site in the problem's format; its other images are not read.

    The ``vocabulary`` of the labels is the problem's classes, or groups of classes; ``cache_dir`` keeps decoded images.

    Raises:
        DataError: if a label is unknown, no test image has a label, or too many of them cannot be read.
    """
    task = problem.kind
    try:
        records = _test_records(location, vocabulary, task)
    except DataError as error:
        named = {name for record in _test_records(location, None, task) for name in task.mentioned_in(record.label)}
        if named <= set(vocabulary):
            raise
        group = "if the labels are groups of classes that exclude each other, add --groups 'LABEL=CLASS,CLASS;...'"
        raise DataError(f"{error}; {group}; {_as_classes(named, location, problem)}") from error
    if not records:
        raise DataError(
            f"{site}: {location.manifest} has no labelled image in split test; the column split must say test for the "
            "images to predict"
        )
    names = [record.image for record in records]
    cache = location.decoded(names, problem, cache_dir)
    readable = np.ones(len(names), np.bool_)
    readable[cache.unreadable] = False
    rows = np.flatnonzero(readable)
    labels = task.read_labels([one.label for one in records], vocabulary)
    images = cache.images if readable.all() else cache.images[rows]
    groups = tuple(records[row].group for row in rows)
    shapes, shown = tuple(cache.originals[row] for row in rows), tuple(names[row] for row in rows)
    return LabelledImages(images, labels[rows], shown, len(cache.quarantined), groups, shapes)


def predict_images(
    model: nn.Module, test: LabelledImages, device: torch.device, task: Task = SINGLE, test_view: str | None = None
) -> ImagePredictions:
    """Predict all images of a site, see :func:`predict`.

    Raises:
        ConfigurationError: if a prediction is not finite.
    """
    predicted = predict(model, tensors_of(test.images, device), np.arange(len(test.names)), task, test_view)
    risks, decisions = (one.double().numpy() for one in predicted)
    if not np.isfinite([risks, decisions]).all():
        raise ConfigurationError("the model gives predictions that are not finite; it has diverged, use another one")
    return ImagePredictions(test.names, test.labels, risks, decisions, test.groups)


def write_predictions(
    path: Path,
    sites: Mapping[str, ImagePredictions],
    task: Task,
    classes: Sequence[str],
    vocabulary: Sequence[str],
    grouping: Grouping | None = None,
) -> None:
    """Write ``site, image`` and the task's columns as CSV, atomically, in the form in which sites write them.

    ``vocabulary`` is that of the labels, ``classes`` the model's. A grouping adds the columns ``group_argmax`` and
    ``group_summed``, both readings of the prediction.
    """
    header = [
        "site",
        "image",
        *task.prediction_header(classes),
        *(f"group_{name}" for name in GROUP_READINGS if grouping),
    ]
    rows = []
    for site, test in sites.items():
        decided = task.decide(test.decisions)
        readings = grouped_cases(test.labels, test.probabilities, decided, grouping) if grouping else {}
        images = zip(test.names, test.labels, test.probabilities, decided, strict=True)
        for row, (name, label, values, predicted) in enumerate(images):
            cells = task.prediction_cells(label, values.tolist(), predicted, classes)
            if grouping:
                cells[0] = vocabulary[label]
            groups = [grouping.names[reading.predicted[row]] for reading in readings.values()] if grouping else []
            rows.append([site, name, *cells, *groups])
    write_csv(path, header, rows)


def _as_classes(named: Collection[str], location: DatasetLocation, problem: Problem) -> str:
    """What gives the words of a manifest their classes: the command to type."""
    task, near = problem.kind, {comparison_key(name) for name in problem.classes}
    others = natural_sorted(name for name in named if comparison_key(name) not in near)
    odd = [word for word in others if set(word) & set(",=")]
    words = [f"label:{word}=CLASS" for word in others if word not in odd]
    table = "COPY" if odd else str(location.manifest)
    source = ["grandrounds", "import", table, "--root", str(location.root), "--scheme", "external"]
    options = ["--task", task.name, "--classes", ",".join(problem.classes), "--merge", ",".join(["label", *words])]
    out = f", with {' or '.join(('a class', *task.reserved))} for CLASS, or nothing where it is not known" * bool(words)
    edit = f" (write the class in place of {', '.join(map(repr, odd))} in a COPY of {location.manifest})" * bool(odd)
    reading = ", and its own --windows, --preprocess and --bits" * (location.reading != Reading())
    return (
        f"if they are other words for them, say so{edit}{out}{reading}: {shlex.join([*source, *options, '--out'])} DIR"
    )


def _test_records(location: DatasetLocation, vocabulary: Sequence[str] | None, task: Task) -> list[Record]:
    records = read_manifest(location.manifest, vocabulary, task, location.keys, split="test")
    return [record for record in records if record.split == "test" and record.label]
