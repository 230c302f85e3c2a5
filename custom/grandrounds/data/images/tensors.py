"""Images as what a network takes, and those that stay on an accelerator."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grandrounds.data.images.augmentation import sample_generator, view_named

FREE_SHARE = 0.25
COPIED_IMAGES = 1024


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


def _moves_only(view: str) -> bool:
    """Whether the class that draws a view is the one that says where its pixels come from, and not one derived from it."""
    made = view_named(view).make
    drawn = next(
        (kind for kind in getattr(made, "__mro__", ()) if "draw" in vars(kind) or "places" in vars(kind)), object
    )
    return "places" in vars(drawn)


def may_stay(device: torch.device, size: int) -> bool:
    """Whether these bytes, at most a quarter of what is free, may stay on a GPU. On a CPU they would be a second copy."""
    return device.type == "cuda" and size <= FREE_SHARE * torch.cuda.mem_get_info(device)[0]


class HeldImages:
    """Decoded images that stay on an accelerator if they fit, so that views which only move pixels are made there.

    Images without a file stay on the host.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[tuple[Any, ...], Tensor | None] = {}

    def makes(self, images: NDArray[np.uint8], view: str) -> bool:
        """Whether :meth:`views` makes this view of these images."""
        return (view == "none" or _moves_only(view)) and self._of(images) is not None

    def views(
        self,
        images: NDArray[np.uint8],
        rows: NDArray[np.integer],
        view: str,
        key: int,
        step: int,
        positions: NDArray[np.integer] | None = None,
    ) -> Tensor | None:
        """What :func:`~grandrounds.data.images.augmentation.draw_views` draws, to the bit, on the device.

        Returns:
            Uint8, shape ``(batch, height, width, channels)``; None where the view is to be drawn on the host.
        """
        held = self._of(images) if self.makes(images, view) else None
        if held is None:
            return None
        chosen = np.arange(len(rows)) if positions is None else positions
        batch = held[to_device(np.asarray(rows)[chosen], self._device)]
        if view == "none":
            return batch
        found, shape = view_named(view), images.shape[1:]
        drawer: Any = found.make()
        drawn = chosen[:1] if found.fixed else chosen  # all images of a fixed view move alike
        places = [drawer.places(shape, sample_generator(view, key, step, at)) for at in drawn.tolist()]
        return _moved(batch, to_device(np.resize(np.array(places, np.int64), (len(chosen), 6)), self._device))

    def _of(self, images: NDArray[np.uint8]) -> Tensor | None:
        if not isinstance(images, np.memmap):
            return None
        file = (str(images.filename), images.ctypes.data, images.shape)
        if file not in self._held:
            self._held[file] = None
            if may_stay(self._device, images.nbytes):
                held = self._held[file] = torch.empty(images.shape, dtype=torch.uint8, device=self._device)
                for start in range(0, len(images), COPIED_IMAGES):
                    held[start : start + COPIED_IMAGES] = torch.from_numpy(
                        np.array(images[start : start + COPIED_IMAGES])
                    )
        return self._held[file]


def _moved(images: Tensor, places: Tensor) -> Tensor:
    """Images, shape ``(batch, height, width, channels)``, whose pixels come from :data:`Places`, shape ``(batch, 6)``."""
    height, width = images.shape[1:3]
    x = torch.arange(width, device=images.device)
    y = torch.arange(height, device=images.device)[:, None]
    a, b, c, d, e, f = places[:, :, None, None].unbind(1)
    across, along = (a * x + b * y + c) >> 16, (d * x + e * y + f) >> 16
    inside = (across >= 0) & (across < width) & (along >= 0) & (along < height)
    source = torch.where(inside, along * width + across, 0).flatten(1)[:, :, None].expand(-1, -1, images.shape[3])
    return images.flatten(1, 2).gather(1, source).reshape(images.shape) * inside[..., None]
