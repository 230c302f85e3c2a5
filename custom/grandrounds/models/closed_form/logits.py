"""The temperature of scores near 0 and 1.

It is chosen by the likelihood of validation images, before frequencies are corrected: logits are then
``T (z - centre) + offset`` with what :meth:`~grandrounds.protocol.task.Task.centre_and_offset` gives for ``correction=0``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grandrounds.protocol.task import MASKED, Task

TEMPERATURES = torch.logspace(0, 6, 25, base=2.0, dtype=torch.float64)
"""From 1 to 64; the third step doubles the second last."""
DEFAULT_CORRECTION = 1.0
DEFAULT_TEMPERATURE = 8.0
"""Without validation images."""


def best_temperature(losses: Tensor) -> float:
    """The temperature of the smallest loss; the largest of equal ones.

    Args:
        losses: over validation images, one for each of ``TEMPERATURES``.

    Example:
        >>> best_temperature((TEMPERATURES - 8).abs())
        8.0
    """
    return float(TEMPERATURES[int((losses == losses.min()).nonzero().max())])


def uncorrected(kind: Task, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Centre and offset of the logits by which the temperature is chosen; a name without training images is not masked.

    Were it masked, one validation image of it would outweigh all others.

    Args:
        kind: what labels are.
        shares: of the classes or findings, shape ``(classes,)``.
    """
    centre, offset = kind.centre_and_offset(shares, 0.0)
    return centre, torch.where(offset == MASKED, 0.0, offset)
