"""External evaluation: a trained model's predictions for test images, of sites that took part or not, and their scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from grandrounds.data.batches import eval_batches
from grandrounds.data.images.cache import open_cache
from grandrounds.data.images.tensors import to_tensor
from grandrounds.data.manifest import Record, read_manifest
from grandrounds.data.site import DatasetLocation
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.evaluation.bootstrap import questions_of
from grandrounds.evaluation.calibration import confidence_metrics
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.evaluation.per_class import (
    ARGMAX,
    SUMMED,
    Grouping,
    group_predictions,
    group_scores,
    per_class,
    summed_probabilities,
)
from grandrounds.evaluation.record import EvalRecord
from grandrounds.files import write_csv
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE

BATCH = 256


@torch.inference_mode()
def predict(model: nn.Module, inputs: Callable[[np.ndarray], Tensor], rows: np.ndarray, task: Task = SINGLE) -> Tensor:
    """Predict without augmentation and with the model in evaluation mode; its mode is restored.

    Args:
        model: gives logits of shape ``(batch, classes)``.
        inputs: what the model takes for these rows, on its device.
        rows: which images, int64, shape ``(n,)``.
        task: what labels are.

    Returns:
        Probabilities, float32 on the CPU, shape ``(n, classes)``; ``(0, 0)`` for no rows.
    """
    training = model.training
    model.eval()
    parts = [task.probabilities(model(inputs(batch)).float()).cpu() for batch in eval_batches(rows, BATCH)]
    model.train(training)
    return torch.cat(parts) if parts else torch.zeros(0, 0)


def tensors_of(images: np.ndarray, device: torch.device | str = "cpu") -> Callable[[np.ndarray], Tensor]:
    """The inputs of :func:`predict` from uint8 images, shape ``(images, height, width, channels)``."""
    return lambda rows: to_tensor(images[rows], device)


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """The readable test images of a site that have a label, and how many could not be read.

    Attributes:
        images: uint8, shape ``(n, size, size, channels)``.
        labels: index into the vocabulary, int64, shape ``(n,)``; of findings 1, 0 or -1, shape ``(n, findings)``.
        groups: the patient or lesion of each image, where it is known.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    names: tuple[str, ...]
    unreadable: int
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class ImagePredictions:
    """A model's predictions for a site's test images.

    Attributes:
        labels: index into the vocabulary of the labels, int64, shape ``(n,)``; of findings as of :class:`LabelledImages`.
        probabilities: of the model's classes, float64, shape ``(n, classes)``.
        groups: the patient or lesion of each image, where it is known.
    """

    names: tuple[str, ...]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    groups: tuple[str, ...] = ()


def labels_are_groups(locations: Mapping[str, DatasetLocation], classes: Sequence[str], groups: Sequence[str]) -> bool:
    """Whether the sites' test images are labelled with groups of classes and not with classes.

    Labels that could be either are classes; so are labels that are neither, which a reader of classes will refuse.
    """
    labels = {r.label for location in locations.values() for r in _test_records(location.manifest, None, SINGLE)}
    return bool(labels) and not labels <= set(classes) and labels <= set(groups)


def load_test_images(
    site: str,
    location: DatasetLocation,
    vocabulary: Sequence[str],
    image_size: int,
    channels: int,
    cache_dir: Path,
    task: Task = SINGLE,
) -> LabelledImages:
    """Decode the labelled test images of a site, square of ``image_size`` pixels; its other images are not read.

    The ``vocabulary`` of the labels is the model's classes, or groups of classes; ``cache_dir`` keeps
    decoded images.

    Raises:
        DataError: if a label is unknown, no test image has a label, or too many of them cannot be read.
    """
    records = _test_records(location.manifest, vocabulary, task)
    if not records:
        raise DataError(
            f"{site}: {location.manifest} has no labelled image in split test; the column split must say test for the "
            "images to predict"
        )
    names = [record.image for record in records]
    reading = (location.max_unreadable, location.windows, location.preprocess)
    cache = open_cache(names, location.root, image_size, channels, cache_dir, *reading)
    readable = np.ones(len(names), np.bool_)
    readable[[row for row, _, _ in cache.quarantined]] = False
    rows = np.flatnonzero(readable)
    labels = task.read_labels([one.label for one in records], vocabulary)
    images = cache.images if readable.all() else cache.images[rows]
    groups = tuple(records[row].group for row in rows)
    return LabelledImages(images, labels[rows], tuple(names[row] for row in rows), len(cache.quarantined), groups)


def predict_images(
    model: nn.Module, test: LabelledImages, device: torch.device, task: Task = SINGLE
) -> ImagePredictions:
    """Predict all images of a site.

    Raises:
        ConfigurationError: if a prediction is not finite.
    """
    found = predict(model, tensors_of(test.images, device), np.arange(len(test.names)), task).double().numpy()
    if not np.isfinite(found).all():
        raise ConfigurationError("the model gives predictions that are not finite; it has diverged, use another one")
    return ImagePredictions(test.names, test.labels, found, test.groups)


def write_predictions(
    path: Path,
    sites: Mapping[str, ImagePredictions],
    classes: Sequence[str],
    vocabulary: Sequence[str],
    grouping: Grouping | None = None,
) -> None:
    """Write ``site, image, label, predicted, probability_CLASS...`` as CSV, atomically.

    Of findings the columns are ``site, image, label_FINDING..., probability_FINDING...``, as sites write them.

    ``vocabulary`` is that of the labels, ``classes`` the model's. A grouping adds the columns ``group_argmax`` and
    ``group_summed``, both readings of the prediction.
    """
    if any(found.labels.ndim > 1 for found in sites.values()):
        header = [f"{kind}_{name}" for kind in ("label", "probability") for name in classes]
        lines = [
            [site, name, *("" if one < 0 else one for one in label), *(f"{value:.6f}" for value in row)]
            for site, found in sites.items()
            for name, label, row in zip(found.names, found.labels, found.probabilities, strict=True)
        ]
        write_csv(path, ["site", "image", *header], lines)
        return
    readings = [] if grouping is None else [ARGMAX, SUMMED]
    columns = [*(f"group_{reading}" for reading in readings), *(f"probability_{name}" for name in classes)]
    rows = []
    for site, found in sites.items():
        groups = _group_names(found, grouping) if grouping else [()] * len(found.names)
        for name, label, row, group in zip(found.names, found.labels, found.probabilities, groups, strict=True):
            predicted = classes[int(row.argmax())]
            rows.append([site, name, vocabulary[label], predicted, *group, *(f"{value:.6f}" for value in row)])
    write_csv(path, ["site", "image", "label", "predicted", *columns], rows)


def _group_names(found: ImagePredictions, grouping: Grouping) -> list[tuple[str, ...]]:
    readings = group_predictions(found.probabilities, grouping)
    return [
        tuple(grouping.names[group] for group in pair) for pair in zip(readings[ARGMAX], readings[SUMMED], strict=True)
    ]


def _test_records(manifest: Path, vocabulary: Sequence[str] | None, task: Task) -> list[Record]:
    return [r for r in read_manifest(manifest, vocabulary, task).records if r.split == "test" and r.label]


Samples = dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]


def scores(labels: NDArray[np.int64], probabilities: NDArray[np.floating]) -> dict[str, float]:
    """All scores of predictions (not logits), shape ``(samples, classes)``, for labels of shape ``(samples,)``.

    They are those of :func:`~grandrounds.evaluation.metrics.site_metrics`, which checks both, and of
    :func:`~grandrounds.evaluation.calibration.confidence_metrics`.
    """
    return site_metrics(SINGLE, labels, probabilities) | confidence_metrics(labels, probabilities)


def external_report(
    sites: Mapping[str, ImagePredictions],
    classes: Sequence[str],
    grouping: Grouping | None = None,
    labels_are_groups: bool = False,
) -> dict[str, Any]:
    """Score predictions for several sites.

    Args:
        sites: predictions by site, each with at least one.
        classes: the model's vocabulary.
        grouping: of the classes, if groups are wanted too.
        labels_are_groups: whether the labels are indices of groups; there are no scores of classes then.

    Returns:
        ``labels`` (``classes`` or ``groups``: what ``sites``, ``mean`` and ``pooled`` are scores of), ``sites``
        (:func:`scores` of each), their ``mean``, ``pooled`` (of all samples together), ``classes`` (by name: the number of
        ``sites`` that have it, ``mean`` over them and ``pooled``) and, with a grouping, ``groups``: precision, recall and
        F1 of each group over all samples by reading, and ``scores`` of the summed probabilities.

    Raises:
        ValueError: if there is no site, groups are labels but there is no grouping, or arrays do not fit together.
    """
    if labels_are_groups and grouping is None:
        raise ValueError("labels are groups, but there is no grouping")
    samples = {site: (found.labels, found.probabilities) for site, found in sites.items()}
    result: dict[str, Any] = {"labels": "classes"}
    if not labels_are_groups:
        result["classes"] = _of_classes(samples, classes)
    if grouping is not None:
        by_group = samples if labels_are_groups else {s: (grouping.group_of[y], p) for s, (y, p) in samples.items()}
        labels, probabilities = _joined(by_group)
        summed = {site: (true, summed_probabilities(found, grouping)) for site, (true, found) in by_group.items()}
        result["groups"] = {
            **{
                reading: {group: counted._asdict() for group, counted in of_group.items()}
                for reading, of_group in group_scores(labels, probabilities, grouping).items()
            },
            "scores": scores(*_joined(summed)),
        }
        if labels_are_groups:
            result["labels"], samples = "groups", summed
    of_sites = {site: scores(*found) for site, found in samples.items()}
    return result | {"sites": of_sites, "mean": _mean(list(of_sites.values())), "pooled": scores(*_joined(samples))}


def finding_report(task: Task, sites: Mapping[str, ImagePredictions], findings: Sequence[str]) -> dict[str, Any]:
    """Score predictions of findings for several sites.

    Returns:
        ``labels`` (``findings``), ``sites`` and ``pooled`` (see
        :func:`~grandrounds.evaluation.metrics.site_metrics`), the ``mean`` of each score over the sites
        that have it, and ``classes``: by finding the scores of all samples together, NaN without any.
    """
    of_sites = {site: site_metrics(task, found.labels, found.probabilities) for site, found in sites.items()}
    labels, probabilities = _joined({site: (found.labels, found.probabilities) for site, found in sites.items()})
    names = dict.fromkeys(name for scored in of_sites.values() for name in scored)
    mean = {name: fmean(scored[name] for scored in of_sites.values() if name in scored) for name in names}
    together = EvalRecord.of(task, findings, questions_of(task, labels, probabilities))
    classes = {
        name: {score: one.value for score, one in scores.items()}
        for name, scores in zip(findings, together.classes, strict=True)
    }
    return {
        "labels": "findings",
        "classes": classes,
        "sites": of_sites,
        "mean": mean | {"n": sum(scored["n"] for scored in of_sites.values())},
        "pooled": site_metrics(task, labels, probabilities),
    }


def _joined(samples: Samples) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    labels, probabilities = zip(*samples.values(), strict=True)
    return np.concatenate(labels), np.concatenate(probabilities)


def _of_classes(samples: Samples, classes: Sequence[str]) -> dict[str, Any]:
    table = per_class(samples)
    rows = zip(classes, table.sites, table.mean, table.pooled, strict=True)
    return {
        name: {"sites": sites, "mean": mean._asdict(), "pooled": pooled._asdict()} for name, sites, mean, pooled in rows
    }


def _mean(of_sites: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Unweighted mean of each score; ``n`` is the sum."""
    mean = {name: fmean(entry[name] for entry in of_sites) for name in of_sites[0]}
    return mean | {"n": sum(entry["n"] for entry in of_sites)}
