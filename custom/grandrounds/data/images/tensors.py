"""Images as what a network takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(values: NDArray[Any] | Tensor, device: torch.device | str) -> Tensor:
    """Copy values from the host without waiting for the device; on a CPU a tensor shares the memory of an array.

    A GPU copies while it computes from pinned memory only; torch keeps such memory and uses it again after the copy.
    """
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if torch.device(device).type == "cuda" and tensor.is_cpu:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def to_tensor(batch: NDArray[np.uint8] | Tensor, device: torch.device | str = "cpu") -> Tensor:
    """Turn a batch of images, uint8 ``(batch, height, width, channels)``, into the network's input.

    Intensities are divided by 255 and nothing else: FedPerl uses no ImageNet mean and deviation, even with ImageNet weights.
    Bytes travel to the device, not floats.

    Returns:
        Shape ``(batch, channels, height, width)``, float32 in [0, 1], channels-last in memory.

    Raises:
        ValueError: if ``batch`` is not uint8 with four dimensions.

    Example:
        >>> to_tensor(np.full((1, 1, 1, 3), 255, dtype=np.uint8)).flatten().tolist()
        [1.0, 1.0, 1.0]
    """
    if batch.dtype not in (np.uint8, torch.uint8) or batch.ndim != 4:
        raise ValueError(f"a batch must be uint8 (batch, height, width, channels), got {batch.dtype} {batch.shape}")
    if not isinstance(batch, Tensor) and not batch.flags.writeable:
        batch = batch.copy()  # a memory map: torch warns of read-only arrays, because it could write to them
    scaled = to_device(batch, device).permute(0, 3, 1, 2).to(torch.float32).div_(255)
    return scaled.contiguous(memory_format=torch.channels_last)
