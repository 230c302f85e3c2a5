"""Which model labels unlabelled images, and what it predicts for them at the start of a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from grandrounds.data.batches import eval_batches
from grandrounds.federation.site.context import SiteContext
from grandrounds.methods.fixmatch.loss import aligned, class_thresholds
from grandrounds.protocol.messages import State

Teacher = Literal["local", "received", "average"]
TEACHER_BATCH = 64


def averaged(average: Mapping[str, Tensor], received: State, times: int, decay: float) -> dict[str, Tensor]:
    r"""Exponential moving average of the models that a site was sent.

    .. math:: \bar\theta_t = \alpha_t \bar\theta_{t-1} + (1 - \alpha_t) \theta_t, \qquad
        \alpha_t = \min\big(1 - \tfrac{1}{t}, \alpha\big)

    Tarvainen and Valpola, "Mean teachers are better role models", NeurIPS 2017; the first models count equally.

    Args:
        average: :math:`\bar\theta_{t-1}`; not looked at the first time.
        received: :math:`\theta_t`.
        times: :math:`t`, how many models have been received, with this one.
        decay: :math:`\alpha`, in [0, 1).

    Returns:
        The new average; integer entries are those received.

    Example:
        >>> averaged({"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}, times=2, decay=0.9)  # the mean of two
        {'w': tensor([1.5000])}
    """
    alpha = min(1 - 1 / times, decay)
    if not alpha:
        return dict(received)
    return {
        name: torch.lerp(value, average[name], alpha) if value.is_floating_point() else value
        for name, value in received.items()
    }


def mean_predictions(
    model: Callable[[Tensor], Tensor], context: SiteContext, rows: np.ndarray, view: str, views: int = 1
) -> Tensor:
    """Probabilities of a site's images, averaged over weak views.

    Averaging over views is the label guessing of Berthelot et al., "MixMatch", NeurIPS 2019, Eq. 2.

    Args:
        model: images to logits, without gradients.
        context: of the task.
        rows: the images.
        view: the kind of weak view.
        views: how many of each image, at least one.

    Returns:
        Shape ``(rows, classes)``.
    """
    keys = [context.key("expectations"), *(context.key(f"expectations, view {number}") for number in range(1, views))]
    batches = list(enumerate(eval_batches(rows, TEACHER_BATCH)))
    probabilities = context.problem.kind.probabilities
    with context.autocast():
        predicted = [
            torch.cat([probabilities(model(context.views(batch, view, key, step))) for step, batch in batches])
            for key in keys
        ]
    return torch.stack(predicted).mean(dim=0)


class Expectations:
    """What the model at the start of a round predicts for a site's unlabelled images, to correct what comes.

    Args:
        predicted: of all unlabelled images, shape ``(images, classes)``.
        expected: images of each class among the labelled ones, shape ``(classes,)``; one is added to each.
    """

    def __init__(self, predicted: Tensor, expected: np.ndarray) -> None:
        self._predicted = predicted
        counts = torch.from_numpy(expected).to(predicted) + 1
        self._expected = counts / counts.sum()
        self._mean = predicted.mean(dim=0)

    def aligned(self, probabilities: Tensor) -> Tensor:
        """Predictions whose classes are as frequent as among the labelled images."""
        return aligned(probabilities, self._mean, self._expected)

    def thresholds(self, threshold: float, align: bool) -> Tensor:
        """The threshold of each class."""
        confidence, labels = (self.aligned(self._predicted) if align else self._predicted).max(dim=1)
        confident = torch.bincount(labels[confidence >= threshold], minlength=len(self._mean))
        return class_thresholds(confident, threshold)
