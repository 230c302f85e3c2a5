"""Class-weighted cross-entropy on labelled images, and its counterpart for findings.

The weights are those of FedPerl's released code (Bdair et al., "Semi-Supervised Federated Peer Learning for Skin Lesion
Classification", MELBA 2022), which its text does not mention.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

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


def supervised_loss(logits: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
    r"""Weighted mean of the cross-entropy.

    .. math:: L_s = \sum_i w_{y_i} \, \mathrm{CE}(y_i, f(x_i)) \big/ \sum_i w_{y_i}

    Args:
        logits: shape ``(batch, classes)``, floating point.
        labels: class indices, shape ``(batch,)``, int64.
        class_weights: :math:`w`, shape ``(classes,)``, not negative; None for equal weights.

    Returns:
        Scalar, in nats; zero, with zero gradient, if the batch is empty or its weights are all zero.

    Raises:
        ValueError: if the shapes do not fit together.

    Example:
        >>> supervised_loss(torch.zeros(2, 3), torch.tensor([0, 2]), torch.tensor([0.5, 2.0, 1.0]))  # ln 3
        tensor(1.0986)
    """
    if logits.dim() != 2 or labels.shape != logits.shape[:1]:
        raise ValueError(
            f"expected logits (batch, classes) and labels (batch,), got {tuple(logits.shape)} and {tuple(labels.shape)}"
        )
    weights = logits.new_ones(logits.shape[1]) if class_weights is None else class_weights.to(logits)
    if weights.shape != logits.shape[1:]:
        raise ValueError(f"class_weights must have shape ({logits.shape[1]},), got {tuple(weights.shape)}")
    total = F.cross_entropy(logits, labels, weight=weights, reduction="sum")
    # With weights of zero the sum is zero, too: any positive divisor avoids 0/0.
    divisor = weights[labels].sum()
    return total / divisor.where(divisor > 0, divisor.new_ones(()))


def multi_label_loss(logits: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
    r"""Binary cross-entropy, mean over the findings of which it is known whether an image shows them.

    .. math:: L_s = -\frac{1}{|K|} \sum_{(i, f) \in K} \big[ w_f y_{if} \ln p_{if} + (1 - y_{if}) \ln (1 - p_{if}) \big],
        \qquad p = \sigma(z)

    Args:
        logits: :math:`z`, shape ``(batch, findings)``, floating point.
        labels: :math:`y`: 1 present, 0 absent, negative where it is not known, shape ``(batch, findings)``, int64.
        class_weights: :math:`w`, the weight of images that show the finding, shape ``(findings,)``, not negative; None for
            equal weights.

    Returns:
        Scalar, in nats; zero, with zero gradient, if nothing is known.

    Raises:
        ValueError: if the shapes do not fit together.

    Example:
        >>> logits, labels = torch.zeros(1, 3), torch.tensor([[1, 0, -1]])
        >>> multi_label_loss(logits, labels, torch.tensor([3.0, 1.0, 1.0]))  # (3 ln 2 + ln 2) / 2
        tensor(1.3863)
    """
    if logits.dim() != 2 or labels.shape != logits.shape:
        raise ValueError(
            f"expected logits and labels of shape (batch, findings), got {tuple(logits.shape)} and {tuple(labels.shape)}"
        )
    if class_weights is not None and class_weights.shape != logits.shape[1:]:
        raise ValueError(f"class_weights must have shape ({logits.shape[1]},), got {tuple(class_weights.shape)}")
    known = labels >= 0
    weights = None if class_weights is None else class_weights.to(logits)
    losses = F.binary_cross_entropy_with_logits(
        logits, labels.clamp(min=0).to(logits), pos_weight=weights, reduction="none"
    )
    return torch.where(known, losses, 0.0).sum() / known.sum().clamp(min=1)
