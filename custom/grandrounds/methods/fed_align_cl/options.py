"""Options of a Fed-Align-CL site.

Defaults are the paper's (Jiménez-Sánchez et al., 2021) where it specifies them, with the alignment that its text describes;
the alignment of the released code, which trains no encoder, is ``update=as_released``. Fed, Fed-CL, Fed-Align and
Fed-Align-CL are the four combinations of ``alignment`` and ``curriculum``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import numpy as np

from grandrounds.data.images.augmentation import view_named
from grandrounds.errors import ConfigurationError
from grandrounds.options import ABOVE_ZERO, BASIC, METHOD, Min, Options
from grandrounds.privacy.mechanisms.gaussian import RandomBytes
from grandrounds.seeding import numpy_generator, torch_generator

if TYPE_CHECKING:
    from torch import Tensor

Role = Literal["classification", "adversarial", "discriminator"]
ROLES: tuple[Role, ...] = ("classification", "adversarial", "discriminator")
Averaged = Literal["all", "local_norm", "local_statistics"]
BankRows = Literal["padded", "distinct"]
Comparison = Literal["around_last_comm", "epoch_to_epoch", "every_comm"]
NOISE_LEVEL = 0.001
Normals: TypeAlias = "Callable[[Sequence[int]], Tensor]"
"""Draws independent standard normal numbers, float32 and of this shape."""


@dataclass(frozen=True)
class ScheduleOptions(Options):
    """Epochs of iterations."""

    iterations: Annotated[int, "Q, iterations of an epoch, the same at all sites", Min(1), BASIC] = 120
    pace: Annotated[int, "tau, iterations between two communications", Min(1)] = 40
    warm_up: Annotated[int, "epochs without alignment and curriculum", Min(0)] = 5
    learning_rate: Annotated[float, "of classification; default of the other two optimizers", ABOVE_ZERO, BASIC] = 1e-5

    def warmed_up(self, epoch: int) -> bool:
        """Whether an epoch, counted from 1, uses alignment and curriculum (the paper's e > 5)."""
        return epoch > self.warm_up


@dataclass(frozen=True)
class EncoderAlignmentOptions(Options):
    """How encoders are aligned.

    ``summed`` takes one step of the encoder for all pairs, after that of classification; ``joint`` one step for
    classification and all pairs; ``pair_sequential`` one step for each pair (Algorithm 1 literally); ``as_released`` no step
    of the encoder (authors' code). ``moments`` has no discriminator: one step for classification and for the distance of
    the means and variances of the sites' banks (:func:`~grandrounds.methods.fed_align_cl.loss.moment_distance`).

    Adam's steps have the size of its learning rate whatever the loss is multiplied by, so where alignment has steps of its
    own, ``alignment_learning_rate`` is its weight.

    Noise per row at a site's gate needs ``bank_rows=distinct``: the mean of two noises on one embedding has less noise.
    """

    update: Annotated[
        Literal["summed", "joint", "pair_sequential", "as_released", "moments"],
        "which steps align the encoder, see above",
        METHOD,
    ] = "summed"
    weight: Annotated[float, "weight of alignment beside classification, with update=joint or moments", ABOVE_ZERO] = (
        1.0
    )
    alignment_learning_rate: Annotated[
        float | None, "learning rate of the encoder's alignment; null takes learning_rate", ABOVE_ZERO
    ] = None
    discriminator_learning_rate: Annotated[
        float | None, "learning rate of the discriminator; null takes that of the encoder's alignment", ABOVE_ZERO
    ] = None
    bank_encoder: Annotated[
        Literal["mean", "own"],
        "embeds the bank: the deployed mean of all sites, or the site's own encoder after training (closer to the paper)",
    ] = "mean"
    max_bank_size: Annotated[int, "maximum number of embeddings in a bank", Min(1)] = 256
    bank_rows: Annotated[
        BankRows, "padded repeats rows where there are too few embeddings; distinct has no row twice"
    ] = "padded"

    def check(self) -> None:
        """Refuse moments of banks by different encoders, and rates of steps that moments do not take."""
        if self.update == "moments" and self.bank_encoder != "mean":
            raise ConfigurationError("update=moments compares banks of one encoder; set bank_encoder to mean")
        if self.update == "moments" and (self.alignment_learning_rate or self.discriminator_learning_rate):
            raise ConfigurationError(
                "update=moments has one step at learning_rate; leave out alignment_learning_rate and "
                "discriminator_learning_rate, and set weight"
            )

    @property
    def has_discriminator(self) -> bool:
        """Whether the sites train and exchange discriminators."""
        return self.update != "moments"

    def learning_rates(self, classification: float) -> dict[Role, float]:
        """The learning rate of each optimizer.

        Encoder and discriminator have one rate by default, as in the paper and the authors' code: a faster discriminator
        wins however much the encoders do.

        Example:
            >>> EncoderAlignmentOptions(alignment_learning_rate=1e-6).learning_rates(1e-5)
            {'classification': 1e-05, 'adversarial': 1e-06, 'discriminator': 1e-06}
        """
        alignment = self.alignment_learning_rate or classification
        return {
            "classification": classification,
            "adversarial": alignment,
            "discriminator": self.discriminator_learning_rate or alignment,
        }


@dataclass(frozen=True)
class CurriculumOptions(Options):
    """The order of training images."""

    comparison: Annotated[Comparison, "which models are compared to find forgotten images, see curriculum.Memory"] = (
        "around_last_comm"
    )
    replacement: Annotated[bool, "draw the order with replacement (authors' code), which misses images"] = False
    factor: Annotated[float, "weight of a forgotten image relative to another", ABOVE_ZERO] = 2.0


@dataclass(frozen=True)
class MethodOptions(Options):
    """The parts of the method. Images are never augmented to find out what is forgotten."""

    alignment: Annotated[bool, "align encoders after the warm-up", METHOD] = True
    curriculum: Annotated[bool, "train on forgotten images first after the warm-up", METHOD] = True
    averaged: Annotated[
        Averaged, "what is shared: all, all but normalisation layers (local_norm) or their running statistics", METHOD
    ] = "all"
    labels: Annotated[
        Literal["labelled", "all"], "labels used: those of the labelled part, or every known one of the training part"
    ] = "labelled"
    view: Annotated[str, "view of training images; none is the paper's"] = "none"
    logit_adjustment: Annotated[
        float, "log class shares of the site's labels that training adds to logits, times this; 0 adds none", Min(0)
    ] = 0.0
    recompute_activations: Annotated[
        bool, "recompute activations for the gradient, for resnet22 on images that do not fit into memory otherwise"
    ] = False

    def check(self) -> None:
        """Refuse a view that does not exist."""
        view_named(self.view)


@dataclass(frozen=True)
class WeightNoiseOptions(Options):
    """The noise on the weights that a site sends; ``none`` is for where the site's privacy filters add theirs."""

    weight_noise: Annotated[
        Literal["relative", "absolute", "none"],
        "a fraction of each tensor's deviation (code), or one variance (paper)",
        METHOD,
    ] = "relative"
    weight_noise_level: Annotated[float, "the fraction or variance; the paper tries 0, 0.001, 0.01, 0.1", Min(0)] = (
        NOISE_LEVEL
    )


@dataclass(frozen=True)
class EmbeddingNoiseOptions(Options):
    """The noise on embeddings, which never leave without."""

    embedding_noise: Annotated[
        Literal["relative", "absolute", "clipped"],
        "a fraction of their deviation (code), a variance (paper), or multiple of the clip",
        METHOD,
    ] = "relative"
    embedding_noise_level: Annotated[float, "the fraction, the variance or the multiple", ABOVE_ZERO] = NOISE_LEVEL
    embedding_clip: Annotated[
        float | None,
        "bound on the norm of an embedding; null is three times the median norm of those that are sent",
        ABOVE_ZERO,
    ] = None
    own_embeddings: Annotated[
        Literal["as_sent", "clean"],
        "a discriminator sees its site's own embeddings clipped and with noise like the others' (code), or clean (paper)",
    ] = "as_sent"

    def check(self) -> None:
        """Refuse noise in proportion to a bound that depends on the images."""
        if self.embedding_noise == "clipped" and self.embedding_clip is None:
            raise ConfigurationError(
                "embedding_noise=clipped needs a number for embedding_clip: its noise is a multiple of it"
            )


@dataclass(frozen=True)
class NoiseSourceOptions(Options):
    """Where the noise on weights and embeddings comes from."""

    noise_source: Annotated[
        Literal["system", "seeded"],
        "system: unpredictable; seeded: repeatable, and a party that knows the seed can subtract it",
    ] = "system"

    def random_bytes(self, *purpose: int | str) -> RandomBytes:
        """The noise on embeddings; ``purpose`` is what a seeded stream is for."""
        return os.urandom if self.noise_source == "system" else numpy_generator(*purpose).bytes

    def normals(self, *purpose: int | str) -> Normals:
        """The noise on weights, in the same way; the system's has 128 bits of entropy, which nobody can try out."""
        import torch

        if self.noise_source == "seeded":
            return partial(torch.randn, generator=torch_generator(*purpose))
        drawn = np.random.default_rng()
        return lambda shape: torch.as_tensor(drawn.standard_normal(tuple(shape), np.float32))
