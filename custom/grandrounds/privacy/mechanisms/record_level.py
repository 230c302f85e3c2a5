"""What a job asks of record-level private training, and what a round of it spends; :mod:`.dp_sgd` does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from grandrounds.errors import ConfigurationError
from grandrounds.options import ABOVE_ZERO, Min, Options, Range
from grandrounds.protocol.spending import Mechanism, Spending, Unit

ProtectedUnit = Literal["record", "patient"]


@dataclass(frozen=True)
class RecordLevelOptions(Options):
    """The parameters of DP-SGD in one round."""

    clip: Annotated[float, "C, bound on the L2 norm of one sample's gradient", ABOVE_ZERO]
    noise_multiplier: Annotated[float, "z, standard deviation of the noise over `clip`", ABOVE_ZERO]
    sampling_rate: Annotated[float, "q, probability that an image is in a batch", Range(0, 1, open_minimum=True)]
    steps: Annotated[int, "steps in a round", Min(1)]
    unit: Annotated[ProtectedUnit, "what is sampled, and hidden"] = "record"
    microbatch: Annotated[
        int | None, "samples whose gradients are in memory at once; null for a fixed size", Min(1)
    ] = None

    def spending(self) -> Spending:
        """The cost of one round of training; whatever is computed from the trained model alone costs nothing more."""
        sigma = self.noise_multiplier * self.clip
        return Spending(Mechanism.DP_SGD, Unit(self.unit), self.clip, sigma, self.sampling_rate, self.steps)


@dataclass(frozen=True)
class ProtectionOptions(Options):
    """Whether a site trains with record-level differential privacy (DP-SGD)."""

    record_noise_multiplier: Annotated[
        float | None, "standard deviation of the noise over `record_clip`; null trains without DP-SGD", ABOVE_ZERO
    ] = None
    record_clip: Annotated[float, "bound on the L2 norm of one image's gradient", ABOVE_ZERO] = 1.0
    privacy_unit: Annotated[ProtectedUnit, "what DP-SGD hides: one image, or all images of one patient"] = "record"

    def of_round(self, records: int, batch_size: int, steps: int) -> RecordLevelOptions | None:
        """The parameters of a round; None without DP-SGD.

        ``records`` is the number of images or patients that batches are drawn from, at least 1, and counts as public;
        ``batch_size`` is the expected number of a batch.

        Example:
            >>> ProtectionOptions(record_noise_multiplier=1.5).of_round(records=200, batch_size=20, steps=5).sampling_rate
            0.1
        """
        if self.record_noise_multiplier is None:
            return None
        rate = min(1.0, batch_size / records)
        return RecordLevelOptions(self.record_clip, self.record_noise_multiplier, rate, steps, self.privacy_unit)

    def require_possible(self, method: str, obstacle: str) -> None:
        """Refuse DP-SGD where a method has an obstacle to it; an empty text is no obstacle.

        Raises:
            ConfigurationError: if DP-SGD is configured and there is an obstacle, which is named.
        """
        if self.record_noise_multiplier is not None and obstacle:
            raise ConfigurationError(
                f"{method} cannot be record-level private: {obstacle}; leave record_noise_multiplier unset and let the "
                "site's gate clip and add noise"
            )
