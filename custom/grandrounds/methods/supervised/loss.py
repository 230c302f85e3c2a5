"""Frequent and rare classes in the loss of labelled images: weights of classes, and logits adjusted by class shares.

The weights are those of FedPerl's released code (Bdair et al., "Semi-Supervised Federated Peer Learning for Skin Lesion
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
        counts: labelled images per class, shape ``(classes,)``, not negative and not all zero.

    Returns:
        Weights, shape ``(classes,)``, float32. That of an absent class matters for validation images only.

    Example:
        >>> median_class_weights(torch.tensor([40, 10, 20, 0]))
        tensor([  0.5000,   2.0000,   1.0000, 100.0000])
        >>> median_class_weights(torch.tensor([7, 7]))  # balanced classes
        tensor([1., 1.])
    """
    numbers = counts.double()
    present = numbers > 0
    weights = torch.full_like(numbers, ABSENT_CLASS_WEIGHT)
    weights[present] = numbers[present].quantile(0.5) / numbers[present]
    return weights.float()


def adjusted_logits(logits: Tensor, counts: Tensor, strength: float) -> Tensor:
    r"""Add the log shares of the classes, so that the loss does not draw a model to the classes that are frequent here.

    .. math:: z_{ic} + \tau \ln \frac{n_c + 1}{\sum_k (n_k + 1)}

    Menon et al., "Long-tail learning via logit adjustment", ICLR 2021, Eq. 10; strength 1 is balanced softmax (Ren et al.,
    "Balanced meta-softmax for long-tailed visual recognition", NeurIPS 2020, Eq. 4). By site, with the shares of its own
    labels: Zhang et al., "Federated learning with label distribution skew via logits calibration", ICML 2022.

    Args:
        logits: shape ``(batch, classes)``.
        counts: :math:`n`, labelled images of each class, shape ``(classes,)``; a class without any counts as one image.
        strength: :math:`\tau`, at least zero.

    Example:
        >>> adjusted_logits(torch.zeros(1, 2), torch.tensor([2, 0]), 1.0).exp()  # 3 and 1 of 4
        tensor([[0.7500, 0.2500]])
    """
    smoothed = counts.to(logits) + 1
    return logits + strength * (smoothed / smoothed.sum()).log()
