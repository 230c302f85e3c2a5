"""Pseudo-labels from weakly augmented images, learned on strongly augmented ones.

Sohn et al., "FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence", NeurIPS 2020, Eq. 4; in
federated averaging it is the SSFL baseline of Bdair et al. (FedPerl), MELBA 2022, Eq. 3.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
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

    Of findings each has shape ``(batch, findings)``, and a label is 1 (present) or 0.
    """

    labels: Tensor
    accepted: Tensor
    confidence: Tensor


def pseudo_labels(probabilities: Tensor, threshold: float | Tensor) -> PseudoLabels:
    r"""Label each image with its most probable class, and accept confident labels.

    .. math:: \hat y_i = \arg\max_c p_{ic}, \qquad m_i = [\max_c p_{ic} \ge \tau]

    Args:
        probabilities: predictions on the weak view, shape ``(batch, classes)``; rows sum to one.
        threshold: :math:`\tau`, in [0, 1], or one for each class, shape ``(classes,)``; a confidence of exactly the
            threshold is accepted.

    Raises:
        ValueError: if the threshold is not in [0, 1], or a row is not a distribution.

    Example:
        >>> import torch
        >>> pseudo_labels(torch.tensor([[0.65, 0.20, 0.15], [0.3, 0.5, 0.2]]), threshold=0.6).accepted
        tensor([ True, False])
    """
    require_probabilities(probabilities, "probabilities")
    confidence, labels = probabilities.max(dim=1)
    if isinstance(threshold, Tensor):
        return PseudoLabels(labels, confidence >= threshold[labels], confidence)
    return PseudoLabels(labels, confidence >= require_fraction(threshold, "threshold"), confidence)


def finding_pseudo_labels(probabilities: Tensor, threshold: float | Tensor) -> PseudoLabels:
    r"""Label each finding of each image, and accept confident labels.

    .. math:: \hat y_{if} = [p_{if} \ge \tfrac{1}{2}], \qquad m_{if} = [p_{if} \ge \tau] + [p_{if} \le 1 - \tau]

    Args:
        probabilities: predictions on the weak view, in [0, 1], shape ``(batch, findings)``.
        threshold: :math:`\tau`, in [0, 1]; a confidence of exactly the threshold is accepted.

    Raises:
        ValueError: if the threshold is not in [0, 1].

    Example:
        >>> import torch
        >>> found = finding_pseudo_labels(torch.tensor([[0.95, 0.6, 0.05]]), threshold=0.9)
        >>> found.labels, found.accepted
        (tensor([[1, 1, 0]]), tensor([[ True, False,  True]]))
    """
    if not isinstance(threshold, Tensor):
        require_fraction(threshold, "threshold")
    confidence = probabilities.maximum(1 - probabilities)
    return PseudoLabels((probabilities >= 0.5).long(), confidence >= threshold, confidence)


def class_thresholds(confident: Tensor, threshold: float) -> Tensor:
    r"""Lower the threshold of classes that are seldom predicted with confidence.

    .. math:: \tau_c = \frac{\beta_c}{2 - \beta_c} \tau, \qquad \beta_c = \sigma_c / \max_j \sigma_j

    Curriculum pseudo-labels of Zhang et al., "FlexMatch: Boosting Semi-Supervised Learning with Curriculum Pseudo
    Labeling", NeurIPS 2021, Eq. 6, 7 and 10.

    Args:
        confident: :math:`\sigma`, unlabelled images that reach the threshold, by predicted class, shape ``(classes,)``.
        threshold: :math:`\tau`, in [0, 1].

    Returns:
        :math:`\tau_c`, shape ``(classes,)``, float32; the threshold itself for all classes where no image reaches it.

    Raises:
        ValueError: if the threshold is not in [0, 1], or counts are not one-dimensional or negative.

    Example:
        >>> import torch
        >>> class_thresholds(torch.tensor([30, 15, 0]), 0.9)  # 0.9, 0.9 / 3, 0
        tensor([0.9000, 0.3000, 0.0000])
    """
    require_fraction(threshold, "threshold")
    if confident.dim() != 1 or bool((confident < 0).any()):
        raise ValueError(f"confident must be counts by class, shape (classes,), got {confident.tolist()}")
    most = confident.max()
    if not most:
        return confident.new_full(confident.shape, threshold, dtype=torch.float32)
    learnt = confident.float() / most
    return learnt / (2 - learnt) * threshold


def aligned(probabilities: Tensor, predicted: Tensor, expected: Tensor) -> Tensor:
    r"""Scale predictions so that the classes are predicted as often as they are expected.

    .. math:: \tilde p_{ic} \propto p_{ic} \, q_c / \bar p_c

    Distribution alignment of Berthelot et al., "ReMixMatch: Semi-Supervised Learning with Distribution Alignment and
    Augmentation Anchoring", ICLR 2020, Section 3.1.

    Args:
        probabilities: :math:`p`, shape ``(batch, classes)``.
        predicted: :math:`\bar p`, mean prediction on unlabelled images, shape ``(classes,)``.
        expected: :math:`q`, shares of the classes, shape ``(classes,)``, summing to one.

    Returns:
        Probabilities, shape ``(batch, classes)``; rows sum to one.

    Example:
        >>> import torch
        >>> aligned(torch.tensor([[0.6, 0.4]]), torch.tensor([0.75, 0.25]), torch.tensor([0.5, 0.5]))  # 0.4 : 0.8
        tensor([[0.3333, 0.6667]])
    """
    scaled = probabilities * (expected / predicted.clamp_min(torch.finfo(predicted.dtype).eps))
    return scaled / scaled.sum(dim=1, keepdim=True)


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


def unsupervised_finding_loss(
    strong_logits: Tensor, labels: Tensor, accepted: Tensor, batch_size: int, reduction: UnsupervisedReduction
) -> Tensor:
    r"""Binary cross-entropy of the strong views with the accepted pseudo-labels of findings.

    .. math:: L_u = -\frac{1}{Z} \sum_{(i, f) : m_{if} = 1}
        \big[ \hat y_{if} \ln p_{if} + (1 - \hat y_{if}) \ln (1 - p_{if}) \big]

    with :math:`Z` the number accepted (``accepted_mean``), or all findings of the batch they were accepted from
    (``batch_mean``).

    Args:
        strong_logits: predictions on the strong views of images with an accepted finding, shape ``(images, findings)``.
        labels: their pseudo-labels, int64.
        accepted: which of these are learnt, bool.
        batch_size: unlabelled images of the batch, with an accepted finding or not.
        reduction: the divisor.

    Returns:
        Scalar, in nats; a differentiable zero if nothing is accepted.

    Raises:
        ValueError: if shapes do not fit together, or there are more images than the batch has.

    Example:
        >>> import torch
        >>> accepted = torch.tensor([[True, False]])  # one of four findings: ln(2) / 4
        >>> unsupervised_finding_loss(torch.zeros(1, 2), torch.tensor([[1, 1]]), accepted, 2, "batch_mean")
        tensor(0.1733)
    """
    if strong_logits.dim() != 2 or not strong_logits.shape == labels.shape == accepted.shape:
        raise ValueError(
            "expected strong_logits, labels and accepted of shape (images, findings), "
            f"got {tuple(strong_logits.shape)}, {tuple(labels.shape)} and {tuple(accepted.shape)}"
        )
    require_at_least(batch_size, len(labels), "batch_size")
    losses = F.binary_cross_entropy_with_logits(strong_logits, labels.to(strong_logits), reduction="none")
    divisor = int(accepted.sum()) if reduction == "accepted_mean" else batch_size * labels.shape[1]
    return torch.where(accepted, losses, 0.0).sum() / max(divisor, 1)
