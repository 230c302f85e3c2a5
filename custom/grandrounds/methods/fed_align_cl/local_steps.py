"""A site's work between two communications: its images in their order, its iterations, and the bank for the others.

Jiménez-Sánchez et al., 2021, Algorithm 1. All sites make the same number of iterations in an epoch, each with a batch size
of its own. Epochs, iterations and rounds count from 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.batches import eval_batches
from grandrounds.errors import DataError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.training import Meter, run_steps
from grandrounds.methods.fed_align_cl.bank import bank_size, make_bank, upcoming_rows
from grandrounds.methods.fed_align_cl.curriculum import Indices, epoch_batches
from grandrounds.methods.fed_align_cl.iteration import AlignmentTrainer, Neighbour, train_iteration
from grandrounds.methods.fed_align_cl.options import EmbeddingNoiseOptions, EncoderAlignmentOptions, ScheduleOptions
from grandrounds.models.partial import input_channels
from grandrounds.privacy.mechanisms.gaussian import RandomBytes

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
