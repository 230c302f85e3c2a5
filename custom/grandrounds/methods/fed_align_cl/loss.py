"""Adversarial losses that make the embeddings of two hospitals hard to tell apart.

Jiménez-Sánchez et al., "Memory-aware curriculum federated learning for breast cancer classification", 2021, Eq. 2 and
3, after Li et al., "Multi-site fMRI analysis using privacy-preserving federated learning and domain adaptation",
Medical Image Analysis 2020. The discriminator of a hospital says of an embedding how likely it is its own; encoders are
trained to have everything taken for its own, whatever it is.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def discriminator_loss(source_logits: Tensor, target_logits: Tensor) -> Tensor:
    r"""What a hospital's discriminator learns: own embeddings are own, others' are not (Eq. 2).

    .. math:: L_D = -\frac{1}{B_i} \sum \log d(e_i) - \frac{1}{B_j} \sum \log (1 - d(\tilde e_j))

    Args:
        source_logits: of :math:`d` for the hospital's own embeddings, shape ``(samples,)``, before the sigmoid.
        target_logits: for noisy embeddings of another hospital, shape ``(samples,)``; the numbers may differ.

    Returns:
        A scalar, at least zero; 2 ln 2 where nothing is known.

    Raises:
        ValueError: if a shape is another, or there is no sample.

    Example:
        >>> import torch
        >>> nothing_known = torch.zeros(4)
        >>> discriminator_loss(nothing_known, nothing_known)
        tensor(1.3863)
    """
    return taken_for_own(source_logits) + _mean_softplus(target_logits, "target_logits")


def encoder_loss(source_logits: Tensor, target_logits: Tensor) -> Tensor:
    r"""What the encoders of both hospitals learn while the discriminator stays as it is (Eq. 3).

    .. math:: L_F = -\frac{1}{B_i} \sum \log d(e_i) - \frac{1}{B_j} \sum \log d(\tilde e_j)

    Not the negative of :math:`L_D`: its gradient does not vanish where the discriminator is certain. The first term
    moves the source's embeddings as well.

    Args:
        source_logits: as for :func:`discriminator_loss`.
        target_logits: as for :func:`discriminator_loss`.

    Returns:
        A scalar, at least zero; zero where all embeddings are surely taken for the hospital's own.

    Raises:
        ValueError: if a shape is another, or there is no sample.

    Example:
        >>> import torch
        >>> encoder_loss(torch.full((2,), 200.0), torch.full((3,), 200.0))
        tensor(0.)
    """
    return taken_for_own(source_logits) + taken_for_own(target_logits)


def taken_for_own(logits: Tensor) -> Tensor:
    r"""One term of the above: :math:`-\frac{1}{B} \sum \log d(e)`, from logits of shape ``(samples,)``.

    A hospital knows the two terms of :math:`L_F` separately: the first as source, the second as target.

    Raises:
        ValueError: if the shape is another, or there is no sample.
    """
    return _mean_softplus(-logits, "logits")


def _mean_softplus(values: Tensor, name: str) -> Tensor:
    # The logarithm of a sigmoid is infinite where the sigmoid rounds to zero; softplus is exact there.
    if values.dim() != 1 or not len(values):
        raise ValueError(f"{name} must have shape (samples,) with a sample at least, got {tuple(values.shape)}")
    return F.softplus(values).mean()
