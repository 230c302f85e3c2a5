"""How a Fed-Align-CL site trains, as checked values.

The defaults are the paper's (Jiménez-Sánchez et al., 2021) where it says what it does, with the alignment that its text
describes; the released code's alignment, which moves no encoder, is ``update=as_released``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grandrounds.errors import ConfigurationError
from grandrounds.methods.fed_align_cl.bank import LARGEST, BankRows
from grandrounds.methods.fed_align_cl.curriculum import FORGOTTEN
from grandrounds.methods.fed_align_cl.memory import Comparison
from grandrounds.methods.fed_align_cl.participant import LEARNING_RATE, Role
from grandrounds.methods.fed_align_cl.schedule import ITERATIONS, PACE, WARM_UP
from grandrounds.options import require_least, require_positive, require_words

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
        require_least(self, 1, "iterations", "pace")
        require_least(self, 0, "warm_up")
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
        require_least(self, 1, "largest_bank")
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
        require_words(self, "comparison")
        require_positive(self, "factor")
