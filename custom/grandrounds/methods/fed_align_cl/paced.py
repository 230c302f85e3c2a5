"""An iteration between two communications: with what the others have sent, and without waiting for anybody.

Banks and discriminators of the other hospitals are those of the last communication, so up to tau iterations old. What
each update costs an image, in forward passes (a backward pass counts two): ``joint`` 3, ``summed`` 6, ``as_released``
4, ``pair_sequential`` 3 + 6 (N - 1), which is 15 for three hospitals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.methods.fed_align_cl.bank import draw_rows
from grandrounds.methods.fed_align_cl.options import AlignmentOptions
from grandrounds.methods.fed_align_cl.participant import Participant
from grandrounds.ordering import natural_sorted


@dataclass(frozen=True)
class Neighbour:
    """What another hospital has sent with the last communication.

    Attributes:
        bank: its noisy embeddings, shape ``(size, width)``.
        discriminator: as it was then; no step changes it.
        batch_size: how many of the embeddings are used in an iteration.
    """

    bank: Tensor
    discriminator: nn.Module
    batch_size: int

    def batch(self, generator: np.random.Generator) -> Tensor:
        """A mini-batch of its embeddings."""
        return draw_rows(self.bank, self.batch_size, generator)


def paced_iteration(
    participant: Participant,
    site: str,
    images: Tensor,
    labels: Tensor,
    neighbours: Mapping[str, Neighbour],
    options: AlignmentOptions,
    generator: np.random.Generator,
) -> dict[str, Tensor]:
    """Train in place on one batch.

    Args:
        participant: of this hospital.
        site: its name, which says where it stands in the order of the pairs.
        images: shape ``(batch, channels, height, width)``.
        labels: classes, shape ``(batch,)``.
        neighbours: by name; those that sent nothing are not among them. With none, or during the warm-up, this is a step
            of classification.
        options: which update.
        generator: where the others' mini-batches are drawn from.

    Returns:
        ``loss`` and, with neighbours, ``loss_discriminator`` and (but for ``as_released``) ``loss_alignment``: means
        over the steps of their kind, scalars without graphs.

    Raises:
        GrandRoundsError: if a loss is not finite.
    """
    others = {name: neighbours[name] for name in natural_sorted(neighbours)}
    if not others:
        return {"loss": participant.classify(images, labels)}
    if options.update == "pair_sequential":
        return _pair_by_pair(participant, site, images, labels, others, generator)
    batches = [other.batch(generator) for other in others.values()]
    discriminators = [other.discriminator for other in others.values()]
    if options.update == "joint":
        return participant.learn_jointly(images, labels, batches, discriminators, options.weight)
    losses = {"loss": participant.classify(images, labels)}
    if options.update == "as_released":
        # Its second pass notes the batch in the running statistics once more, which is all it does to the encoder.
        with torch.no_grad():
            own = participant.embed(images, count_statistics=True)
        return {**losses, "loss_discriminator": participant.discriminate_as_released(own, batches)}
    own = participant.embed(images)
    losses["loss_discriminator"] = participant.discriminate(own, batches)
    losses["loss_alignment"] = participant.align(own, discriminators)
    return losses


def _pair_by_pair(
    participant: Participant,
    site: str,
    images: Tensor,
    labels: Tensor,
    others: Mapping[str, Neighbour],
    generator: np.random.Generator,
) -> dict[str, Tensor]:
    """Every step of the encoder makes its embeddings old, so each pair embeds again."""
    losses = {"loss": participant.classify(images, labels)}
    alignment, adversary = [], []
    for source in natural_sorted([site, *others]):
        if source != site:
            own = participant.embed(images)
            alignment.append(participant.align_as_target(own, others[source].discriminator))
            continue
        for other in others.values():
            own = participant.embed(images)
            adversary.append(participant.discriminate(own, [other.batch(generator)]))
            alignment.append(participant.align_as_source(own))
    losses["loss_discriminator"] = torch.stack(adversary).mean()
    losses["loss_alignment"] = torch.stack(alignment).mean()
    return losses
