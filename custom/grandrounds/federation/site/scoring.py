"""Scores of a network on a site's images, and predictions as a table that stays there."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from grandrounds.data.site import SiteData
from grandrounds.evaluation.external import predict
from grandrounds.evaluation.metrics import classification_metrics
from grandrounds.federation.site.context import SiteContext


def scored(network: nn.Module, rows: np.ndarray, context: SiteContext) -> tuple[dict[str, float], Tensor]:
    """Predict images and compare with what is known of them.

    Args:
        network: as it shall be scored.
        rows: of the site's images.
        context: of the task.

    Returns:
        Metrics over the rows whose label is known, and probabilities of all rows, shape ``(rows, classes)``.
    """
    with context.autocast():
        probabilities = predict(network, context.data.images, rows, context.device)
    known = context.data.labels[rows] >= 0
    return classification_metrics(context.data.labels[rows][known], probabilities.numpy()[known]), probabilities


def prediction_rows(data: SiteData, rows: np.ndarray, probabilities: Tensor) -> tuple[list[str], list[list[str]]]:
    """A table's header and lines: image, label, predicted class and the probability of each class."""
    header = ["image", "label", "predicted", *(f"probability_{name}" for name in data.classes)]
    lines = []
    for row, values in zip(rows, probabilities.tolist(), strict=True):
        label = data.classes[data.labels[row]] if data.labels[row] >= 0 else ""
        predicted = data.classes[int(np.argmax(values))]
        lines.append([data.names[row], label, predicted, *(f"{value:.6f}" for value in values)])
    return header, lines
