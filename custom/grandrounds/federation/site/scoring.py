"""The evaluation record of a model on a site's images, predictions as tables that stay there, and curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.site import SiteData
from grandrounds.evaluation.bootstrap import Cases, questions_of
from grandrounds.evaluation.clinical.image_moments import MOMENTS, evenly_spaced, moments_of
from grandrounds.evaluation.counts import IMAGES, PATIENTS, UNITS
from grandrounds.evaluation.curves.binned import CURVE_COUNTS, MINIMUM, SiteCurves, encode_counts, write_curves
from grandrounds.evaluation.metrics import site_metrics, total_probabilities
from grandrounds.evaluation.prediction import Predicted, predict
from grandrounds.evaluation.site_record import NUMBER, UNIT, SiteRecord
from grandrounds.evaluation.tables_of_cases import site_counts, site_curves, summable_scores
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.store import SiteStore, copy_to_cpu
from grandrounds.models.norm_layers import whole_state
from grandrounds.models.site_model import model_description, with_description
from grandrounds.privacy.gate.treatments import SUPPORT
from grandrounds.protocol.messages import (
    COMMON,
    CURVES,
    IMAGE_MOMENTS,
    OWN_MODEL,
    SCORE_SUMS,
    SITE_MODEL,
    Release,
    ReleaseKind,
    Result,
    State,
)
from grandrounds.protocol.messages import COUNTS as COUNT_RELEASES
from grandrounds.protocol.names import CASE, VALIDATION
from grandrounds.protocol.problem import SITE_NORM

SCORE_RELEASES = {COUNT_RELEASES[VALIDATION]: ReleaseKind.COUNTS, SCORE_SUMS[VALIDATION]: ReleaseKind.SCORES}
TEST_RELEASES = {
    **dict.fromkeys(CURVES.values(), ReleaseKind.CURVES),
    **dict.fromkeys(COUNT_RELEASES.values(), ReleaseKind.COUNTS),
    **dict.fromkeys(SCORE_SUMS.values(), ReleaseKind.SCORES),
    SITE_MODEL: ReleaseKind.SITE_MODEL,
    IMAGE_MOMENTS: ReleaseKind.IMAGE_MOMENTS,
}
"""What may leave with the scores of a model, and with those of its test, by name."""


def score(network: nn.Module, rows: np.ndarray, context: SiteContext) -> tuple[SiteRecord, Predicted]:
    """Predict images and compare with the known labels.

    Args:
        network: as it shall be scored.
        rows: of the site's images.
        context: of the task.

    Returns:
        The record of the rows whose label is known, and probabilities of all rows; those that are not finite count as the
        worst.
    """
    problem, labels = context.problem, context.data.labels[rows]
    of_rows = predict(network, context.unchanged, rows, problem.kind, problem.test_view, context.forward)
    whole = [one.reshape(len(rows), len(problem.classes)).numpy() for one in of_rows]
    predicted = Predicted(*(torch.from_numpy(total_probabilities(problem.kind, labels, one)) for one in whole))
    return site_record(context.data, rows, predicted), predicted


def site_record(data: SiteData, rows: np.ndarray, predicted: Predicted) -> SiteRecord:
    """What a site knows of a model on some of its images.

    Args:
        data: the site's.
        rows: of the predicted images; those without a known label do not count.
        predicted: their probabilities.
    """
    known, labels, decided = data.known[rows], data.labels[rows], predicted.decided(data.task)
    exact = site_metrics(data.task, labels[known], predicted.risks.numpy()[known], decided[known])
    unit = UNITS[2 if any(data.patients) else int(data.groups != data.names)]
    counts = (site_counts(_questions(data, rows, predicted)),) if known.any() else ()
    return SiteRecord(data.task, data.classes, int(exact[NUMBER]), exact, counts, unit=unit)


def released_table(name: str, record: SiteRecord, rows: np.ndarray, predicted: Predicted, data: SiteData) -> Result:
    """The table of a model's scores, or of ``validation``, that is added to those of other sites, and nothing else.

    Args:
        name: of the model; of one that has no release nothing leaves.
        record: of it.
        rows: of the predicted images.
        predicted: their probabilities.
        data: the site's.
    """
    if name not in SCORE_SUMS:
        return Result()
    table = summable_scores(record, _questions(data, rows, predicted))
    tensors = {entry: torch.from_numpy(values) for entry, values in table.items()}
    return Result({SCORE_SUMS[name]: Release(ReleaseKind.SCORES, tensors)}, samples=record.images)


def _questions(data: SiteData, rows: np.ndarray, predicted: Predicted) -> list[Cases]:
    """The predictions of the images whose label is known."""
    known, risks, decided = data.known[rows], predicted.risks.double().numpy(), predicted.decided(data.task)
    groups = [data.groups[row] for row in rows[known]]
    return questions_of(data.task, data.labels[rows][known], risks[known], groups, decided[known])


def released(name: str, record: SiteRecord, minimum: int) -> Result:
    """What may leave of a record, of a model or of ``validation``: exact scores as ``<name>.<score>``, and its counts.

    ``minimum`` is the site's own, of patients behind a count.
    """
    leaves = record.suppressed(minimum)
    metrics = {f"{name}.{key}": value for key, value in leaves.exact.items()}
    if not leaves.counts:
        return Result({}, metrics)
    if name != VALIDATION:
        metrics[f"{name}.{UNIT}"] = float(UNITS.index(leaves.unit))
    (table,) = leaves.counts
    tensors = {IMAGES: torch.from_numpy(table.images), PATIENTS: torch.from_numpy(table.patients)}
    return Result(
        {COUNT_RELEASES[name]: Release(ReleaseKind.COUNTS, tensors)} if name in COUNT_RELEASES else {}, metrics
    )


def evaluate_models(
    models: Mapping[str, State],
    load: Callable[[State], nn.Module],
    context: SiteContext,
    store: SiteStore,
    write: Callable[[str, State, nn.Module, SiteContext, SiteStore], Mapping[str, Release]],
    adds_up: bool = False,
) -> Result:
    """Test models on the site's test images; predictions, and digests of all images, are written to the site's folder.

    Args:
        models: by name.
        load: the site's network with a state.
        context: of the task.
        store: of the site.
        write: what the site does with a tested model itself; returns what may leave of it.
        adds_up: whether scores leave only in a sum over sites.

    Returns:
        Scores as ``<model>.<metric>``, and the curves, counts and the model that may leave; or a table that is added up.
    """
    rows = context.data.rows("test")
    metrics: dict[str, float] = {}
    releases: dict[str, Release] = {}
    own: dict[str, Mapping[str, float]] = {}
    for name, state in models.items():
        record, predicted = score(network := load(state), rows, context)
        own[name] = dict(record.exact)
        if adds_up:
            summed = name == (COMMON if COMMON in models else OWN_MODEL)
            leaves = released_table(name, record, rows, predicted, context.data) if summed else Result()
        else:
            leaves = released(name, record, context.data.min_support)
        metrics |= leaves.metrics
        releases |= leaves.releases
        store.write_predictions(f"predictions_{name}", *prediction_rows(context.data, rows, predicted))
        releases |= write(name, state, network, context, store)
        if name in CURVES:
            curves = curve_counts(context.data, rows, predicted)
            write_curves(store.folder / f"{CURVES[name]}.json", curves, context.data.classes)
            releases |= _curves(name, curves, context.data)
    if COMMON in models:
        releases |= _predict_validation(load(models[COMMON]), context, store)
    if models:
        store.write_scores(own)
        store.write_digests([digest for digest in context.data.digests if digest])
    return Result({name: one for name, one in releases.items() if not adds_up or name in SCORE_SUMS.values()}, metrics)


def write_model(
    name: str, state: State, network: nn.Module, context: SiteContext, store: SiteStore
) -> dict[str, Tensor]:
    """Write a model and how it is built to the site's folder; return both as one dictionary.

    Args:
        name: of the files.
        state: of the model.
        network: with that state; statistics of the site's images are taken from it.
        context: of the task.
        store: of the site.
    """
    whole = copy_to_cpu(whole_state(network)) if context.model_spec.norm == SITE_NORM else state
    of_run = (context.problem, context.seed, store.run_id, context.site)
    description = model_description(network, context.model_spec, *of_run)
    store.write_model(name, whole, description)
    return with_description(whole, description)


def image_moments(data: SiteData) -> dict[str, Release]:
    """The release of the moments of a site's training images; none if they are of fewer patients than the site asks for."""
    rows = evenly_spaced(data.rows("train"))
    patients = len({data.groups[row] for row in rows})
    if patients < max(data.min_support, 1):
        return {}
    moments = torch.from_numpy(moments_of(data.images, data.cache.originals, rows))
    return {IMAGE_MOMENTS: Release(ReleaseKind.IMAGE_MOMENTS, {MOMENTS: moments, SUPPORT: torch.tensor([patients])})}


def _predict_validation(network: nn.Module, context: SiteContext, store: SiteStore) -> dict[str, Release]:
    """Write predictions for validation images, which fix an operating point for later tests; their curves may leave."""
    rows = context.data.rows("val")
    if not len(rows):
        return {}
    _, predicted = score(network, rows, context)
    store.write_predictions(f"predictions_{VALIDATION}", *prediction_rows(context.data, rows, predicted))
    return _curves(VALIDATION, curve_counts(context.data, rows, predicted), context.data)


def _curves(name: str, curves: SiteCurves, data: SiteData) -> dict[str, Release]:
    if not (curves.classes or curves.reliability):
        return {}
    counts = torch.from_numpy(encode_counts(curves, data.classes))
    return {CURVES[name]: Release(ReleaseKind.CURVES, {CURVE_COUNTS: counts})}


def prediction_rows(data: SiteData, rows: np.ndarray, predicted: Predicted) -> tuple[list[str], list[list[str]]]:
    """A table's header and lines: image, the task's columns, and the number of the image's case at the site."""
    numbers = np.unique(np.array(data.groups, np.str_), return_inverse=True)[1]
    header = ["image", *data.task.prediction_header(data.classes), CASE]
    cells = partial(data.task.prediction_cells, classes=data.classes)
    return header, [
        [data.names[row], *cells(data.labels[row], values, decided), str(numbers[row])]
        for row, values, decided in zip(rows, predicted.risks.tolist(), predicted.decided(data.task), strict=True)
    ]


def curve_counts(data: SiteData, rows: np.ndarray, predicted: Predicted) -> SiteCurves:
    """What a site may report of its predictions: counts of ``MINIMUM`` patients each, or of more where the site asks.

    Args:
        data: the site's.
        rows: of the predicted images, whose labels are known.
        predicted: their probabilities.
    """
    return site_curves(_questions(data, rows, predicted), data.classes, max(MINIMUM, data.min_support))
