"""What a site reports of a model after every round, with the metrics of plug-ins, and what can select a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.auc import macro_auc
from grandrounds.evaluation.confusion import confusion_matrix, confusion_scores
from grandrounds.plugins import Registry
from grandrounds.protocol.tasks import SINGLE

if TYPE_CHECKING:
    from grandrounds.protocol.task import Floats, Ints, Task

SELECTABLE = SINGLE.selectable
"""The metrics by which a model can be selected: higher is better."""
FROM_CONFUSION = ("accuracy", "balanced_accuracy", "precision_weighted", "recall_weighted", "f1_weighted", "f1_macro")
"""The metrics that a site computes from its confusion matrix after every round."""
LINEAR_SCORES = ("accuracy", "recall_weighted", "log_likelihood")
"""Metrics whose value for several sites together is their mean weighted by the sites' numbers of images."""
OF_CLASSES = frozenset(FROM_CONFUSION) - {*LINEAR_SCORES}
"""Metrics that the counts of single classes determine, and which determine a count that is hidden beside them."""
SCORES_OF_IMAGES = frozenset({*SELECTABLE, *FROM_CONFUSION, "n", "log_loss"})
"""All that a site reports of its images; no plug-in's metric has one of these names."""
FRACTIONS = frozenset({*SELECTABLE, *FROM_CONFUSION}) - {"log_likelihood"}
"""Scores from 0 to 1."""
WORST_LOSS = -math.log(np.finfo(np.float64).eps)
"""No mean log loss is above it: probabilities are raised to the resolution of their dtype."""


def score_range(name: str) -> tuple[float, float]:
    """The smallest and the largest value of one of the package's scores; infinite ends of any other metric.

    Example:
        >>> score_range("accuracy"), score_range("log_likelihood"), score_range("kept")
        ((0.0, 1.0), (-36.04365338911715, 0.0), (-inf, inf))
    """
    if name == "log_loss":
        return 0.0, WORST_LOSS
    if name == "log_likelihood":
        return -WORST_LOSS, 0.0
    return (0.0, 1.0) if name in FRACTIONS else (-math.inf, math.inf)


def total_probabilities(
    task: Task, labels: NDArray[np.int64], probabilities: NDArray[np.floating]
) -> NDArray[np.floating]:
    """Predictions of which every score is defined: a row that is not finite becomes certain of a wrong answer.

    Whether a model overflows is up to who has made it. An error would answer whether it does for one image.

    Args:
        task: of the labels.
        labels: of ``n`` images.
        probabilities: shape ``(n, classes)``.

    Returns:
        The same array if it is finite, else a new one of its dtype.

    Example:
        >>> from grandrounds.protocol.tasks import task_named
        >>> total_probabilities(task_named("single"), np.array([0]), np.array([[np.nan, np.nan]])).tolist()
        [[0.0, 1.0]]
    """
    bad = ~np.isfinite(probabilities).all(axis=1)
    if not bad.any():
        return probabilities
    total = probabilities.copy()
    total[bad] = task.wrong(labels[bad], probabilities.shape[1])
    return total


def site_metrics(task: Task, labels: Ints, probabilities: Floats, decided: Ints | None = None) -> dict[str, float]:
    r"""What a site reports of a model on its images.

    Args:
        task: of the labels.
        labels: of ``n`` images; unknown ones do not count.
        probabilities: predictions (not logits), shape ``(n, classes)``.
        decided: the predicted labels; None for those of the probabilities.

    Returns:
        ``n``, the number of images with a known answer; ``log_loss``: mean of :math:`-\ln p` of the known answers, in nats,
        with probabilities below the resolution of their dtype raised to it, so that no single sample makes it infinite, and
        ``log_likelihood``, its negative, which selects a model by its loss. The task's other metrics are means over its
        questions, of which each has at least ``task.min_images`` images of each of its classes: those of
        :func:`confusion_scores`, and ``auc_macro``, see :func:`~grandrounds.evaluation.auc.macro_auc`. Where classes
        are exclusive, also the metrics of plug-ins. The area of images of one class alone is not defined and left out.
        Without known images only ``n``.

    Raises:
        ValueError: if the shapes do not fit together, a label is no class, or a probability is none.

    Example:
        >>> from grandrounds.protocol.tasks import task_named
        >>> labels, probabilities = np.array([0, 1]), np.array([[0.5, 0.5], [0.5, 0.5]])
        >>> metrics = site_metrics(task_named("single"), labels, probabilities)
        >>> metrics["n"], metrics["accuracy"], round(metrics["log_loss"], 4)  # ln 2
        (2, 0.5, 0.6931)
    """
    known, questions = task.known(labels), task.questions(labels, probabilities, decided)
    if not known.any():
        return {"n": 0}
    scores_by_question = []
    for question in questions:
        confusion = confusion_matrix(question.labels, question.predicted, question.probabilities.shape[1])
        if confusion.sum(axis=1).min() >= task.min_images:
            scores = confusion_scores(confusion, scored=question.scored)
            scores_by_question.append(
                {**scores, "auc_macro": macro_auc(question.labels, question.probabilities, question.scored)}
            )
    floor = np.finfo(probabilities.dtype).eps
    answered = task.answered(labels, probabilities)
    likelihood = float(np.log(np.maximum(answered, floor), dtype=np.float64).mean())
    metrics = {"n": int(known.sum()), "log_loss": -likelihood, "log_likelihood": likelihood}
    means = {
        name: float(np.mean([entry[name] for entry in scores_by_question]))
        for name in task.selectable
        if scores_by_question and name in scores_by_question[0]
    }
    means = {name: value for name, value in means.items() if not math.isnan(value)}
    own = (
        own_scores(labels[known], probabilities[known]) if set(OWN_METRICS.all()) & {*selectable_metrics(task)} else {}
    )
    return metrics | means | own


def selectable_metrics(task: Task = SINGLE) -> tuple[str, ...]:
    """The metrics by which a model can be selected: the task's own and those of plug-ins.

    Raises:
        ConfigurationError: if a plug-in cannot be imported, or takes a name of the package.
    """
    return task.metrics(tuple(OWN_METRICS.all(SCORES_OF_IMAGES)))


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
