"""A site's work between two communications: its images in their order, its iterations, and the bank for the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grandrounds.data.batches import eval_batches
from grandrounds.data.images.views import View, draw_views, to_tensor
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.training import Meter
from grandrounds.methods.fed_align_cl.bank import bank_size, make_bank, upcoming_rows
from grandrounds.methods.fed_align_cl.curriculum import (
    Flags,
    Indices,
    curriculum_order,
    curriculum_scores,
    epoch_batches,
    order_with_replacement,
)
from grandrounds.methods.fed_align_cl.noise import EmbeddingNoiseOptions
from grandrounds.methods.fed_align_cl.options import AlignmentOptions, CurriculumOptions, ScheduleOptions
from grandrounds.methods.fed_align_cl.paced import Neighbour, paced_iteration
from grandrounds.methods.fed_align_cl.participant import Participant
from grandrounds.methods.fed_align_cl.schedule import Stretch, site_batch_size
from grandrounds.privacy.mechanisms.secure_noise import RandomBytes

PREDICTED_AT_ONCE = 64


class TrainingImages:
    """The labelled training images of a site, numbered from 0.

    Args:
        context: of the task.
        rows: their rows in the site's data.
        iterations: of an epoch.
        least: the smallest batch that the network can train on.
        view: what is done to images for training.

    Raises:
        DataError: if there are too few images for that many iterations; the site is named.
    """

    def __init__(
        self, context: SiteContext, rows: np.ndarray, iterations: int, least: int, view: View = "none"
    ) -> None:
        self._context = context
        self._rows = rows
        self._view = view
        self.batch_size = site_batch_size(len(rows), iterations, least, context.site)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._rows)

    def viewed(self, numbers: np.ndarray, purpose: str, step: int) -> tuple[Tensor, Tensor]:
        """Views of images, as they are trained on.

        Args:
            numbers: of the images.
            purpose: what the views are drawn for.
            step: which batch of that purpose, from 0.

        Returns:
            Shape ``(batch, channels, height, width)``, and the images' classes, on the context's device.
        """
        return self._batch(numbers, self._view, self._context.key(purpose), step)

    def _batch(self, numbers: np.ndarray, view: View, key: int = 0, step: int = 0) -> tuple[Tensor, Tensor]:
        rows, context = self._rows[numbers], self._context
        labels = torch.from_numpy(context.data.labels[rows]).to(context.device)
        return to_tensor(draw_views(context.data.images, rows, view, key, step), context.device), labels

    def all(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All images as they are, in the order of their numbers, in batches for predictions."""
        for numbers in eval_batches(np.arange(len(self)), PREDICTED_AT_ONCE):
            self._context.check_abort()
            yield self._batch(numbers, "none")


def draw_order(forgotten: Flags, options: CurriculumOptions, generator: np.random.Generator) -> Indices:
    """The order of an epoch's images.

    Args:
        forgotten: of each image, whether it has been; nothing forgotten gives a uniform order.
        options: factor and whether images may come twice.
        generator: where it is drawn from.
    """
    scores = curriculum_scores(forgotten, options.factor)
    return (order_with_replacement if options.replacement else curriculum_order)(scores, generator)


@dataclass(frozen=True)
class StretchWork:
    """One site between two communications.

    Attributes:
        participant: its networks, trained in place.
        images: its training images.
        order: of the epoch's images.
        stretch: which iterations.
        schedule: iterations of an epoch, and pace.
        context: of the task.
    """

    participant: Participant
    images: TrainingImages
    order: Indices
    stretch: Stretch
    schedule: ScheduleOptions
    context: SiteContext

    def train(self, neighbours: Mapping[str, Neighbour], options: AlignmentOptions) -> dict[str, float]:
        """Do the iterations.

        Args:
            neighbours: what the others have sent.
            options: how encoders are aligned.

        Returns:
            The means of the losses over the iterations.

        Raises:
            TaskAborted: if the task was given up.
            GrandRoundsError: if a loss is not finite.
        """
        context, first, last = self.context, self.stretch.first, self.stretch.last
        batches = epoch_batches(self.order, self.images.batch_size, self.schedule.iterations)[first - 1 : last]
        draws, meter, names = context.generator("neighbours' embeddings"), Meter(), set[str]()
        with context.torch_seeded("training"):
            for step, numbers in enumerate(batches):
                context.check_abort()
                pixels, labels = self.images.viewed(numbers, "views", step)
                with context.autocast():
                    losses = paced_iteration(self.participant, context.site, pixels, labels, neighbours, options, draws)
                for name, loss in losses.items():
                    meter.add(name, loss)
                names |= losses.keys()
        return {name: meter.total(name) / len(batches) for name in sorted(names)}

    def bank(self, options: AlignmentOptions, noise: EmbeddingNoiseOptions, random_bytes: RandomBytes) -> Tensor:
        """Embed the images that are trained on next, as training embeds them, for the others to align with.

        The mean of the networks is known only when all have answered, so the encoder is the site's own as it answers:
        the bank travels with the weights and is no older than they are. After the end of the order it is begun again,
        because the next epoch's is not drawn yet.

        Args:
            options: how large a bank is, and whether rows are repeated.
            noise: clipping and noise.
            random_bytes: where the noise comes from.

        Returns:
            Shape ``(size, width)``, float32, on the CPU.
        """
        batch_size, context = self.images.batch_size, self.context
        size = bank_size(self.schedule.pace, batch_size, options.largest_bank)
        numbers = upcoming_rows(self.order, self.stretch.last * batch_size, max(size, batch_size))
        # Whole batches, since the embeddings are normalised by them as in training.
        whole = len(numbers) // batch_size * batch_size
        found = []
        with torch.no_grad(), context.torch_seeded("bank"), context.autocast():
            for step, chosen in enumerate(numbers[:whole].reshape(-1, batch_size)):
                context.check_abort()
                pixels, _ = self.images.viewed(chosen, "bank views", step)
                found.append(self.participant.embed(pixels).clean)
        return make_bank(torch.cat(found), size, noise, random_bytes, options.bank_rows)
