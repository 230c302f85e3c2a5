"""The weights of classes in the loss of labelled images.

They are those of FedPerl's released code (Bdair et al., "Semi-Supervised Federated Peer Learning for Skin Lesion
Classification", MELBA 2022), which its text does not mention.
"""

from __future__ import annotations

import torch
from torch import Tensor

ABSENT_CLASS_WEIGHT = 100.0


def median_class_weights(counts: Tensor) -> Tensor:
    r"""Weight each class by median frequency.

    .. math:: w_c = \mathrm{median}\{n_j : n_j > 0\} / n_c, \qquad w_c = 100 \text{ where } n_c = 0

    Args:
        counts: labelled images per class, shape ``(classes,)``, not negative.

    Returns:
        Weights, shape ``(classes,)``, float32. That of an absent class matters for validation images only.

    Raises:
        ValueError: if ``counts`` is not one-dimensional, an entry is negative or not finite, or all are zero.

    Example:
        >>> median_class_weights(torch.tensor([40, 10, 20, 0]))
        tensor([  0.5000,   2.0000,   1.0000, 100.0000])
        >>> median_class_weights(torch.tensor([7, 7]))  # balanced classes
        tensor([1., 1.])
    """
    if counts.dim() != 1:
        raise ValueError(f"counts must have shape (classes,), got {tuple(counts.shape)}")
    numbers = counts.double()
    bad = ~torch.isfinite(numbers) | (numbers < 0)
    if bad.any():
        index = int(bad.nonzero()[0])
        raise ValueError(f"the count of class {index} must be 0 or more, got {counts[index].item()}")
    present = numbers > 0
    if not present.any():
        raise ValueError("counts must have at least one labelled image, got none in any class")
    weights = torch.full_like(numbers, ABSENT_CLASS_WEIGHT)
    weights[present] = numbers[present].quantile(0.5) / numbers[present]
    return weights.float()
