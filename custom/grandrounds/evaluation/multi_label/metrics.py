"""Each finding as a question with two answers, and the scores that a site reports after a round.

A score of a finding is of the images of which it is known whether they show it. Means are over the findings with at least
``MIN_CASES`` positive and as many negative images: of a finding with two images a single one would decide.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.auc import auc
from grandrounds.evaluation.bootstrap import MIN_CASES, Cases
from grandrounds.evaluation.clinical.binary import POSITIVE, positive_scores
from grandrounds.evaluation.metrics import confusion_class_scores

THRESHOLD = 0.5
FINDING_METRICS = ("auc_macro", "balanced_accuracy", "f1_macro", "log_likelihood")
"""The metrics by which a model of findings can be selected: higher is better."""


def finding_cases(
    labels: NDArray[np.int64], probabilities: NDArray[np.floating], groups: Sequence[str] | None = None
) -> list[Cases]:
    """The known answers to the question of each finding, as cases of two classes: 0 absent, 1 present.

    Args:
        labels: 1 present, 0 absent, -1 unknown, shape ``(n, findings)``.
        probabilities: of each finding, shape ``(n, findings)``; it is predicted from ``THRESHOLD`` on.
        groups: the patient or lesion of each image; without, each image is a case.

    Raises:
        ValueError: if the shapes differ, or a probability is not in [0, 1].

    Example:
        >>> labels, probabilities = np.array([[1, -1], [0, 1]]), np.array([[0.9, 0.2], [0.6, 0.4]])
        >>> [(one.labels.tolist(), one.predicted.tolist()) for one in finding_cases(labels, probabilities)]
        [([1, 0], [1, 1]), ([1], [0])]
    """
    if labels.ndim == 2 and not len(labels):
        probabilities = probabilities.reshape(labels.shape)
    if labels.ndim != 2 or labels.shape != probabilities.shape:
        raise ValueError(
            f"expected labels and probabilities of shape (images, findings), got {labels.shape} and {probabilities.shape}"
        )
    if not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise ValueError("probabilities must be in [0, 1]")
    named = np.arange(len(labels)) if groups is None else np.unique(np.array(groups, np.str_), return_inverse=True)[1]
    found = []
    for truth, present in zip(labels.T, probabilities.T.astype(np.float64), strict=True):
        known = truth >= 0
        inside = present[known]
        predicted = (inside >= THRESHOLD).astype(np.int64)
        both = np.stack([1 - inside, inside], axis=1)
        found.append(Cases(truth[known], predicted, named[known].astype(np.int64), both, 2))
    return found


def joined_findings_of(sites: Sequence[Sequence[Cases]]) -> list[Cases]:
    """The findings of several sites together; patients of different sites are different.

    Args:
        sites: at least one, each with the cases of the same findings.
    """
    sizes = [1 + max(int(one.groups.max(initial=-1)) for one in findings) for findings in sites]
    starts = np.cumsum([0, *sizes[:-1]])
    found = []
    for parts in zip(*sites, strict=True):
        groups = np.concatenate([part.groups + start for part, start in zip(parts, starts, strict=True)])
        labels, predicted = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("labels", "predicted")
        )
        found.append(Cases(labels, predicted, groups, np.concatenate([part.probabilities for part in parts]), 2))
    return found


def multi_label_metrics(labels: NDArray[np.int64], probabilities: NDArray[np.floating]) -> dict[str, float]:
    r"""Metrics of findings, from arrays as those of :func:`finding_cases`.

    Returns:
        ``n``, the number of images; ``log_loss``, the mean of :math:`-\ln p` of the known answers, in nats, with those below
        the resolution of their dtype raised to it, and ``log_likelihood``, its negative. Means over the findings with
        enough images, left out where there is none: ``auc_macro``; ``balanced_accuracy``, of sensitivity and specificity;
        ``f1_macro``. Without known answers only ``n``.

    Raises:
        ValueError: as :func:`finding_cases`.

    Example:
        >>> multi_label_metrics(np.array([[1, 0]]), np.array([[0.5, 0.5]]))["log_loss"]  # ln 2
        0.6931471805599453
    """
    findings = finding_cases(labels, probabilities)
    known = labels >= 0
    if not known.any():
        return {"n": 0}
    floor = np.finfo(probabilities.dtype).eps
    answered = np.where(labels == 1, probabilities, 1 - probabilities)[known]
    likelihood = float(np.log(np.maximum(answered, floor), dtype=np.float64).mean())
    metrics = {"n": len(labels), "log_loss": -likelihood, "log_likelihood": likelihood}
    counted = [cases for cases in findings if np.bincount(cases.labels, minlength=2).min() >= MIN_CASES]
    if not counted:
        return metrics
    of_class = [confusion_class_scores(cases.confusion()) for cases in counted]
    areas = [auc(*positive_scores(cases)) for cases in counted]
    return {
        **metrics,
        "auc_macro": float(np.mean(areas)),
        "balanced_accuracy": float(np.mean([scores["sensitivity"].mean() for scores in of_class])),
        "f1_macro": float(np.mean([scores["f1"][POSITIVE] for scores in of_class])),
    }
