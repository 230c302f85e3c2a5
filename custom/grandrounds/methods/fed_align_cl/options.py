"""How a Fed-Align-CL site trains, as checked values.

The defaults are the paper's (Jiménez-Sánchez et al., 2021) where it says what it does, with the alignment that its text
describes; the released code's alignment, which moves no encoder, is ``update=as_released``.

Which parts of Fed-Align-CL a site takes part in, and how what it sends is made noisy, as checked values.

Fed, Fed-CL, Fed-Align and Fed-Align-CL are the four combinations of ``alignment`` and ``curriculum``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from grandrounds.data.images.views import View
from grandrounds.errors import ConfigurationError
from grandrounds.methods.fed_align_cl.averaging import Averaged
from grandrounds.methods.fed_align_cl.bank import LARGEST, BankRows
from grandrounds.methods.fed_align_cl.curriculum import FORGOTTEN, Comparison
from grandrounds.methods.fed_align_cl.noise import (
    LEVEL,
    EmbeddingNoiseOptions,
    NoiseOfEmbeddings,
    WeightNoise,
    WeightNoiseOptions,
)
from grandrounds.methods.fed_align_cl.participant import LEARNING_RATE, Role
from grandrounds.methods.fed_align_cl.schedule import ITERATIONS, PACE, WARM_UP
from grandrounds.options import require_min, require_positive, require_words
from grandrounds.privacy.mechanisms.secure_noise import RandomBytes
from grandrounds.seeding import numpy_generator

Exchange = Literal["paced", "return_gradient", "ship_discriminator", "server_side"]
Update = Literal["summed", "joint", "pair_sequential", "as_released"]
FITTING: dict[Exchange, tuple[Update, ...]] = {
    "paced": ("summed", "joint", "pair_sequential", "as_released"),
    "ship_discriminator": ("summed", "pair_sequential"),
    "return_gradient": ("summed",),
    "server_side": ("summed",),
}


@dataclass(frozen=True)
class ScheduleOptions:
    """Epochs of iterations.

    Attributes:
        iterations: Q, of an epoch, the same at all sites.
        pace: tau, iterations between two communications.
        warm_up: epochs without alignment and curriculum.
        learning_rate: of classification, and of the other two optimizers where they have none of their own.
    """

    iterations: int = ITERATIONS
    pace: int = PACE
    warm_up: int = WARM_UP
    learning_rate: float = LEARNING_RATE

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        require_min(self, 1, "iterations", "pace")
        require_min(self, 0, "warm_up")
        require_positive(self, "learning_rate")


@dataclass(frozen=True)
class AlignmentOptions:
    """How encoders are aligned.

    Attributes:
        exchange: what travels: ``paced`` a bank of embeddings and the discriminator with each communication;
            ``ship_discriminator`` and ``return_gradient`` embeddings in every iteration, answered by the discriminator
            or a gradient; ``server_side`` embeddings in every iteration to discriminators at the server.
        update: ``summed`` one step of the encoder for all pairs, after that of classification; ``joint`` one step for
            classification and all pairs; ``pair_sequential`` one step for each pair (Algorithm 1 literally);
            ``as_released`` no step of the encoder (authors' code).
        weight: of alignment beside classification, where they share a step (``joint``).
        alignment_learning_rate: of the encoder's alignment steps; None takes ``learning_rate``. Adam's steps have the size
            of its learning rate whatever the loss is multiplied by, so where alignment has steps of its own this is its
            weight.
        discriminator_learning_rate: of the discriminator; None takes ``learning_rate``.
        largest_bank: most embeddings in a bank.
        bank_rows: ``padded`` repeats rows where there are too few embeddings; ``distinct`` has no row twice, which noise
            per row at a site's gate needs: of two noises on one embedding the mean has less.
    """

    exchange: Exchange = "paced"
    update: Update = "summed"
    weight: float = 1.0
    alignment_learning_rate: float | None = None
    discriminator_learning_rate: float | None = None
    largest_bank: int = LARGEST
    bank_rows: BankRows = "padded"

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        require_words(self, "exchange", "update", "bank_rows")
        require_positive(self, "weight", "alignment_learning_rate", "discriminator_learning_rate")
        require_min(self, 1, "largest_bank")
        if self.update not in FITTING[self.exchange]:
            fitting = ", ".join(FITTING[self.exchange])
            raise ConfigurationError(f"update must be one of {fitting} with {self.exchange}, got {self.update!r}")

    def learning_rates(self, classification: float) -> dict[Role, float]:
        """The learning rate of each optimizer.

        Args:
            classification: of the first, which the others take where they have none of their own.

        Example:
            >>> AlignmentOptions(alignment_learning_rate=1e-6).learning_rates(1e-5)
            {'classification': 1e-05, 'adversarial': 1e-06, 'discriminator': 1e-05}
        """
        return {
            "classification": classification,
            "adversarial": self.alignment_learning_rate or classification,
            "discriminator": self.discriminator_learning_rate or classification,
        }


@dataclass(frozen=True)
class CurriculumOptions:
    """The order of training images.

    Attributes:
        comparison: which models are compared to know what was forgotten; see
            :class:`~grandrounds.methods.fed_align_cl.curriculum.Memory`.
        replacement: whether the order is drawn with replacement (authors' code), so that images are missed.
        factor: how much heavier a forgotten image is than another.
    """

    comparison: Comparison = "around_last_comm"
    replacement: bool = False
    factor: float = FORGOTTEN

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        require_words(self, "comparison")
        require_positive(self, "factor")


NoiseSource = Literal["system", "seeded"]


@dataclass(frozen=True)
class PartOptions:
    """The parts of the method.

    Attributes:
        alignment: whether encoders are aligned after the warm-up.
        curriculum: whether forgotten images come first after the warm-up.
        averaged: what of the network is shared: ``all``, or all but the normalisation layers (``local_norm``) or their
            running statistics (``local_statistics``).
        labels: which labels count: ``labelled`` those that are meant to, ``all`` every known one of the training part.
        view: what is done to images for training, see :func:`~grandrounds.data.images.views.draw_views`; the paper's
        are taken
            as they are (``none``). What is forgotten is asked of images as they are.
        recompute_activations: whether activations are computed again for the gradient instead of kept, for ``resnet22`` on
            images so large that they do not fit.
    """

    alignment: bool = True
    curriculum: bool = True
    averaged: Averaged = "all"
    labels: Literal["labelled", "all"] = "labelled"
    view: View = "none"
    recompute_activations: bool = False

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        require_words(self, "averaged", "labels", "view")


@dataclass(frozen=True)
class NoiseOptions:
    """The noise on what a site sends.

    Attributes:
        weight_noise: see :class:`~grandrounds.methods.fed_align_cl.noise.WeightNoiseOptions`.
        weight_noise_level: its level.
        embedding_noise: see :class:`~grandrounds.methods.fed_align_cl.noise.EmbeddingNoiseOptions`.
        embedding_noise_level: its level, above zero.
        embedding_clip: bound on the norm of an embedding.
        embedding_noise_source: ``system``, which nobody can predict, or ``seeded`` by the run's seed, so that a run can be
            repeated; whoever knows the seed can then subtract the noise.
    """

    weight_noise: WeightNoise = "relative"
    weight_noise_level: float = LEVEL
    embedding_noise: NoiseOfEmbeddings = "relative"
    embedding_noise_level: float = LEVEL
    embedding_clip: float = EmbeddingNoiseOptions.clip
    embedding_noise_source: NoiseSource = "system"

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        require_words(self, "embedding_noise_source")
        _ = self.weights, self.embeddings

    @property
    def weights(self) -> WeightNoiseOptions:
        """The noise on weights."""
        return WeightNoiseOptions(self.weight_noise, self.weight_noise_level)

    @property
    def embeddings(self) -> EmbeddingNoiseOptions:
        """The noise on embeddings."""
        return EmbeddingNoiseOptions(self.embedding_noise, self.embedding_noise_level, self.embedding_clip)

    def random_bytes(self, *purpose: int | str) -> RandomBytes:
        """Where the noise on embeddings comes from.

        Args:
            purpose: what a seeded stream is for.
        """
        return os.urandom if self.embedding_noise_source == "system" else numpy_generator(*purpose).bytes
