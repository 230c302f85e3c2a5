"""The losses of mutual learning: local training on noisy labels, and learning from the soft labels of other sites.

MDH-FL ("Federated Learning for Data and Model Heterogeneity in Medical Imaging", arXiv 2308.00155) and RHFL (Fang & Ye,
"Robust Federated Learning with Noisy and Heterogeneous Clients", CVPR 2022) train on the symmetric cross-entropy of Wang et
al. ("Symmetric Cross Entropy for Robust Learning with Noisy Labels", ICCV 2019). RHFL+ (Fang, Ye & Du, IEEE TMC 2024)
trusts its own predictions more from epoch to epoch; its formula is that of the authors' code. FedMD: Li & Wang, "FedMD:
Heterogenous Federated Learning via Model Distillation", 2019.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

LABEL_FLOOR = 1e-4


def reverse_cross_entropy(logits: Tensor, labels: Tensor, floor: float = LABEL_FLOOR) -> Tensor:
    r"""Cross-entropy with the roles of prediction and label exchanged; bounded, so that a wrong label costs little.

    .. math:: L_{RCE} = -\frac{1}{B} \sum_i \sum_k p_{ik} \ln \max(y_{ik}, f) = \frac{|A|}{B} \sum_i (1 - p_{i y_i})

    with :math:`A = \ln f` in place of the logarithm of zero.

    Args:
        logits: shape ``(batch, classes)``, floating point.
        labels: class indices, shape ``(batch,)``, int64.
        floor: :math:`f`, in (0, 1). 1e-4 is the authors' (A = -9.21); the A = -4 that is quoted is its decimal logarithm,
            and as a natural one it is the floor exp(-4).

    Returns:
        Scalar in [0, ``-ln floor``], in nats; zero, and still differentiable, for an empty batch.

    Example:
        >>> reverse_cross_entropy(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))  # 9.2103 * 0.3348
        tensor(3.0832)
    """
    if not len(labels):
        return logits.sum()
    given = logits.softmax(dim=1).gather(1, labels[:, None])
    return -math.log(floor) * (1 - given).mean()


def symmetric_cross_entropy(
    logits: Tensor, labels: Tensor, ce_weight: float = 0.1, rce_weight: float = 1.0, floor: float = LABEL_FLOOR
) -> Tensor:
    r"""Cross-entropy, which learns, and reverse cross-entropy, which is robust (MDH-FL, Eq. 7, as a mean).

    .. math:: L = \lambda L_{CE} + \beta L_{RCE}, \qquad
        \frac{\partial L}{\partial z_k} = (\lambda + \beta |A| p_y)(p_k - y_k) / B

    So it is cross-entropy that weighs a sample by how probable its label already seems.

    Args:
        logits: shape ``(batch, classes)``, floating point.
        labels: class indices, shape ``(batch,)``, int64.
        ce_weight: :math:`\lambda`, at least zero; 1 with ``rce_weight=0`` is cross-entropy.
        rce_weight: :math:`\beta`, at least zero.
        floor: of the labels, in (0, 1).

    Returns:
        Scalar, in nats; zero, and still differentiable, for an empty batch.

    Example:
        >>> logits, labels = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0])
        >>> symmetric_cross_entropy(logits, labels)
        tensor(3.1240)
        >>> symmetric_cross_entropy(logits, labels, ce_weight=1.0, rce_weight=0.0)  # cross-entropy
        tensor(0.4076)
    """
    reverse = reverse_cross_entropy(logits, labels, floor)
    usual = F.cross_entropy(logits, labels, reduction="sum") / max(len(labels), 1)
    return ce_weight * usual + rce_weight * reverse


def refined_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    trust: float,
    temperature: float = 4.0,
    ce_weight: float = 0.4,
    rce_weight: float = 0.9,
    floor: float = LABEL_FLOOR,
) -> Tensor:
    r"""Symmetric cross-entropy with labels that are refined by the model's own predictions (RHFL+, collaborative epochs).

    .. math::
        p = \mathrm{softmax}(z / T), \quad s = (1 - w) \max(y, f) + w \, p, \quad
        L = -\frac{1}{B} \sum_{i, k} \big( \alpha \, s_{ik} \ln p_{ik} + \beta \, p_{ik} \ln s_{ik} \big)

    The refined labels :math:`s` have no gradient. As in the code both terms use the floor, so that with ``trust=0`` and
    ``temperature=1`` the first term exceeds cross-entropy by the floor times the negative log-probability of the other
    classes.

    Args:
        logits: shape ``(batch, classes)``, floating point.
        labels: class indices, shape ``(batch,)``, int64.
        trust: :math:`w`, weight of the predictions, in [0, 1]; grows with the epochs, see ``schedule.label_trust``.
        temperature: :math:`T`, above zero.
        ce_weight: :math:`\alpha`, at least zero.
        rce_weight: :math:`\beta`, at least zero.
        floor: :math:`f`, in (0, 1).

    Returns:
        Scalar, in nats; zero, and still differentiable, for an empty batch.

    Example:
        >>> logits, labels = torch.zeros(1, 2), torch.tensor([0])
        >>> refined_cross_entropy(logits, labels, trust=1.0, ce_weight=1.0, rce_weight=0.0)  # ln 2
        tensor(0.6931)
    """
    surprise = (logits / temperature).log_softmax(dim=1)
    own = surprise.exp()
    given = F.one_hot(labels, logits.shape[1]).to(logits).clamp(min=floor)
    refined = torch.lerp(given, own.detach(), trust)
    # A probability that has underflowed must not make the logarithm infinite when it is trusted alone.
    logarithm = refined.clamp(min=torch.finfo(refined.dtype).tiny).log()
    losses = -(ce_weight * refined * surprise + rce_weight * own * logarithm).sum(dim=1)
    return losses.sum() / max(len(labels), 1)


def alignment_loss(logits: Tensor, target: Tensor) -> Tensor:
    r"""Divergence of a model's predictions from the mean of the other sites' (MDH-FL, Eq. 3, up to a constant).

    .. math:: L = \frac{1}{B} \sum_{i, c} m_{ic} \ln \frac{m_{ic}}{p_{ic}}, \qquad
        \frac{\partial L}{\partial z} = (p - m) / B

    The target has no gradient; there is no temperature. MDH-FL and RHFL take the mean over the others of
    KL(theirs || own), which differs from KL(mean of theirs || own) by a term without the model's parameters. So the
    gradient is the same, and the mean is all that a site has to know.

    Args:
        logits: the model's, shape ``(batch, classes)``.
        target: :math:`m`, probabilities of that shape; zeros are allowed.

    Returns:
        Scalar, in nats, at least zero; zero, and still differentiable, for an empty batch.

    Example:
        >>> own = torch.tensor([[0.5, 0.5]]).log()
        >>> alignment_loss(own, torch.tensor([[1.0, 0.0]]))  # ln 2
        tensor(0.6931)
        >>> alignment_loss(own, own.softmax(dim=1))  # they agree
        tensor(0.)
    """
    wanted = target.detach()
    divergences = torch.xlogy(wanted, wanted) - wanted * logits.log_softmax(dim=1)
    return divergences.sum() / max(len(logits), 1)


def digest_loss(logits: Tensor, target: Tensor) -> Tensor:
    r"""Mean absolute difference of a model's logits from the mean of all sites' logits (FedMD, "digest").

    .. math:: L = \frac{1}{B C} \sum_{i, c} | z_{ic} - \bar z_{ic} |

    Args:
        logits: the model's, shape ``(batch, classes)``.
        target: :math:`\bar z`, mean of the logits of all sites, this one included; no gradient.

    Returns:
        Scalar, at least zero; zero, and still differentiable, for an empty batch.

    Example:
        >>> digest_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.5]]))
        tensor(0.7500)
    """
    return (logits - target.detach()).abs().sum() / max(logits.numel(), 1)
