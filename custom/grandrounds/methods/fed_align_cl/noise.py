"""The noise under which weights and embeddings leave a hospital: how large it is, and where it is drawn.

As published (a variance for all entries) or as released (a fraction of each tensor's own deviation) it is obfuscation,
without any guarantee; see :mod:`grandrounds.privacy.mechanisms.obfuscation`. Embeddings are clipped before, so that the
third kind, a multiple of the clipping bound, is the Gaussian mechanism per embedding; what it is worth depends on how
often one is sent, which an accountant has to say. Embeddings never travel without noise.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Generator, Tensor

from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.methods.fed_align_cl.alignment import clip_embeddings
from grandrounds.privacy.mechanisms.obfuscation import absolute_noise, relative_noise
from grandrounds.privacy.mechanisms.secure_noise import RandomBytes, with_noise

WeightNoise = Literal["relative", "absolute", "none"]
NoiseOfEmbeddings = Literal["relative", "absolute", "clipped"]
LEVEL = 0.001


@dataclass(frozen=True)
class WeightNoiseOptions:
    """Noise on the weights that a site sends.

    Attributes:
        mode: ``relative`` (a fraction of each tensor's deviation; authors' code), ``absolute`` (one variance; paper),
        or
            ``none``, for where the site's privacy filters add theirs.
        level: the fraction, or the variance; the paper tries 0, 0.001, 0.01 and 0.1.
    """

    mode: WeightNoise = "relative"
    level: float = LEVEL

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        if self.mode not in get_args(WeightNoise):
            raise ConfigurationError(f"weight noise: mode must be relative, absolute or none, got {self.mode!r}")
        if not 0 <= self.level < math.inf:
            raise ConfigurationError(f"weight noise: level must be at least 0 and finite, got {self.level}")


@dataclass(frozen=True)
class EmbeddingNoiseOptions:
    """What happens to embeddings before they leave.

    Attributes:
        mode: ``relative`` (a fraction of the embeddings' deviation; authors' code), ``absolute`` (a variance; paper) or
            ``clipped`` (a multiple of ``clip``).
        level: the fraction, the variance or the multiple, above zero.
        clip: bound on the norm of an embedding, above zero.
    """

    mode: NoiseOfEmbeddings = "relative"
    level: float = LEVEL
    clip: float = 16.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        if self.mode not in get_args(NoiseOfEmbeddings):
            raise ConfigurationError(f"embedding noise: mode must be relative, absolute or clipped, got {self.mode!r}")
        if not 0 < self.level < math.inf:
            raise ConfigurationError(
                f"embedding noise: level must be a positive number, got {self.level}: embeddings do not leave bare"
            )
        if not 0 < self.clip < math.inf:
            raise ConfigurationError(f"embedding noise: clip must be a positive number, got {self.clip}")


def noisy_weights(
    weights: Mapping[str, Tensor], options: WeightNoiseOptions, generator: Generator
) -> dict[str, Tensor]:
    """The weights as they leave: not their difference to the global model, whose deviation is another.

    Args:
        weights: by ``state_dict`` name.
        options: how much.
        generator: a CPU generator, the site's own.

    Returns:
        New tensors. Counters, running variances and, with ``relative``, constant tensors are as they were.
    """
    if options.mode == "absolute":
        return absolute_noise(weights, options.level, generator)
    return relative_noise(weights, options.level if options.mode == "relative" else 0.0, generator)


def embedding_deviation(clipped: Tensor, options: EmbeddingNoiseOptions) -> float:
    """The standard deviation of the noise for a set of embeddings.

    Args:
        clipped: shape ``(samples, width)``, already clipped.
        options: how much.

    Returns:
        Above zero. With ``relative`` embeddings that are all equal, whose deviation is zero, get the noise of
        embeddings whose entries are as large as the bound lets them be: a dead encoder's output does not leave bare
        either.

    Raises:
        GrandRoundsError: if an embedding is not finite.
    """
    if not bool(torch.isfinite(clipped).all()):
        raise GrandRoundsError("training diverged: an embedding is not finite; lower executor.learning_rate")
    if options.mode == "absolute":
        return math.sqrt(options.level)
    if options.mode == "clipped":
        return options.level * options.clip
    deviation = float(clipped.detach().double().std(correction=0))
    return options.level * (deviation or options.clip / math.sqrt(clipped.shape[1]))


def noisy_embeddings(
    embeddings: Tensor, options: EmbeddingNoiseOptions, random_bytes: RandomBytes = os.urandom
) -> Tensor:
    """Clip embeddings and add noise that is drawn once: what is returned is what travels and what learns.

    Args:
        embeddings: shape ``(samples, width)``, with their graph.
        options: how much.
        random_bytes: where the noise comes from. The default is the operating system's generator, which nobody can
            predict; a seeded one makes a run repeatable and its noise no secret.

    Returns:
        The same shape and dtype, on the same device, with the graph of the embeddings.

    Raises:
        GrandRoundsError: if an embedding is not finite.
    """
    clipped = clip_embeddings(embeddings, options.clip)
    sent = with_noise(clipped, embedding_deviation(clipped, options), random_bytes)
    noise = sent.to(embeddings.device, embeddings.dtype) - clipped.detach()
    return clipped + noise
