"""Scores of models on a site's images, predictions as tables that stay there, and curves of several patients each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.images.decoding import image_digests
from grandrounds.data.site import SiteData
from grandrounds.evaluation.bootstrap import cases_of
from grandrounds.evaluation.counts import IMAGES, PATIENTS, finding_counts, site_counts
from grandrounds.evaluation.curves import (
    COUNTS,
    MINIMUM,
    SiteCurves,
    encode_counts,
    finding_curves,
    site_curves,
    write_curves,
)
from grandrounds.evaluation.external import predict
from grandrounds.evaluation.metrics import classification_metrics
from grandrounds.evaluation.multi_label.metrics import finding_cases, multi_label_metrics
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.store import SiteStore, copy_to_cpu
from grandrounds.models.norm import whole_state
from grandrounds.models.weights import chosen_intensities
from grandrounds.protocol.messages import COUNTS as COUNT_RELEASES
from grandrounds.protocol.messages import CURVES, Release, ReleaseKind, Result, State
from grandrounds.protocol.names import VALIDATION
from grandrounds.protocol.problem import SITE_NORM

COMMON = "common"


SCORE_RELEASES = {COUNT_RELEASES[VALIDATION]: ReleaseKind.COUNTS}
TEST_RELEASES = {name: ReleaseKind.CURVES for name in CURVES.values()} | {
    name: ReleaseKind.COUNTS for name in COUNT_RELEASES.values()
}
"""What may leave with the scores of a model, and with those of its test, by name."""


def score(network: nn.Module, rows: np.ndarray, context: SiteContext) -> tuple[dict[str, float], Tensor]:
    """Predict images and compare with the known labels.

    Args:
        network: as it shall be scored.
        rows: of the site's images.
        context: of the task.

    Returns:
        Metrics over the rows whose label is known, and probabilities of all rows, shape ``(rows, classes)``.
    """
    with context.autocast():
        probabilities = predict(network, lambda batch: context.views(batch, "none"), rows, context.problem.kind)
    known = context.data.known[rows]
    measure = multi_label_metrics if context.problem.multi else classification_metrics
    return measure(context.data.labels[rows][known], probabilities.numpy()[known]), probabilities


def evaluate_models(
    models: Mapping[str, State],
    load: Callable[[State], nn.Module],
    context: SiteContext,
    store: SiteStore,
    write_models: bool,
) -> Result:
    """Test models on the site's test images; predictions, and digests of all images, are written to the site's folder.

    Args:
        models: by name.
        load: the site's network with a state.
        context: of the task.
        store: of the site.
        write_models: whether the models themselves are written, too; with ``problem.norm=site`` they always are.

    Returns:
        Scores as ``<model>.<metric>``, and the curves and counts that may leave.
    """
    rows = context.data.rows("test")
    metrics: dict[str, float] = {}
    releases: dict[str, Release] = {}
    own_statistics = context.model_spec.norm == SITE_NORM
    for name, state in models.items():
        scores, probabilities = score(network := load(state), rows, context)
        metrics.update({f"{name}.{key}": value for key, value in scores.items()})
        store.write_predictions(f"predictions_{name}", *prediction_rows(context.data, rows, probabilities))
        if own_statistics:
            store.write_model(name, copy_to_cpu(whole_state(network)), _description(context))
        elif write_models:
            store.write_model(name, state, _description(context))
        if name in CURVES:
            curves = curve_counts(context.data, rows, probabilities)
            write_curves(store.folder / f"{CURVES[name]}.json", curves, context.data.classes)
            releases |= _curves(name, curves, context.data)
            releases |= class_counts(name, context.data, rows, probabilities)
    if COMMON in models:
        releases |= _predict_validation(load(models[COMMON]), context, store)
    if models:
        store.write_digests([digest for digest in image_digests(context.data.images) if digest])
    return Result(releases, metrics)


def _predict_validation(network: nn.Module, context: SiteContext, store: SiteStore) -> dict[str, Release]:
    """Write predictions for validation images, which fix an operating point for later tests; their curves may leave."""
    rows = context.data.rows("val")
    if not len(rows):
        return {}
    _, probabilities = score(network, rows, context)
    store.write_predictions(f"predictions_{VALIDATION}", *prediction_rows(context.data, rows, probabilities))
    return _curves(VALIDATION, curve_counts(context.data, rows, probabilities), context.data)


def _curves(name: str, curves: SiteCurves, data: SiteData) -> dict[str, Release]:
    if not (curves.classes or curves.reliability):
        return {}
    counts = torch.from_numpy(encode_counts(curves, data.classes))
    return {CURVES[name]: Release(ReleaseKind.CURVES, {COUNTS: counts})}


def class_counts(name: str, data: SiteData, rows: np.ndarray, probabilities: Tensor) -> dict[str, Release]:
    """Counts of correct, missed and false predictions by class, suppressed by the site's own minimum.

    Args:
        name: of the model, or ``validation``.
        data: the site's.
        rows: of the predicted images; those without a known label do not count.
        probabilities: of the classes, shape ``(rows, classes)``.
    """
    known = data.known[rows]
    if not known.any():
        return {}
    labels, groups = data.labels[rows][known], [data.groups[row] for row in rows[known]]
    predicted = probabilities.double().numpy()[known]
    if not data.task.exclusive:
        found = finding_counts(finding_cases(labels, predicted, groups), data.min_support)
    else:
        found = site_counts(cases_of(labels, predicted, groups), data.min_support)
    tensors = {IMAGES: torch.from_numpy(found.images), PATIENTS: torch.from_numpy(found.patients)}
    return {COUNT_RELEASES[name]: Release(ReleaseKind.COUNTS, tensors)}


def prediction_rows(data: SiteData, rows: np.ndarray, probabilities: Tensor) -> tuple[list[str], list[list[str]]]:
    """A table's header and lines: image, label, predicted class and the probability of each class.

    Of findings they are image, the label of each finding (1, 0, or empty where it is not known), and its probability.
    """
    if not data.task.exclusive:
        header = ["image", *(f"{kind}_{name}" for kind in ("label", "probability") for name in data.classes)]
        return header, [
            [data.names[row], *("" if one < 0 else str(one) for one in data.labels[row]), *(f"{p:.6f}" for p in values)]
            for row, values in zip(rows, probabilities.tolist(), strict=True)
        ]
    header = ["image", "label", "predicted", *(f"probability_{name}" for name in data.classes)]
    lines = []
    for row, values in zip(rows, probabilities.tolist(), strict=True):
        label = data.classes[data.labels[row]] if data.labels[row] >= 0 else ""
        predicted = data.classes[int(np.argmax(values))]
        lines.append([data.names[row], label, predicted, *(f"{value:.6f}" for value in values)])
    return header, lines


def curve_counts(data: SiteData, rows: np.ndarray, probabilities: Tensor) -> SiteCurves:
    """What a site may report of its predictions: counts of ``MINIMUM`` patients each, or of more where the site asks.

    Args:
        data: the site's.
        rows: of the predicted images, whose labels are known.
        probabilities: of the classes, shape ``(rows, classes)``.
    """
    labels, groups = data.labels[rows], [data.groups[row] for row in rows]
    predicted, minimum = probabilities.double().numpy(), max(MINIMUM, data.min_support)
    if not data.task.exclusive:
        return finding_curves(finding_cases(labels, predicted, groups), data.classes, minimum)
    return site_curves(cases_of(labels, predicted, groups), data.classes, minimum)


def _description(context: SiteContext) -> dict[str, Any]:
    problem, spec = context.problem, context.model_spec
    # What training started from may be a path of this machine; only frozen layers are built from it again.
    weights = spec.weights if spec.has_frozen else None
    norm = "batch" if spec.norm == SITE_NORM else spec.norm  # the statistics are in the file
    model = {**asdict(spec), "weights": weights, "intensities": chosen_intensities(spec), "norm": norm}
    return {"model": model, "seed": context.seed, "classes": list(problem.classes), "image_size": problem.image_size}
