"""Scores of each class against all others, and their plain mean over classes, as in FedIRM's tables.

Liu et al. (FedIRM), MICCAI 2021, Tables 1 and 2, and the authors' code: an image is positive for every class whose
probability reaches a threshold, so for several classes or for none. Accuracy is that of the binary questions, which for
seven classes is far above the share of images classified correctly. The authors choose the threshold on the test images;
:func:`choose_threshold` takes the validation images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_fraction
from grandrounds.evaluation.auc import auc

Undefined = Literal["skip", "zero"]
CODE_THRESHOLD = 0.4
THRESHOLDS = tuple(round(0.01 * step, 2) for step in range(1, 100))


class OneVsRest(NamedTuple):
    """Scores of one class against the others, or their mean over classes; in [0, 1], or NaN where there is none.

    Attributes:
        auc: area under the ROC curve of the class's probability.
        sensitivity: share of the class's images that are called positive.
        specificity: share of the others that are not.
        accuracy: share of all images that are called rightly.
        f1: harmonic mean of precision and sensitivity; 0 where nothing is called positive rightly.
    """

    auc: float
    sensitivity: float
    specificity: float
    accuracy: float
    f1: float


def one_vs_rest(
    labels: NDArray[np.integer], probabilities: NDArray[np.floating], threshold: float | None
) -> list[OneVsRest]:
    r"""Scores of each class.

    .. math:: \text{positive}_{ic} = [p_{ic} \ge t]

    Args:
        labels: true classes, shape ``(samples,)``, integers in [0, classes).
        probabilities: predictions (not logits), shape ``(samples, classes)``.
        threshold: :math:`t`, in [0, 1]; None calls positive the most probable class alone (the lower of two equal ones).

    Returns:
        One entry per class. Without samples of the class, AUC and sensitivity are NaN; without others, AUC and specificity.

    Raises:
        ValueError: if shapes do not fit together, there is no sample, or the threshold is out of range.
    """
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or not len(labels):
        raise ValueError(
            "expected labels (samples,) and probabilities (samples, classes), at least one sample, "
            f"got {labels.shape} and {probabilities.shape}"
        )
    classes = np.arange(probabilities.shape[1])
    true = labels[:, None] == classes
    if threshold is None:
        called = probabilities.argmax(axis=1)[:, None] == classes
    else:
        called = probabilities >= require_fraction(threshold, "threshold")
    return [_scores(true[:, number], called[:, number], probabilities[:, number]) for number in classes]


def macro(scores: Sequence[OneVsRest], undefined: Undefined = "skip") -> OneVsRest:
    """Mean over classes.

    Args:
        scores: of each class.
        undefined: ``skip`` leaves out the classes in which a score is NaN, ``zero`` counts them as 0 (authors' code).

    Returns:
        NaN where no class has the score.

    Raises:
        ValueError: if ``undefined`` is another word.
    """
    if undefined not in get_args(Undefined):
        raise ValueError(f"undefined must be skip or zero, got {undefined!r}")
    columns = np.array(scores, dtype=np.float64)
    known = ~np.isnan(columns)
    divisor = known.sum(axis=0) if undefined == "skip" else np.full(columns.shape[1], len(columns))
    sums = np.where(known, columns, 0.0).sum(axis=0)
    means = np.full(len(sums), np.nan)
    np.divide(sums, divisor, out=means, where=divisor > 0)
    return OneVsRest(*means.tolist())


def choose_threshold(
    labels: NDArray[np.integer],
    probabilities: NDArray[np.floating],
    candidates: Sequence[float] = THRESHOLDS,
) -> float:
    """The threshold with the best mean F1 over classes; the lowest of equal ones.

    Args:
        labels: true classes of validation images, shape ``(samples,)``.
        probabilities: predictions for them, shape ``(samples, classes)``.
        candidates: thresholds to choose from, ascending.

    Raises:
        ValueError: if there is no candidate, or an argument is not as it must be.
    """
    if not candidates:
        raise ValueError("there is no threshold to choose from")
    return max(candidates, key=lambda threshold: macro(one_vs_rest(labels, probabilities, threshold)).f1)


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
