"""Corrections of pseudo-labels from weakly augmented images, learned on strongly augmented ones.

Sohn et al., "FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence", NeurIPS 2020, Eq. 4, is
:meth:`~grandrounds.protocol.task.Task.pseudo_labels` and ``pseudo_label_loss`` of the task; in federated averaging it is the
SSFL baseline of Bdair et al. (FedPerl), MELBA 2022, Eq. 3.
"""

from __future__ import annotations

import torch
from torch import Tensor


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

    Example:
        >>> import torch
        >>> class_thresholds(torch.tensor([30, 15, 0]), 0.9)  # 0.9, 0.9 / 3, 0
        tensor([0.9000, 0.3000, 0.0000])
    """
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
