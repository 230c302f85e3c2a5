"""Everything that is said of a model's predictions at one or more places, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.calibration import calibration_errors, reliability_points
from grandrounds.evaluation.confidence import top_confidence
from grandrounds.evaluation.grouping import Grouping, group_scores, summed_probabilities
from grandrounds.evaluation.metrics import classification_metrics
from grandrounds.evaluation.per_class import per_class
from grandrounds.evaluation.selective import coverage_at_risk, risk_coverage
from grandrounds.evaluation.unseen import PlacePredictions

Samples = dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]


def scores(labels: NDArray[np.integer], probabilities: NDArray[np.floating]) -> dict[str, float]:
    """All scores of a set of predictions.

    Args:
        labels: true classes, shape ``(samples,)``, integers in [0, classes).
        probabilities: predictions (not logits), shape ``(samples, classes)``; rows sum to one.

    Returns:
        The metrics of :func:`~grandrounds.evaluation.metrics.classification_metrics`, and ``ece``, ``mce``, ``risk`` (at
        full coverage), ``aurc`` and ``coverage_at_risk_0.1``.

    Raises:
        ValueError: if there is no sample, the shapes do not fit together, a label is no class, or a row is no
            distribution.
    """
    metrics = classification_metrics(labels, probabilities)
    confidence, correct = top_confidence(labels, probabilities)
    # A float32 softmax may sum to a little more than one.
    confidence = confidence.clip(max=1)
    errors = calibration_errors(reliability_points(confidence, correct))
    curve = risk_coverage(confidence, correct)
    return metrics | {
        "ece": errors.ece,
        "mce": errors.mce,
        "risk": curve.full_coverage_risk,
        "aurc": curve.area,
        "coverage_at_risk_0.1": coverage_at_risk(curve, 0.1),
    }


def report(
    places: Mapping[str, PlacePredictions],
    classes: Sequence[str],
    grouping: Grouping | None = None,
    labels_are_groups: bool = False,
) -> dict[str, Any]:
    """Report on predictions for several places.

    Args:
        places: predictions by place, each with at least one.
        classes: the model's vocabulary.
        grouping: of the classes, if groups are wanted too.
        labels_are_groups: whether the labels are indices of groups; nothing is said of classes then.

    Returns:
        ``labels`` (``classes`` or ``groups``: what ``places``, ``mean`` and ``pooled`` are scores of), ``places``
        (:func:`scores` of each), their ``mean``, ``pooled`` (of all samples together), ``classes`` (by name: ``places``
        that have it, ``mean`` over them and ``pooled``) and, with a grouping, ``groups``: precision, recall and F1 of
        each group over all samples by reading, and ``scores`` of the summed probabilities.

    Raises:
        ValueError: if there is no place, groups are labels but there is no grouping, or arrays do not fit together.
    """
    if labels_are_groups and grouping is None:
        raise ValueError("labels are groups, but there is no grouping")
    samples = {place: (found.labels, found.probabilities) for place, found in places.items()}
    result: dict[str, Any] = {"labels": "classes"}
    if not labels_are_groups:
        result["classes"] = _of_classes(samples, classes)
    if grouping is not None:
        by_group = samples if labels_are_groups else _relabelled(samples, grouping)
        labels, probabilities = _joined(by_group)
        summed = {place: (true, summed_probabilities(found, grouping)) for place, (true, found) in by_group.items()}
        result["groups"] = {
            **{
                reading: {group: counted._asdict() for group, counted in of_group.items()}
                for reading, of_group in group_scores(labels, probabilities, grouping).items()
            },
            "scores": scores(*_joined(summed)),
        }
        if labels_are_groups:
            result["labels"], samples = "groups", summed
    of_places = {place: scores(*found) for place, found in samples.items()}
    return result | {"places": of_places, "mean": _mean(list(of_places.values())), "pooled": scores(*_joined(samples))}


def _relabelled(samples: Samples, grouping: Grouping) -> Samples:
    return {place: (grouping.group_of[labels], found) for place, (labels, found) in samples.items()}


def _joined(samples: Samples) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    labels, probabilities = zip(*samples.values(), strict=True)
    return np.concatenate(labels), np.concatenate(probabilities)


def _of_classes(samples: Samples, classes: Sequence[str]) -> dict[str, Any]:
    table = per_class(samples)
    rows = zip(classes, table.places, table.mean, table.pooled, strict=True)
    return {
        name: {"places": places, "mean": mean._asdict(), "pooled": pooled._asdict()}
        for name, places, mean, pooled in rows
    }


def _mean(of_places: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Unweighted mean of each score; ``n`` is the sum."""
    mean = {name: fmean(entry[name] for entry in of_places) for name in of_places[0]}
    return mean | {"n": sum(entry["n"] for entry in of_places)}
