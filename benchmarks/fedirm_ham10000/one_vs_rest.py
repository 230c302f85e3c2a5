"""Scores of each class against all others, and their plain mean over classes, as in FedIRM's tables.

Liu et al. (FedIRM), MICCAI 2021, Tables 1 and 2, and the authors' code: an image is positive for every class whose
probability reaches a threshold, so for several classes or for none. Accuracy is that of the binary questions, which for
seven classes is far above the share of images classified correctly. The authors choose the threshold on the test images;
:func:`choose_threshold` takes the validation images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grandrounds.evaluation.auc import auc

THRESHOLDS = tuple(round(0.01 * step, 2) for step in range(1, 100))


class OneVsRest(NamedTuple):
    """Scores of one class against the others, or their mean over classes; NaN where there is none."""

    auc: float
    sensitivity: float
    specificity: float
    accuracy: float
    f1: float


def one_vs_rest(labels: NDArray[np.integer], probabilities: NDArray[np.floating], threshold: float) -> list[OneVsRest]:
    r"""Scores of each class, :math:`\text{positive}_{ic} = [p_{ic} \ge t]`."""
    classes = np.arange(probabilities.shape[1])
    true = labels[:, None] == classes
    called = probabilities >= threshold
    return [_scores(true[:, number], called[:, number], probabilities[:, number]) for number in classes]


def macro(scores: Sequence[OneVsRest]) -> OneVsRest:
    """Mean over the classes that have a score; NaN where none has it."""
    columns = pd.DataFrame(scores, dtype=np.float64)
    return OneVsRest(*columns.mean().tolist())


def choose_threshold(labels: NDArray[np.integer], probabilities: NDArray[np.floating]) -> float:
    """The threshold with the best mean F1 over classes on validation images; the lowest of equal ones."""
    return max(THRESHOLDS, key=lambda threshold: macro(one_vs_rest(labels, probabilities, threshold)).f1)


def _scores(true: NDArray[np.bool_], called: NDArray[np.bool_], probability: NDArray[np.floating]) -> OneVsRest:
    hits, rejections = int((true & called).sum()), int((~true & ~called).sum())
    positives, negatives = int(true.sum()), int((~true).sum())
    return OneVsRest(
        auc=auc(true, probability),
        sensitivity=hits / positives if positives else float("nan"),
        specificity=rejections / negatives if negatives else float("nan"),
        accuracy=(hits + rejections) / len(true),
        f1=2 * hits / (positives + int(called.sum())) if hits else 0.0,
    )
