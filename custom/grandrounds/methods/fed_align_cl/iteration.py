"""A site's training iteration: classification, and alignment with what other sites sent in the last communication.

An iteration classifies, embeds, trains the discriminator on others' embeddings and aligns the encoder. Banks and
discriminators of the other sites are up to tau iterations old, so no site waits for another. An image costs, in
forward passes (a backward pass counts two): ``joint`` and ``moments`` 3, ``summed`` 6, ``as_released`` 4,
``pair_sequential`` 3 + 6 (N - 1), which is 15 for three sites.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grandrounds.checks import on_host
from grandrounds.errors import GrandRoundsError
from grandrounds.methods.fed_align_cl.bank import draw_rows
from grandrounds.methods.fed_align_cl.discriminator import train_discriminator
from grandrounds.methods.fed_align_cl.loss import encoder_objective, moment_distance, source_objective, target_objective
from grandrounds.methods.fed_align_cl.noise import noisy_embeddings
from grandrounds.methods.fed_align_cl.options import EmbeddingNoiseOptions, EncoderAlignmentOptions, Role
from grandrounds.models.norm import statistics_untouched
from grandrounds.models.split import split_network
from grandrounds.ordering import natural_sorted
from grandrounds.privacy.mechanisms.gaussian import RandomBytes
from grandrounds.protocol.tensors import at_least_single


@dataclass(frozen=True)
class Embedded:
    """A batch's embeddings with their graph.

    Attributes:
        clean: as the encoder made them.
        noisy: as the other sites see them, clipped and with noise.
        source: as the site's own discriminator sees them: like the others', or clean.
    """

    clean: Tensor
    noisy: Tensor
    source: Tensor


@dataclass(frozen=True)
class Neighbour:
    """What another site has sent with the last communication.

    Attributes:
        bank: its noisy embeddings, shape ``(size, width)``.
        discriminator: its discriminator at that time, with fixed parameters; not used with ``update=moments``.
        batch_size: how many of the embeddings are used in an iteration.
    """

    bank: Tensor
    discriminator: nn.Module
    batch_size: int

    def batch(self, generator: np.random.Generator) -> Tensor:
        """A mini-batch of its embeddings."""
        return draw_rows(self.bank, self.batch_size, generator)


class AlignmentTrainer:
    """A site's networks, their optimizers by role, and the steps of an iteration.

    Args:
        network: images to logits, in training mode, with its head as last child; its activations may be recomputed.
        discriminator: of the site.
        optimizers: by role: of the whole network for classification, of its encoder for alignment, of the discriminator.
        noise: on embeddings.
        random_bytes: where the noise comes from.
        gate: what the site's privacy gate does to embeddings, see
            :func:`~grandrounds.methods.fed_align_cl.noise.noisy_embeddings`.
        added: to the logits of classification in training, shape ``(classes,)``; None for nothing.
    """

    def __init__(
        self,
        network: nn.Module,
        discriminator: nn.Module,
        optimizers: Mapping[Role, torch.optim.Optimizer],
        noise: EmbeddingNoiseOptions,
        random_bytes: RandomBytes = os.urandom,
        gate: tuple[float, float] | None = None,
        added: Tensor | None = None,
    ) -> None:
        self.network = network
        self.discriminator = discriminator
        self._encoder, self._head = split_network(network)
        self._optimizers = optimizers
        self._noise = noise
        self._random_bytes = random_bytes
        self._gate = gate
        self._added = added

    def classify(self, images: Tensor, labels: Tensor) -> Tensor:
        """Take a step of classification; return the cross-entropy before it, without a graph (Eq. 1).

        Args:
            images: shape ``(batch, channels, height, width)``.
            labels: classes, shape ``(batch,)``.
        """
        loss = self._cross_entropy(self.network(images), labels)
        self._descend("classification", loss, self.network)
        return loss.detach()

    def embed(self, images: Tensor, count_statistics: bool = False) -> Embedded:
        """Embed a batch, normalised by its own statistics; noise is drawn once.

        Args:
            images: shape ``(batch, channels, height, width)``.
            count_statistics: whether the running statistics include the batch; not if classification has done so.
        """
        with nullcontext() if count_statistics else statistics_untouched(self._encoder):
            return self.as_seen(self._encoder(images))

    def discriminate(self, own: Embedded, others: Sequence[Tensor], as_released: bool = False) -> Tensor:
        """Train the discriminator, a step for each other site; return its mean loss.

        ``as_released`` is the authors' code, which does not train the encoder afterwards.
        """
        seen = own.noisy if as_released else own.source
        return train_discriminator(self.discriminator, self._optimizers["discriminator"], seen, others, as_released)

    def align(self, own: Embedded, others: Sequence[nn.Module]) -> Tensor:
        """One step of the encoder on all pairs, given the other sites' discriminators; return the loss."""
        return self.step_encoder(encoder_objective(self.discriminator, others, own.source, own.noisy))

    def align_as_source(self, own: Embedded) -> Tensor:
        """One step of the encoder on one pair in which it is the source; return the loss."""
        return self.step_encoder(source_objective(self.discriminator, own.source, pairs=1))

    def align_as_target(self, own: Embedded, other: nn.Module) -> Tensor:
        """One step of the encoder on one pair in which it is the target; return the loss."""
        return self.step_encoder(target_objective([other], own.noisy))

    def learn_jointly(
        self,
        images: Tensor,
        labels: Tensor,
        batches: Sequence[Tensor],
        others: Sequence[nn.Module],
        weight: float,
        banked: Embedded | None = None,
    ) -> dict[str, Tensor]:
        """Classification and alignment on one graph: one pass, one backward pass, one step of the network.

        Args:
            images: a batch.
            labels: its classes.
            batches: noisy embeddings of the other sites, for the discriminator.
            others: their discriminators.
            weight: of alignment beside classification.
            banked: own embeddings for the discriminator; None for those of the batch.

        Returns:
            The three losses, without graphs.
        """
        own = self.as_seen(self._encoder(images))
        adversary = self.discriminate(banked or own, batches)
        classification = self._cross_entropy(self._head(own.clean), labels)
        alignment = encoder_objective(self.discriminator, others, own.source, own.noisy)
        self._descend("classification", classification + weight * alignment, self.network)
        return {
            "loss": classification.detach(),
            "loss_alignment": alignment.detach(),
            "loss_discriminator": adversary,
        }

    def match_moments(
        self, images: Tensor, labels: Tensor, own_bank: Tensor, banks: Sequence[Tensor], weight: float
    ) -> dict[str, Tensor]:
        """Classification and the distance of moments on one graph, see :meth:`learn_jointly`; return the two losses."""
        own = self.as_seen(self._encoder(images))
        classification = self._cross_entropy(self._head(own.clean), labels)
        alignment = moment_distance(own.noisy, self.as_seen(own_bank).noisy, banks)
        self._descend("classification", classification + weight * alignment, self.network)
        return {"loss": classification.detach(), "loss_alignment": alignment.detach()}

    def step_encoder(self, loss: Tensor) -> Tensor:
        """One step of the encoder down an alignment loss, which is returned without its graph."""
        with statistics_untouched(self._encoder):
            self._descend("adversarial", loss, self._encoder)
        return loss.detach()

    def as_seen(self, embeddings: Tensor) -> Embedded:
        """Embeddings, shape ``(samples, width)``, as the others and as the site's own discriminator see them."""
        embeddings = at_least_single(embeddings)
        noisy = noisy_embeddings(embeddings, self._noise, self._random_bytes, self._gate)
        return Embedded(embeddings, noisy, embeddings if self._noise.own_embeddings == "clean" else noisy)

    def _cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        logits = at_least_single(logits)
        return F.cross_entropy(logits if self._added is None else logits + self._added, labels)

    def _descend(self, role: Role, loss: Tensor, part: nn.Module) -> None:
        if on_host(loss) and not bool(torch.isfinite(loss)):
            raise GrandRoundsError(f"training diverged: the loss of {role} is not finite; lower executor.learning_rate")
        self._optimizers[role].zero_grad(set_to_none=True)
        # Into this part alone: the gradients of the discriminators in the graph must not change.
        torch.autograd.backward(loss, inputs=[p for p in part.parameters() if p.requires_grad])
        self._optimizers[role].step()


def train_iteration(
    trainer: AlignmentTrainer,
    site: str,
    images: Tensor,
    labels: Tensor,
    neighbours: Mapping[str, Neighbour],
    options: EncoderAlignmentOptions,
    generator: np.random.Generator,
    own_bank: Tensor | None = None,
) -> dict[str, Tensor]:
    """Train in place on one batch.

    Args:
        trainer: of this site.
        site: its name, which determines its place in the order of the pairs.
        images: shape ``(batch, channels, height, width)``.
        labels: classes, shape ``(batch,)``.
        neighbours: by name, without those that sent nothing. With none, or during the warm-up, this is a step of
            classification.
        options: which update.
        generator: where the mini-batches of the banks are drawn from.
        own_bank: the site's embeddings, clean, by the encoder that made the others' banks, shape ``(size, width)``: the
            discriminator then compares sites, not encoders. None compares with the batch's embeddings; ``moments`` needs it.

    Returns:
        ``loss`` and, with neighbours, ``loss_discriminator`` (but for ``moments``) and ``loss_alignment`` (but for
        ``as_released``): means over the steps of their kind, scalars without graphs.

    Raises:
        GrandRoundsError: if a loss is not finite.
        ValueError: if ``moments`` has no ``own_bank``.
    """
    others = {name: neighbours[name] for name in natural_sorted(neighbours)}
    if not others:
        return {"loss": trainer.classify(images, labels)}
    if options.update == "pair_sequential":
        return _pair_by_pair(trainer, site, images, labels, others, generator, own_bank)
    if options.update == "moments":
        if own_bank is None:
            raise ValueError("update=moments needs the site's own bank")
        banks = [other.bank for other in others.values()]
        return trainer.match_moments(images, labels, own_bank, banks, options.weight)
    batches = [other.batch(generator) for other in others.values()]
    banked = _drawn(trainer, own_bank, len(labels), generator)
    discriminators = [other.discriminator for other in others.values()]
    if options.update == "joint":
        return trainer.learn_jointly(images, labels, batches, discriminators, options.weight, banked)
    losses = {"loss": trainer.classify(images, labels)}
    if options.update == "as_released":
        # Its second pass updates the running statistics once more, which is its only effect on the encoder.
        with torch.no_grad():
            own = trainer.embed(images, count_statistics=True)
        return {**losses, "loss_discriminator": trainer.discriminate(banked or own, batches, as_released=True)}
    own = trainer.embed(images)
    losses["loss_discriminator"] = trainer.discriminate(banked or own, batches)
    losses["loss_alignment"] = trainer.align(own, discriminators)
    return losses


def _pair_by_pair(
    trainer: AlignmentTrainer,
    site: str,
    images: Tensor,
    labels: Tensor,
    others: Mapping[str, Neighbour],
    generator: np.random.Generator,
    own_bank: Tensor | None,
) -> dict[str, Tensor]:
    """Every step of the encoder outdates its embeddings, so each pair embeds again."""
    losses = {"loss": trainer.classify(images, labels)}
    alignment, adversary = [], []
    for source in natural_sorted([site, *others]):
        if source != site:
            own = trainer.embed(images)
            alignment.append(trainer.align_as_target(own, others[source].discriminator))
            continue
        for other in others.values():
            own = trainer.embed(images)
            banked = _drawn(trainer, own_bank, len(labels), generator)
            adversary.append(trainer.discriminate(banked or own, [other.batch(generator)]))
            alignment.append(trainer.align_as_source(own))
    losses["loss_discriminator"] = torch.stack(adversary).mean()
    losses["loss_alignment"] = torch.stack(alignment).mean()
    return losses


def _drawn(
    trainer: AlignmentTrainer, own_bank: Tensor | None, count: int, generator: np.random.Generator
) -> Embedded | None:
    return None if own_bank is None else trainer.as_seen(draw_rows(own_bank, count, generator))
