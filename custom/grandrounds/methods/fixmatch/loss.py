"""Pseudo-labels from weakly augmented images, learned on strongly augmented ones.

Sohn et al., "FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence", NeurIPS 2020, Eq. 4; in
federated averaging it is the SSFL baseline of Bdair et al. (FedPerl), MELBA 2022, Eq. 3.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor
from torch.nn import functional as F

from grandrounds.checks import require_at_least, require_fraction, require_probabilities

UnsupervisedReduction = Literal["accepted_mean", "batch_mean"]


class PseudoLabels(NamedTuple):
    """Pseudo-labels of a batch, and which of them are accepted.

    Attributes:
        labels: most probable class, shape ``(batch,)``, int64; the lower index where two are equal.
        accepted: whether the confidence reaches the threshold, shape ``(batch,)``, bool.
        confidence: probability of the label, shape ``(batch,)``, in [0, 1].
    """

    labels: Tensor
    accepted: Tensor
    confidence: Tensor


def pseudo_labels(probabilities: Tensor, threshold: float) -> PseudoLabels:
    r"""Label each image with its most probable class, and accept confident labels.

    .. math:: \hat y_i = \arg\max_c p_{ic}, \qquad m_i = [\max_c p_{ic} \ge \tau]

    Args:
        probabilities: predictions on the weak view, shape ``(batch, classes)``; rows sum to one.
        threshold: :math:`\tau`, in [0, 1]; a confidence of exactly the threshold is accepted.

    Raises:
        ValueError: if the threshold is not in [0, 1], or a row is not a distribution.

    Example:
        >>> import torch
        >>> pseudo_labels(torch.tensor([[0.65, 0.20, 0.15], [0.3, 0.5, 0.2]]), threshold=0.6).accepted
        tensor([ True, False])
    """
    require_fraction(threshold, "threshold")
    require_probabilities(probabilities, "probabilities")
    confidence, labels = probabilities.max(dim=1)
    return PseudoLabels(labels, confidence >= threshold, confidence)


def unsupervised_loss(
    strong_logits: Tensor, labels: Tensor, batch_size: int, reduction: UnsupervisedReduction
) -> Tensor:
    r"""Cross-entropy of the strong views with the accepted pseudo-labels.

    .. math:: L_u = \frac{1}{Z} \sum_{i : m_i = 1} \mathrm{CE}(\hat y_i, f(\mathcal{A}(x_i)))

    with :math:`Z` the number accepted (``accepted_mean``, FedPerl) or the size of the batch they were accepted from
    (``batch_mean``, FixMatch).

    Args:
        strong_logits: predictions on the strong views of the accepted images only, shape ``(accepted, classes)``.
        labels: their pseudo-labels, shape ``(accepted,)``, int64.
        batch_size: unlabelled images of the batch, accepted or not.
        reduction: the divisor.

    Returns:
        Scalar, in nats; a differentiable zero if nothing is accepted.

    Raises:
        ValueError: if shapes do not fit together, more are accepted than the batch has, or the reduction is unknown.

    Example:
        >>> import torch
        >>> unsupervised_loss(torch.zeros(2, 3), torch.tensor([0, 1]), batch_size=4, reduction="batch_mean")  # ln(3)/2
        tensor(0.5493)
        >>> unsupervised_loss(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), 4, "accepted_mean")
        tensor(0.)
    """
    if reduction not in ("accepted_mean", "batch_mean"):
        raise ValueError(f"reduction must be accepted_mean or batch_mean, got {reduction!r}")
    if strong_logits.dim() != 2 or labels.shape != strong_logits.shape[:1]:
        raise ValueError(
            "expected strong_logits (accepted, classes) and labels (accepted,), "
            f"got {tuple(strong_logits.shape)} and {tuple(labels.shape)}"
        )
    accepted = len(labels)
    require_at_least(batch_size, accepted, "batch_size")
    divisor = accepted if reduction == "accepted_mean" else batch_size
    return F.cross_entropy(strong_logits, labels, reduction="sum") / max(divisor, 1)
