"""Class probabilities of a model for rows of a site's images."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.augment import to_tensor
from grandrounds.data.batches import eval_batches

BATCH = 256


@torch.inference_mode()
def predict(model: nn.Module, images: np.ndarray, rows: np.ndarray, device: torch.device) -> Tensor:
    """Predict without augmentation and with the model in evaluation mode.

    Args:
        model: gives logits of shape ``(batch, classes)``; its mode is restored.
        images: uint8, shape ``(images, height, width, channels)``.
        rows: which images, int64, shape ``(n,)``.
        device: where the model is.

    Returns:
        Probabilities, float32 on the CPU, shape ``(n, classes)``; ``(0, 0)`` for no rows.
    """
    training = model.training
    model.eval()
    parts = [
        torch.softmax(model(to_tensor(images[batch], device)).float(), dim=1).cpu()
        for batch in eval_batches(rows, BATCH)
    ]
    model.train(training)
    return torch.cat(parts) if parts else torch.zeros(0, 0)
