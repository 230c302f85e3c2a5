"""How a Fed-Align-CL site trains, as checked values.

The defaults are the paper's (Jiménez-Sánchez et al., 2021) where it says what it does, with the alignment that its text
describes; the released code's alignment, which moves no encoder, is ``update=as_released``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from grandrounds.errors import ConfigurationError
from grandrounds.methods.fed_align_cl.bank import LARGEST
from grandrounds.methods.fed_align_cl.curriculum import FORGOTTEN
from grandrounds.methods.fed_align_cl.memory import Comparison
from grandrounds.methods.fed_align_cl.participant import LEARNING_RATE
from grandrounds.methods.fed_align_cl.schedule import ITERATIONS, PACE, WARM_UP

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
        learning_rate: of all three optimizers.
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
        _require_whole(self, 1, "iterations")
        _require_whole(self, 1, "pace")
        _require_whole(self, 0, "warm_up")
        _require_positive(self, "learning_rate")


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
        largest_bank: most embeddings in a bank.
    """

    exchange: Exchange = "paced"
    update: Update = "summed"
    weight: float = 1.0
    largest_bank: int = LARGEST

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        _require_choice(self, "exchange", Exchange)
        _require_choice(self, "update", Update)
        if self.update not in FITTING[self.exchange]:
            fitting = ", ".join(FITTING[self.exchange])
            raise ConfigurationError(f"update must be one of {fitting} with {self.exchange}, got {self.update!r}")
        _require_positive(self, "weight")
        _require_whole(self, 1, "largest_bank")


@dataclass(frozen=True)
class CurriculumOptions:
    """The order of training images.

    Attributes:
        comparison: which models are compared to know what was forgotten; see
            :class:`~grandrounds.methods.fed_align_cl.memory.Memory`.
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
        _require_choice(self, "comparison", Comparison)
        _require_positive(self, "factor")


def _require_whole(options: Any, least: int, name: str) -> None:
    value = getattr(options, name)
    if not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{name} must be an integer of at least {least}, got {value!r}")


def _require_positive(options: Any, name: str) -> None:
    value = getattr(options, name)
    if not 0 < value < math.inf:
        raise ConfigurationError(f"{name} must be a positive number, got {value}")


def _require_choice(options: Any, name: str, choices: Any) -> None:
    value = getattr(options, name)
    if value not in get_args(choices):
        raise ConfigurationError(f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}")
