"""A site's training iteration: classification, and alignment with what other sites sent in the last communication.

An iteration classifies, embeds, trains the discriminator on others' embeddings and aligns the encoder. Banks and
discriminators of the other sites are up to tau iterations old, so no site waits for another. An image costs, in
forward passes (a backward pass counts two): ``joint`` and ``moments`` 3, ``summed`` 6, ``as_released`` 4,
``pair_sequential`` 3 + 6 (N - 1), which is 15 for three sites.

The iterations of a site between two communications follow Jiménez-Sánchez et al., 2021, Algorithm 1. All sites make the
same number of them in an epoch, each with a batch size of its own. Epochs, iterations and rounds count from 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grandrounds.checks import on_host
from grandrounds.data.batches import eval_batches
from grandrounds.errors import DataError, GrandRoundsError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.training import Meter, run_steps
from grandrounds.methods.fed_align_cl.bank import bank_size, draw_rows, make_bank, upcoming_rows
from grandrounds.methods.fed_align_cl.curriculum import Indices, epoch_batches
from grandrounds.methods.fed_align_cl.loss import (
    encoder_objective,
    moment_distance,
    source_objective,
    target_objective,
    train_discriminator,
)
from grandrounds.methods.fed_align_cl.noise import noisy_embeddings
from grandrounds.methods.fed_align_cl.options import (
    EmbeddingNoiseOptions,
    EncoderAlignmentOptions,
    Role,
    ScheduleOptions,
)
from grandrounds.models.norm import statistics_untouched
from grandrounds.models.partial import input_channels
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
        return {"loss": classification.detach(), "loss_alignment": alignment.detach(), "loss_discriminator": adversary}

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


PREDICTION_PIXELS = 1 << 21
"""Of the images that are predicted at a time: more do not fit into a processor's caches, or into memory."""


class LocalInterval(NamedTuple):
    """The iterations from ``first`` to ``last`` of an epoch, after which the sites communicate."""

    epoch: int
    first: int
    last: int
    ends_epoch: bool


def site_batch_size(images: int, iterations: int, minimum: int = 2, site: str = "the site") -> int:
    r"""The batch size of a site: :math:`B_n = \lfloor m_n / Q \rfloor`.

    Args:
        images: :math:`m_n`, its training images. :math:`m_n - Q B_n` of them are not visited in an epoch.
        iterations: :math:`Q`, of an epoch.
        minimum: the smallest batch: 2 with batch norm, which cannot train on one sample, else 1.
        site: for errors.

    Raises:
        DataError: if there are too few images for that many iterations.

    Example:
        >>> [site_batch_size(images, 120) for images in (1022, 287, 596)]
        [8, 2, 4]
    """
    size = images // iterations
    if images < minimum:
        raise DataError(f"{site} has {images} training images and needs {minimum} for a batch; leave it out of the job")
    if size < minimum:
        raise DataError(
            f"{site} has {images} training images, which make no batch of {minimum} for each of {iterations} iterations; "
            f"set iterations to at most {images // minimum}"
        )
    return size


def communications(iterations: int, pace: int) -> tuple[int, ...]:
    r"""The iterations of an epoch of :math:`Q` after which the sites communicate: every :math:`\tau`, and the last.

    Example:
        >>> communications(120, 40), communications(120, 50)
        ((40, 80, 120), (50, 100, 120))
    """
    return tuple(min(start + pace, iterations) for start in range(0, iterations, pace))


def interval_of_round(round_number: int, iterations: int, pace: int) -> LocalInterval:
    """The iterations of a round: the sites communicate once in a round, every ``pace`` iterations.

    Example:
        >>> interval_of_round(3, 120, 50), interval_of_round(4, 120, 50).epoch
        (LocalInterval(epoch=1, first=101, last=120, ends_epoch=True), 2)
    """
    ends = communications(iterations, pace)
    epoch, index = divmod(round_number - 1, len(ends))
    first = ends[index - 1] + 1 if index else 1
    return LocalInterval(epoch + 1, first, ends[index], ends_epoch=index == len(ends) - 1)


class TrainingImages:
    """The labelled training images of a site, numbered from 0.

    Args:
        context: of the task.
        rows: their rows in the site's data.
        iterations: of an epoch.
        minimum: the smallest batch that the network can train on.
        view: augmentation of training images.

    Raises:
        DataError: if there are too few images for that many iterations; the site is named.
    """

    def __init__(
        self, context: SiteContext, rows: np.ndarray, iterations: int, minimum: int, view: str = "none"
    ) -> None:
        self._context = context
        self._rows = rows
        self._view = view
        self.batch_size = site_batch_size(len(rows), iterations, minimum, context.site)

    def __len__(self) -> int:
        """The number of images."""
        return len(self._rows)

    def draw_ahead(self, batches: Sequence[np.ndarray], purpose: str) -> None:
        """Have views of the batches of all steps drawn in advance, see :meth:`viewed`."""
        self._context.draw_ahead([self._rows[numbers] for numbers in batches], self._view, self._context.key(purpose))

    def viewed(self, numbers: np.ndarray, purpose: str, step: int) -> tuple[Tensor, Tensor]:
        """Views of images by number, as they are trained on, and their classes, on the context's device.

        The views, shape ``(batch, channels, height, width)``, are drawn for a purpose and its batch ``step``, from 0.
        """
        return self._batch(numbers, self._view, self._context.key(purpose), step)

    def _batch(self, numbers: np.ndarray, view: str, key: int = 0, step: int = 0) -> tuple[Tensor, Tensor]:
        rows, context = self._rows[numbers], self._context
        return context.views(rows, view, key, step), context.labels(rows)

    def all(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All images without augmentation, in the order of their numbers, in batches for predictions."""
        height, width = self._context.data.images.shape[1:3]
        for numbers in eval_batches(np.arange(len(self)), max(1, PREDICTION_PIXELS // (height * width))):
            self._context.check_abort()
            yield self._batch(numbers, "none")


def require_network_channels(channels: int, network: nn.Module, site: str) -> None:
    """Check that images have the channels of the network's first convolution.

    Raises:
        DataError: naming the site, if they have others.
    """
    expected = input_channels(network)
    if channels != expected:
        raise DataError(
            f"{site}: images have {channels} channels and the network takes {expected}; set problem.channels to what the "
            "images have, or convert them"
        )


@dataclass(frozen=True)
class LocalSteps:
    """One site between two communications, with the order of the epoch's images; the networks are trained in place."""

    trainer: AlignmentTrainer
    images: TrainingImages
    order: Indices
    interval: LocalInterval
    schedule: ScheduleOptions
    context: SiteContext

    def train(
        self, neighbours: Mapping[str, Neighbour], options: EncoderAlignmentOptions, own_bank: Tensor | None = None
    ) -> dict[str, float]:
        """Train for the iterations of the interval with what other sites have sent; return the means of the losses.

        ``own_bank`` is described at :func:`~grandrounds.methods.fed_align_cl.iteration.train_iteration`.

        Raises:
            TaskAborted: if the task was given up.
            GrandRoundsError: if a loss is not finite.
        """
        context, first, last = self.context, self.interval.first, self.interval.last
        batches = epoch_batches(self.order, self.images.batch_size, self.schedule.iterations)[first - 1 : last]
        self.images.draw_ahead(list(batches), "views")
        draws, meter, names = context.generator("neighbours' embeddings"), Meter(), set[str]()

        def take(step: int) -> None:
            pixels, labels = self.images.viewed(batches[step], "views", step)
            with context.autocast():
                losses = train_iteration(
                    self.trainer, context.site, pixels, labels, neighbours, options, draws, own_bank
                )
            for name, loss in losses.items():
                meter.require_finite(loss, "loss", step)
                meter.add(name, loss)
            names.update(losses)

        run_steps(context, len(batches), take)
        meter.read_checks()
        return {name: meter.total(name) / len(batches) for name in sorted(names)}

    def upcoming_embeddings(self, options: EncoderAlignmentOptions) -> Tensor:
        """Embed the images of the next interval, as training embeds them, for the bank.

        Before training this is by the mean of the networks, which all sites have; after training by the site's own. After
        the end of the order it starts again, because that of the next epoch is not drawn yet.

        Returns:
            Clean embeddings, shape ``(at most the bank's size, width)``.
        """
        batch_size, context = self.images.batch_size, self.context
        size = self._bank_size(options)
        numbers = upcoming_rows(self.order, self.interval.last * batch_size, max(size, batch_size))
        # Whole batches, since the embeddings are normalised by them as in training.
        whole = len(numbers) // batch_size * batch_size
        embeddings = []
        with torch.no_grad(), context.torch_seeded("bank"), context.autocast():
            for step, chosen in enumerate(numbers[:whole].reshape(-1, batch_size)):
                context.check_abort()
                pixels, _ = self.images.viewed(chosen, "bank views", step)
                embeddings.append(self.trainer.embed(pixels).clean)
        return torch.cat(embeddings)[:size]

    def bank(
        self,
        embeddings: Tensor,
        options: EncoderAlignmentOptions,
        noise: EmbeddingNoiseOptions,
        random_bytes: RandomBytes,
    ) -> Tensor:
        """The bank of :meth:`upcoming_embeddings`, as it is sent: shape ``(size, width)``, float32, on the CPU."""
        return make_bank(embeddings, self._bank_size(options), noise, random_bytes, options.bank_rows)

    def _bank_size(self, options: EncoderAlignmentOptions) -> int:
        return bank_size(self.schedule.pace, self.images.batch_size, options.max_bank_size)
