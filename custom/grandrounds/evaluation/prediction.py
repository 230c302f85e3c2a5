"""A network's predictions for images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.images.augmentation import draw_views
from grandrounds.data.images.tensors import to_tensor
from grandrounds.models.inference.forward import Forward
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE


def predict(
    model: nn.Module,
    inputs: Callable[..., Tensor],
    rows: np.ndarray,
    task: Task = SINGLE,
    test_view: str | None = None,
    forward: Callable[[nn.Module], Forward] = Forward,
) -> Tensor:
    """Predict without augmentation and with the model in evaluation mode; its mode is restored.

    Args:
        model: gives logits of shape ``(batch, classes)``.
        inputs: what the model takes for some of these rows, on its device; with a second argument of that fixed view.
        rows: which images, int64, shape ``(n,)``.
        task: what labels are.
        test_view: a fixed view whose logits are averaged with those of the images themselves, see ``problem.test_view``.
        forward: how the model is computed.

    Returns:
        Probabilities, float32 on the CPU, shape ``(n, classes)``; ``(0, 0)`` for no rows.
    """
    return task.probabilities(forward(model).logits(inputs, rows, test_view)).cpu() if len(rows) else torch.zeros(0, 0)


def tensors_of(images: np.ndarray, device: torch.device | str = "cpu") -> Callable[..., Tensor]:
    """The inputs of :func:`predict` from uint8 images, shape ``(images, height, width, channels)``."""
    return lambda rows, view="none": to_tensor(draw_views(images, rows, view, 0, 0), device)
