r"""Who tells whom what, so that the encoders of N hospitals are aligned without one image leaving any of them.

For every ordered pair of hospitals (i, j) the loss :math:`L_F^{(i,j)}` of discriminator i over own embeddings
:math:`e_i` and noisy ones :math:`\tilde e_j = e_j + \epsilon_j` of j has a gradient for both encoders. Noise that is
added changes nothing in the chain rule. So hospital k needs

.. math::
    g_k = \frac{\partial}{\partial e_k} \Big[ \sum_{j \ne k} -\overline{\log d_k(e_k)}
        + \sum_{i \ne k} -\overline{\log d_i(\tilde e_k)} \Big]

of which the first sum is its own affair, and the second needs each other hospital's discriminator
(:func:`encoder_objective`) or the gradient from there (:func:`target_gradient`, :func:`gradient_objective`). Both are
exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from grandrounds.methods.fed_align_cl.loss import discriminator_loss, encoder_loss, taken_for_own
from grandrounds.privacy.mechanisms.gaussian import require_clip

RELEASED_WEIGHT = 0.1


def clip_embeddings(embeddings: Tensor, clip: float) -> Tensor:
    r"""Shorten every embedding to a norm of at most ``clip``, with a gradient.

    .. math:: e \cdot \frac{R}{\max(\|e\|_2, R)}

    Args:
        embeddings: shape ``(samples, width)``.
        clip: :math:`R`, above zero.

    Returns:
        The same shape and dtype, with the graph.

    Raises:
        ConfigurationError: if ``clip`` is not positive and finite.

    Example:
        >>> clip_embeddings(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), clip=1.0)
        tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]])
    """
    require_clip(clip)
    norms = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True)
    factors: Tensor = clip / norms.clamp_min(clip)
    return embeddings * factors


def train_discriminator(
    discriminator: nn.Module, optimizer: torch.optim.Optimizer, own: Tensor, others: Sequence[Tensor]
) -> Tensor:
    """Take one step of the discriminator for each other hospital, in their order; no encoder is moved.

    Args:
        discriminator: the hospital's own.
        optimizer: of its parameters.
        own: the hospital's embeddings, shape ``(samples, width)``, without noise; their graph is left alone.
        others: noisy embeddings of each other hospital, each of shape ``(samples, width)``.

    Returns:
        The mean of the losses before the steps, a scalar without a graph.

    Raises:
        ValueError: if there is no other hospital.
    """
    if not others:
        raise ValueError("the discriminator has nobody to tell its hospital from: there are no embeddings of others")
    losses = []
    for theirs in others:
        loss = discriminator_loss(discriminator(own.detach()), discriminator(theirs.detach()))
        _step(discriminator, optimizer, loss)
        losses.append(loss.detach())
    return torch.stack(losses).mean()


def train_discriminator_as_released(
    discriminator: nn.Module, optimizer: torch.optim.Optimizer, own: Tensor, others: Sequence[Tensor]
) -> Tensor:
    r"""The step of the authors' released code, to reproduce its results: the discriminator learns two opposite things.

    The code collects the gradients of both losses in the discriminator before it steps, which amounts to :math:`\nabla
    L_F + 0.1 \, \nabla L_D`, and cuts the embeddings off their encoders, so that no encoder learns anything.

    Args:
        discriminator: as for :func:`train_discriminator`.
        optimizer: of its parameters.
        own: with noise, which the code adds to both sides.
        others: as for :func:`train_discriminator`.

    Returns:
        The mean of :math:`L_D` before the steps, a scalar without a graph.
    """
    losses = []
    for theirs in others:
        logits = discriminator(own.detach()), discriminator(theirs.detach())
        wanted = discriminator_loss(*logits)
        _step(discriminator, optimizer, encoder_loss(*logits) + RELEASED_WEIGHT * wanted)
        losses.append(wanted.detach())
    return torch.stack(losses).mean()


def source_objective(own: nn.Module, embeddings: Tensor, pairs: int) -> Tensor:
    r"""The hospital's part as source in as many pairs: that many times :math:`-\overline{\log d_k(e_k)}`.

    Args:
        own: the hospital's discriminator; the caller steps the encoder alone.
        embeddings: :math:`e_k` with its graph, shape ``(samples, width)``.
        pairs: how many hospitals it is paired with; 0 gives 0.
    """
    return pairs * taken_for_own(own(embeddings)) if pairs else embeddings.new_zeros(())


def target_objective(others: Sequence[nn.Module], noisy: Tensor) -> Tensor:
    r"""The hospital's part as target of others: :math:`\sum_i -\overline{\log d_i(\tilde e_k)}`.

    Args:
        others: discriminators of other hospitals; none gives 0.
        noisy: :math:`\tilde e_k` with the graph of :math:`e_k`, shape ``(samples, width)``.
    """
    return torch.stack([noisy.new_zeros(()), *(taken_for_own(theirs(noisy)) for theirs in others)]).sum()


def encoder_objective(own: nn.Module, others: Sequence[nn.Module], embeddings: Tensor, noisy: Tensor) -> Tensor:
    """What the hospital's encoder minimises: its part as source of all pairs, and as target of all pairs.

    Args:
        own: the hospital's discriminator.
        others: those of the other hospitals.
        embeddings: with their graph, shape ``(samples, width)``.
        noisy: the same with the noise under which they have travelled, with the same graph.

    Returns:
        A scalar with a graph to the embeddings.

    Example:
        >>> certain = lambda embeddings: 200 * torch.ones(len(embeddings))
        >>> encoder_objective(certain, [certain], torch.ones(2, 3), torch.ones(2, 3))
        tensor(0.)
    """
    return source_objective(own, embeddings, len(others)) + target_objective(others, noisy)


def target_gradient(discriminator: nn.Module, noisy: Tensor) -> Tensor:
    r"""What a hospital answers where gradients are returned: :math:`\partial / \partial \tilde e_j` of its loss.

    The gradient has the rank of the discriminator's first layer, four, and shows much of that layer: it is a release.

    Args:
        discriminator: the answering hospital's, after its step.
        noisy: what the other hospital has sent, shape ``(samples, width)``.

    Returns:
        Shape ``(samples, width)``, without a graph.
    """
    asked = noisy.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(taken_for_own(discriminator(asked)), [asked])
    return gradient


def gradient_objective(noisy: Tensor, gradients: Sequence[Tensor]) -> Tensor:
    r"""A stand-in for losses known by their gradients only: :math:`\sum_i \langle g_i, \tilde e_k \rangle`.

    Its gradient is that of the losses; its value means nothing.

    Args:
        noisy: :math:`\tilde e_k` with its graph, shape ``(samples, width)``.
        gradients: from the other hospitals, each of that shape; none gives 0.

    Raises:
        ValueError: if a gradient has another shape.
    """
    for gradient in gradients:
        if gradient.shape != noisy.shape:
            raise ValueError(f"a gradient must have shape {tuple(noisy.shape)}, got {tuple(gradient.shape)}")
    return torch.stack([noisy.new_zeros(()), *((gradient.detach() * noisy).sum() for gradient in gradients)]).sum()


def _step(discriminator: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    optimizer.step()
