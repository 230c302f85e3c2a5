"""Metrics of plug-ins, which sites report beside the others and which can select the model."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from grandrounds.errors import ConfigurationError
from grandrounds.plugins import Registry

Metric = Callable[[NDArray[np.integer], NDArray[np.floating]], float]
"""From labels of shape ``(samples,)`` and probabilities of shape ``(samples, classes)`` to a finite number."""
OWN_METRICS: Registry[Metric] = Registry("metric")


def register_metric(name: str) -> Callable[[Metric], Metric]:
    """Register a metric, which every site reports of its validation and test images; use it as a decorator.

    A run selects its model by it with ``controller.selection_metric``; higher is better. The sites' values are then
    averaged, because counts of predictions do not give it.

    Args:
        name: lower-case letters, digits and ``_``; none of the package's own.

    Returns:
        A decorator of a function of the labels, class indices of shape ``(samples,)``, and the probabilities, shape
        ``(samples, classes)``, of at least one image; it returns a finite number.

    Raises:
        ConfigurationError: if the name is taken or has other characters.

    Example::

        @register_metric("mean_confidence")
        def mean_confidence(labels, probabilities):
            return float(probabilities.max(axis=1).mean())
    """
    OWN_METRICS.require_name(name)

    def register(metric: Metric) -> Metric:
        OWN_METRICS.add(name, metric, metric)
        return metric

    return register


def own_scores(labels: NDArray[np.integer], probabilities: NDArray[np.floating]) -> dict[str, float]:
    """The values of all registered metrics.

    Args:
        labels: class indices, shape ``(samples,)``, at least one.
        probabilities: shape ``(samples, classes)``.

    Raises:
        ConfigurationError: if a metric fails or its value is not finite; it is named.
    """
    scores = {}
    for name, metric in OWN_METRICS.all().items():
        try:
            scores[name] = float(metric(labels, probabilities))
        except Exception as error:  # a plug-in is foreign code
            raise ConfigurationError(f"metric {name} failed ({type(error).__name__}: {error})") from error
        if not math.isfinite(scores[name]):
            raise ConfigurationError(f"metric {name} gives {scores[name]} for {len(labels)} images; it must be finite")
    return scores
