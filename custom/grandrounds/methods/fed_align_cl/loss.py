r"""Losses that make the embeddings of sites hard to distinguish: adversarial ones with their discriminators, and of moments.

Jiménez-Sánchez et al., "Memory-aware curriculum federated learning for breast cancer classification", 2021, Eq. 2 and
3, after Li et al., "Multi-site fMRI analysis using privacy-preserving federated learning and domain adaptation",
Medical Image Analysis 2020. A site's discriminator predicts whether an embedding is the site's own; encoders are
trained to have every embedding classified as the site's own.

For every ordered pair of sites (i, j) the loss :math:`L_F^{(i,j)}` of discriminator i over its embeddings :math:`e_i` and
noisy ones :math:`\tilde e_j = e_j + \epsilon_j` of j has a gradient for both encoders, which additive noise does not change.
So site k needs

.. math::
    g_k = \frac{\partial}{\partial e_k} \Big[ \sum_{j \ne k} -\overline{\log d_k(e_k)}
        + \sum_{i \ne k} -\overline{\log d_i(\tilde e_k)} \Big]

of which the first sum is local, and the second needs the discriminators of the other sites (:func:`encoder_objective`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grandrounds.errors import MessageError
from grandrounds.seeding import derive_seed

RARE = 0.01
"""A feature that varies less than this share of the mean variance counts as if it had that share."""


def discriminator_loss(source_logits: Tensor, target_logits: Tensor) -> Tensor:
    r"""The loss of a site's discriminator (Eq. 2).

    .. math:: L_D = -\frac{1}{B_i} \sum \log d(e_i) - \frac{1}{B_j} \sum \log (1 - d(\tilde e_j))

    Args:
        source_logits: of :math:`d` for the site's own embeddings, shape ``(samples,)``, at least one, before the sigmoid.
        target_logits: for noisy embeddings of another site, shape ``(samples,)``; the numbers may differ.

    Returns:
        A scalar, at least zero; 2 ln 2 without any knowledge.

    Example:
        >>> discriminator_loss(torch.zeros(4), torch.zeros(4))
        tensor(1.3863)
    """
    return non_saturating_loss(source_logits) + F.softplus(target_logits).mean()


def encoder_loss(source_logits: Tensor, target_logits: Tensor) -> Tensor:
    r"""The loss of the encoders of both sites while the discriminator is fixed (Eq. 3).

    .. math:: L_F = -\frac{1}{B_i} \sum \log d(e_i) - \frac{1}{B_j} \sum \log d(\tilde e_j)

    Not the negative of :math:`L_D`: its gradient does not vanish where the discriminator is certain. The first term
    also moves the source's embeddings.

    Arguments are those of :func:`discriminator_loss`. Zero where all embeddings are surely classified as the
    site's own.

    Example:
        >>> encoder_loss(torch.full((2,), 200.0), torch.full((3,), 200.0))
        tensor(0.)
    """
    return non_saturating_loss(source_logits) + non_saturating_loss(target_logits)


def non_saturating_loss(logits: Tensor) -> Tensor:
    r"""One term of the above: :math:`-\frac{1}{B} \sum \log d(e)`, from logits of shape ``(samples,)``.

    A site knows the two terms of :math:`L_F` separately: the first as source, the second as target.
    """
    # The logarithm of a sigmoid is infinite where the sigmoid rounds to zero; softplus is exact there.
    return F.softplus(-logits).mean()


def source_objective(own: nn.Module, embeddings: Tensor, pairs: int) -> Tensor:
    r"""The site's part as source in this many pairs: that many times :math:`-\overline{\log d_k(e_k)}`.

    Args:
        own: the site's discriminator; the caller steps the encoder alone.
        embeddings: :math:`e_k` with its graph, shape ``(samples, width)``.
        pairs: number of other sites; 0 gives 0.
    """
    return pairs * non_saturating_loss(own(embeddings)) if pairs else embeddings.new_zeros(())


def target_objective(others: Sequence[nn.Module], noisy: Tensor) -> Tensor:
    r"""The site's part as target of others: :math:`\sum_i -\overline{\log d_i(\tilde e_k)}`.

    Args:
        others: discriminators of other sites; none gives 0.
        noisy: :math:`\tilde e_k` with the graph of :math:`e_k`, shape ``(samples, width)``.
    """
    return torch.stack([noisy.new_zeros(()), *(non_saturating_loss(theirs(noisy)) for theirs in others)]).sum()


def encoder_objective(own: nn.Module, others: Sequence[nn.Module], embeddings: Tensor, noisy: Tensor) -> Tensor:
    """What the site's encoder minimises: its part as source of all pairs, and as target of all pairs.

    Args:
        own: the site's discriminator.
        others: those of the other sites.
        embeddings: as the site's own discriminator sees them, with their graph, shape ``(samples, width)``.
        noisy: as the other sites see them, with the same graph.

    Returns:
        A scalar with a graph to the embeddings.

    Example:
        >>> certain = lambda embeddings: 200 * torch.ones(len(embeddings))
        >>> encoder_objective(certain, [certain], torch.ones(2, 3), torch.ones(2, 3))
        tensor(0.)
    """
    return source_objective(own, embeddings, len(others)) + target_objective(others, noisy)


def moment_distance(embeddings: Tensor, own: Tensor, others: Sequence[Tensor]) -> Tensor:
    r"""How far the means and variances of a site's embeddings are from those of each other site, feature by feature.

    .. math::
        \sum_j \overline{\frac{(m - m_j)^2}{2 s^2} + \frac{(v - v_j)^2}{4 s^4}}, \qquad
        s^2 = \text{mean of the variances of all sites, at least 0.01 of its mean over features}

    After the first two terms of the central moment discrepancy (Zellinger et al., "Central Moment Discrepancy (CMD) for
    Domain-Invariant Representation Learning", ICLR 2017), squared, with factors 1/2 and 1/4 and a scale for each feature.
    The value is that of the banks, so that it shows no progress before the next communication. The gradient is that of the
    value, at a fixed scale, as :math:`m` and :math:`v` change with a batch: a batch's own moments would add their sampling
    variance, which the encoder could reduce by making all embeddings alike.

    Args:
        embeddings: of a batch, with their graph, shape ``(samples, width)``.
        own: the site's bank by the encoder that made the others', for :math:`m` and :math:`v`, shape ``(size, width)``.
        others: the bank of each other site, for :math:`m_j` and :math:`v_j`.

    Returns:
        A scalar, at least zero; 0 where all moments are equal.

    Example:
        >>> bank = torch.tensor([[-1.0], [1.0]])  # variance 1
        >>> moment_distance(bank, bank, [bank]), moment_distance(bank, bank, [bank + 2])  # a shift of 2: 2^2 / 2
        (tensor(0.), tensor(2.))
    """
    banks = [own, *others]
    means = torch.stack([bank.mean(dim=0) for bank in banks])
    variances = torch.stack([bank.var(dim=0, correction=0) for bank in banks])
    scale = variances.mean(dim=0)
    scale = scale.clamp_min((RARE * scale.mean().double()).clamp_min(torch.finfo(own.dtype).eps).to(scale))
    shifts, spreads = means[0] - means[1:], variances[0] - variances[1:]
    distance = (shifts.square() / (2 * scale) + spreads.square() / (4 * scale.square())).mean(dim=1).sum()
    centred = embeddings - means[0]
    change = (shifts.sum(dim=0) * centred / scale + spreads.sum(dim=0) * centred.square() / (2 * scale.square())).mean()
    return distance + (change - change.detach())


HIDDEN_WIDTH = 4

RELEASED_WEIGHT = 0.1


def train_discriminator(
    discriminator: nn.Module,
    optimizer: torch.optim.Optimizer,
    own: Tensor,
    others: Sequence[Tensor],
    as_released: bool = False,
) -> Tensor:
    r"""Take one step of the discriminator for each other site, in their order; no encoder is trained.

    Args:
        discriminator: the site's own.
        optimizer: of its parameters.
        own: the site's embeddings, shape ``(samples, width)``.
        others: noisy embeddings of each other site, at least one, each of shape ``(samples, width)``.
        as_released: take the steps of the authors' released code, to reproduce its results: the discriminator learns two
            opposite things. The code collects the gradients of both losses in the discriminator before it steps, which
            amounts to :math:`\nabla L_F + 0.1 \, \nabla L_D`, and detaches the embeddings from their encoders, so that no
            encoder learns anything. Its own embeddings have noise, too.

    Returns:
        The mean of :math:`L_D` before the steps, a scalar without a graph.
    """
    losses = []
    for theirs in others:
        logits = discriminator(own.detach()), discriminator(theirs.detach())
        loss = discriminator_loss(*logits)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(encoder_loss(*logits) + RELEASED_WEIGHT * loss if as_released else loss)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean()


class Discriminator(nn.Module):
    """Linear layer to four features, ReLU, linear layer to one logit.

    The paper's table prints two outputs; its losses need one probability. Every site trains its own; they are never
    averaged.

    Args:
        width: features of an embedding.

    Example:
        >>> sum(parameter.numel() for parameter in Discriminator(256).parameters())
        1033
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, HIDDEN_WIDTH), nn.ReLU(), nn.Linear(HIDDEN_WIDTH, 1))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Map embeddings ``(samples, width)`` to logits ``(samples,)`` of being the site's own."""
        logits: Tensor = self.layers(embeddings)
        return logits.squeeze(1)


def make_discriminator(width: int, *purpose: int | str) -> Discriminator:
    """A fresh discriminator from a stream of its own; ``purpose`` is for example ``(seed, site, "discriminator")``."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(*purpose))
        return Discriminator(width)


def received_discriminator(state: Mapping[str, Tensor], width: int, name: str) -> Discriminator:
    """Another site's discriminator from what it sent, with fixed parameters.

    Args:
        state: its ``state_dict``.
        width: features of an embedding here.
        name: for errors, for example ``"discriminator of site-2"``.

    Raises:
        MessageError: if an entry is missing, unknown, of another shape or dtype, or not finite.
    """
    discriminator = Discriminator(width)
    expected = discriminator.state_dict()
    if set(state) != set(expected):
        raise MessageError(f"{name}: expected the entries {', '.join(expected)}, got {', '.join(sorted(state))}")
    for entry, own in expected.items():
        value = state[entry]
        if value.shape != own.shape or not value.is_floating_point():
            raise MessageError(
                f"{name}: {entry} must be of floating point and of shape {tuple(own.shape)}, got {value.dtype} of shape "
                f"{tuple(value.shape)}; do all sites have the same backbone?"
            )
        if not bool(torch.isfinite(value).all()):
            raise MessageError(f"{name}: {entry} has a value that is NaN or infinite")
    discriminator.to(next(iter(state.values())).dtype).load_state_dict(state)
    return discriminator.requires_grad_(False)
