"""An oracle for tests: iterations in which all sites wait for each other, so that alignment has no delay.

All sites are in one process; what they hand each other is exactly what would be sent. Sites that are missing are not among
the trainers. All exchanges make the same updates up to rounding, but ``server_side``, whose discriminators get all
embeddings with noise, also the source's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from grandrounds.methods.fed_align_cl.iteration import AlignmentTrainer, Embedded
from grandrounds.methods.fed_align_cl.loss import (
    non_saturating_loss,
    received_discriminator,
    source_objective,
    target_objective,
    train_discriminator,
)
from grandrounds.ordering import natural_sorted

Batch = tuple[Tensor, Tensor]


class ServerAdversary:
    """The discriminators of all hospitals at the server, which answers every hospital by one gradient.

    The server must be trusted with noisy embeddings; the hospitals see neither each other's nor any discriminator.

    Args:
        discriminators: by site.
        optimizers: of them, by site.
    """

    def __init__(
        self, discriminators: Mapping[str, nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]
    ) -> None:
        self._discriminators = discriminators
        self._optimizers = optimizers

    def answers(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Train the discriminators of the sites that have sent embeddings, and answer these.

        Args:
            sent: noisy embeddings by site, each of shape ``(samples, width)``, of two sites at least.

        Returns:
            By site the gradient of its part as source and as target of all pairs, of the shape of what it has sent.
        """
        sites = natural_sorted(sent)
        for site in sites:
            others = [sent[other] for other in sites if other != site]
            train_discriminator(self._discriminators[site], self._optimizers[site], sent[site], others)
        return {site: self._answer(site, sent) for site in sites}

    def _answer(self, site: str, sent: Mapping[str, Tensor]) -> Tensor:
        asked = sent[site].detach().requires_grad_()
        others = [self._discriminators[other] for other in natural_sorted(sent) if other != site]
        loss = source_objective(self._discriminators[site], asked, len(others)) + target_objective(others, asked)
        (gradient,) = torch.autograd.grad(loss, [asked])
        return gradient


def synchronous_iteration(
    trainers: Mapping[str, AlignmentTrainer],
    batches: Mapping[str, Batch],
    exchange: str,
    update: str = "summed",
    server: ServerAdversary | None = None,
) -> None:
    """Train all hospitals in place on one batch of each.

    Args:
        trainers: by site, two at least.
        batches: images and labels by site.
        exchange: ``ship_discriminator``, ``return_gradient`` or ``server_side``.
        update: ``summed`` or ``pair_sequential``.
        server: for ``server_side``.

    Raises:
        ValueError: if ``server_side`` has no server, or the exchange is unknown.
    """
    sites = natural_sorted(trainers)
    for site in sites:
        trainers[site].classify(*batches[site])
    images = {site: batches[site][0] for site in sites}
    if update == "pair_sequential":
        _pair_by_pair(trainers, images)
        return
    own = {site: trainers[site].embed(images[site]) for site in sites}
    sent = {site: embedded.noisy.detach() for site, embedded in own.items()}
    if exchange == "server_side":
        if server is None:
            raise ValueError("server_side needs the server's discriminators")
        for site, gradient in server.answers(sent).items():
            trainers[site].step_encoder(gradient_objective(own[site].noisy, [gradient]))
        return
    for site in sites:
        trainers[site].discriminate(own[site], [sent[other] for other in sites if other != site])
    if exchange == "ship_discriminator":
        _by_discriminators(trainers, own, sites)
    elif exchange == "return_gradient":
        _by_answers(trainers, own, sent, sites)
    else:
        raise ValueError(f"unknown exchange {exchange!r}")


def _by_discriminators(
    trainers: Mapping[str, AlignmentTrainer], own: Mapping[str, Embedded], sites: Sequence[str]
) -> None:
    shipped = {site: _shipped(trainers[site], site) for site in sites}
    for site in sites:
        trainers[site].align(own[site], [shipped[other] for other in sites if other != site])


def _by_answers(
    trainers: Mapping[str, AlignmentTrainer],
    own: Mapping[str, Embedded],
    sent: Mapping[str, Tensor],
    sites: Sequence[str],
) -> None:
    for site in sites:
        answers = [target_gradient(trainers[other].discriminator, sent[site]) for other in sites if other != site]
        align_by_answers(trainers[site], own[site], answers)


def align_by_answers(trainer: AlignmentTrainer, own: Embedded, answers: Sequence[Tensor]) -> None:
    """One step of the encoder on all pairs, given each other site's gradient."""
    source = source_objective(trainer.discriminator, own.source, len(answers))
    trainer.step_encoder(source + gradient_objective(own.noisy, answers))


def _pair_by_pair(trainers: Mapping[str, AlignmentTrainer], images: Mapping[str, Tensor]) -> None:
    """Algorithm 1 literally: discriminator and both encoders take a step for each pair, and embed again for the next."""
    sites = natural_sorted(trainers)
    for source in sites:
        for target in sites:
            if source == target:
                continue
            ours, theirs = (trainers[site].embed(images[site]) for site in (source, target))
            trainers[source].discriminate(ours, [theirs.noisy])
            trainers[target].align_as_target(theirs, _shipped(trainers[source], source))
            trainers[source].align_as_source(ours)


def _shipped(trainer: AlignmentTrainer, site: str) -> nn.Module:
    state = {name: tensor.clone() for name, tensor in trainer.discriminator.state_dict().items()}
    width = next(iter(state.values())).shape[1]
    return received_discriminator(state, width, f"discriminator of {site}")


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
    (gradient,) = torch.autograd.grad(non_saturating_loss(discriminator(asked)), [asked])
    return gradient


def gradient_objective(noisy: Tensor, gradients: Sequence[Tensor]) -> Tensor:
    r"""A substitute for losses known by their gradients only: :math:`\sum_i \langle g_i, \tilde e_k \rangle`.

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
