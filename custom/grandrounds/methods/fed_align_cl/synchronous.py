"""An iteration in which all hospitals wait for each other: alignment without any delay, at two messages per pair.

Here all hospitals are in one process, for comparison with ``paced`` and for studies; what they hand each other is exactly
what would travel. Hospitals that are missing are not among the participants. All exchanges make the same updates up to
rounding, but ``server_side``, whose discriminators see all embeddings with noise, the source's as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from grandrounds.methods.fed_align_cl.alignment import source_objective, target_objective, train_discriminator
from grandrounds.methods.fed_align_cl.loss import received_discriminator
from grandrounds.methods.fed_align_cl.options import AlignmentOptions
from grandrounds.methods.fed_align_cl.participant import Embedded, Participant
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
    participants: Mapping[str, Participant],
    batches: Mapping[str, Batch],
    options: AlignmentOptions,
    server: ServerAdversary | None = None,
) -> None:
    """Train all hospitals in place on one batch of each.

    Args:
        participants: by site, two at least.
        batches: images and labels by site.
        options: ``exchange`` (not ``paced``) and ``update``.
        server: for ``server_side``.

    Raises:
        ValueError: if ``server_side`` has no server, or the exchange is ``paced``.
    """
    sites = natural_sorted(participants)
    for site in sites:
        participants[site].classify(*batches[site])
    images = {site: batches[site][0] for site in sites}
    if options.update == "pair_sequential":
        _pair_by_pair(participants, images)
        return
    own = {site: participants[site].embed(images[site]) for site in sites}
    sent = {site: embedded.noisy.detach() for site, embedded in own.items()}
    if options.exchange == "server_side":
        if server is None:
            raise ValueError("server_side needs the server's discriminators")
        for site, gradient in server.answers(sent).items():
            participants[site].align_by_gradient(own[site], gradient)
        return
    for site in sites:
        participants[site].discriminate(own[site], [sent[other] for other in sites if other != site])
    if options.exchange == "ship_discriminator":
        _by_discriminators(participants, own, sites)
    elif options.exchange == "return_gradient":
        _by_answers(participants, own, sent, sites)
    else:
        raise ValueError(f"an iteration in step needs an exchange in every iteration, got {options.exchange!r}")


def _by_discriminators(
    participants: Mapping[str, Participant], own: Mapping[str, Embedded], sites: Sequence[str]
) -> None:
    shipped = {site: _shipped(participants[site], site) for site in sites}
    for site in sites:
        participants[site].align(own[site], [shipped[other] for other in sites if other != site])


def _by_answers(
    participants: Mapping[str, Participant],
    own: Mapping[str, Embedded],
    sent: Mapping[str, Tensor],
    sites: Sequence[str],
) -> None:
    for site in sites:
        answers = [participants[other].answer(sent[site]) for other in sites if other != site]
        participants[site].align_by_answers(own[site], answers)


def _pair_by_pair(participants: Mapping[str, Participant], images: Mapping[str, Tensor]) -> None:
    """Algorithm 1 literally: discriminator and both encoders take a step for each pair, and embed again for the next."""
    sites = natural_sorted(participants)
    for source in sites:
        for target in sites:
            if source == target:
                continue
            ours, theirs = (participants[site].embed(images[site]) for site in (source, target))
            participants[source].discriminate(ours, [theirs.noisy])
            participants[target].align_as_target(theirs, _shipped(participants[source], source))
            participants[source].align_as_source(ours)


def _shipped(participant: Participant, site: str) -> nn.Module:
    state = {name: tensor.clone() for name, tensor in participant.discriminator.state_dict().items()}
    width = next(iter(state.values())).shape[1]
    return received_discriminator(state, width, f"discriminator of {site}")
