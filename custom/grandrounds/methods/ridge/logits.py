"""From scores near 0 and 1 to logits: a temperature, and an offset by how frequent a class or finding is.

The temperature is chosen by the likelihood of validation images, before frequencies are corrected: logits are then
``T (z - centre) + offset`` with what :func:`centre_and_offset` gives for ``correction=0``.
"""

from __future__ import annotations

import torch
from torch import Tensor

MASKED = -100.0
"""The logit of a class without a labelled image; its probability is 0 in single precision."""
TEMPERATURES = torch.logspace(0, 6, 25, base=2.0, dtype=torch.float64)
"""From 1 to 64; the third step doubles the second last."""
DEFAULT_TEMPERATURE = 8.0
"""Without validation images."""


def centre_and_offset(shares: Tensor, exclusive: bool, correction: float) -> tuple[Tensor, Tensor]:
    r"""What turns scores into logits beside the temperature.

    Args:
        shares: weighted share of images of each class, or with each finding, in [0, 1], shape ``(classes,)``.
        exclusive: whether classes exclude each other. Their offset is :math:`-\tau \log p_c`, as in logit adjustment (Menon
            et al., "Long-tail learning via logit adjustment", ICLR 2021). A finding is centred, so that the logit of an
            average image is :math:`(1 - \tau)\,\mathrm{logit}(p)`.
        correction: :math:`\tau`; 1 makes all classes equally likely beforehand, 0 leaves them as they are.

    Returns:
        Centre and offset, float64, each of shape ``(classes,)``.

    Example:
        >>> centre_and_offset(torch.tensor([0.5, 0.5, 0.0]), True, 1.0)[1].round(decimals=4)
        tensor([   0.6931,    0.6931, -100.0000], dtype=torch.float64)
        >>> [part.round(decimals=4).tolist() for part in centre_and_offset(torch.tensor([0.2]), False, 0.0)]
        [[0.2], [-1.3863]]
    """
    shares = shares.double()
    if exclusive:
        found = torch.where(shares > 0, -correction * shares.clamp(min=1e-300).log(), MASKED)
        return torch.zeros_like(shares), found
    inside = (shares > 0) & (shares < 1)
    prior = torch.where(inside, shares, 0.5)
    offset = (1 - correction) * (prior / (1 - prior)).log()
    return shares, torch.where(shares > 0, offset, MASKED)


def best_temperature(losses: Tensor) -> float:
    """The temperature of the smallest loss; the largest of equal ones.

    Args:
        losses: over validation images, one for each of ``TEMPERATURES``.

    Example:
        >>> best_temperature((TEMPERATURES - 8).abs())
        8.0
    """
    return float(TEMPERATURES[int((losses == losses.min()).nonzero().max())])
