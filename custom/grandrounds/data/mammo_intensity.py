"""Intensities of mammograms as a network wants them: one mean and one spread for all devices.

Source: A. Jimenez-Sanchez et al., "Memory-aware curriculum federated learning for breast cancer classification",
Computer Methods and Programs in Biomedicine 229, 2023, whose text standardises each image. The authors' code then spreads
the result over [-1, 1], which undoes the standardisation; both are here.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST_SPREAD = 1e-5


def standardise(batch: Tensor) -> Tensor:
    r"""Give each image mean 0 and standard deviation 1, padding included.

    .. math:: y = \frac{x - \mu}{\max(\sigma, 10^{-5})}

    Args:
        batch: floating point, shape ``(batch, channels, height, width)``; intensities divided by 255.

    Returns:
        The same shape; an image of one level becomes zeros.

    Raises:
        ValueError: if the shape or type is another.

    Example:
        >>> standardise(torch.tensor([[[[0.0, 1.0]]]])).flatten().tolist()
        [-1.0, 1.0]
        >>> standardise(torch.full((1, 1, 1, 3), 0.3)).flatten().tolist()  # no contrast
        [0.0, 0.0, 0.0]
    """
    _require_images(batch)
    # The minimum first: the mean of many equal values is not exactly their value.
    raised = batch - batch.amin(dim=(1, 2, 3), keepdim=True)
    centred = raised - raised.mean(dim=(1, 2, 3), keepdim=True)
    spread = centred.square().mean(dim=(1, 2, 3), keepdim=True).sqrt()
    return centred / spread.clamp_min(LEAST_SPREAD)


def spread_range(batch: Tensor) -> Tensor:
    r"""Spread each image over [-1, 1], as the authors' code does.

    .. math:: y = 2\,\frac{x - \min x}{\max x - \min x} - 1

    Args:
        batch: floating point, shape ``(batch, channels, height, width)``.

    Returns:
        The same shape; an image of one level becomes zeros, where the authors' code divides by zero.

    Raises:
        ValueError: if the shape or type is another.

    Example:
        >>> spread_range(torch.tensor([[[[2.0, 3.0, 6.0]]]])).flatten().tolist()
        [-1.0, -0.5, 1.0]
        >>> spread_range(torch.ones(1, 1, 1, 2)).flatten().tolist()
        [0.0, 0.0]
    """
    _require_images(batch)
    low, high = (found.view(-1, 1, 1, 1) for found in batch.flatten(1).aminmax(dim=1))
    width = high - low
    return torch.where(width > 0, 2 * (batch - low) / width.clamp_min(torch.finfo(batch.dtype).tiny) - 1, 0.0)


def _require_images(batch: Tensor) -> None:
    if batch.dim() != 4 or not batch.is_floating_point():
        raise ValueError(
            f"expected floating point (batch, channels, height, width), got {batch.dtype} {tuple(batch.shape)}"
        )
