"""A network's predictions for images."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from grandrounds.data.images.augmentation import draw_views
from grandrounds.data.images.tensors import to_tensor
from grandrounds.models.depths import risk_logits
from grandrounds.models.inference.forward import Forward
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE


class Predicted(NamedTuple):
    """Probabilities of images, float32 on the CPU, shape ``(n, classes)`` each; ``(0, 0)`` of no image.

    Attributes:
        risks: at the classes' shares of training images; all scores of probabilities are of these.
        decisions: of which the task makes the predicted labels, such as with equally frequent classes.
    """

    risks: Tensor
    decisions: Tensor

    def decided(self, task: Task) -> NDArray[np.int64]:
        """The predicted labels."""
        return task.decide(self.decisions.numpy())


def predict(
    model: nn.Module,
    inputs: Callable[..., Tensor],
    rows: np.ndarray,
    task: Task = SINGLE,
    test_view: str | None = None,
    forward: Callable[[nn.Module], Forward] = Forward,
) -> Predicted:
    """Predict without augmentation and with the model in evaluation mode; its mode is restored.

    Args:
        model: gives logits of shape ``(batch, classes)``.
        inputs: what the model takes for some of these rows, on its device; with a second argument of that fixed view.
        rows: which images, int64, shape ``(n,)``.
        task: what labels are.
        test_view: a fixed view whose logits are averaged with those of the images themselves, see ``problem.test_view``.
        forward: how the model is computed.
    """
    if not len(rows):
        return Predicted(torch.zeros(0, 0), torch.zeros(0, 0))
    logits = forward(model).logits(inputs, rows, test_view)
    return Predicted(*(task.probabilities(one).cpu() for one in (risk_logits(model, logits), logits)))


def tensors_of(images: np.ndarray, device: torch.device | str = "cpu") -> Callable[..., Tensor]:
    """The inputs of :func:`predict` from uint8 images, shape ``(images, height, width, channels)``."""
    return lambda rows, view="none": to_tensor(draw_views(images, rows, view, 0, 0), device)
