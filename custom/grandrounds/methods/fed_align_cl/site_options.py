"""Which parts of Fed-Align-CL a site takes part in, and how what it sends is made noisy, as checked values.

Fed, Fed-CL, Fed-Align and Fed-Align-CL are the four combinations of ``alignment`` and ``curriculum``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from grandrounds.data.augment import View
from grandrounds.methods.fed_align_cl.averaging import Averaged
from grandrounds.methods.fed_align_cl.noise import (
    LEVEL,
    EmbeddingNoiseOptions,
    NoiseOfEmbeddings,
    WeightNoise,
    WeightNoiseOptions,
)
from grandrounds.options import require_words
from grandrounds.privacy.secure_noise import RandomBytes
from grandrounds.seeding import numpy_generator

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
        view: what is done to images for training, see :func:`~grandrounds.data.augment.draw_views`; the paper's are taken
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
