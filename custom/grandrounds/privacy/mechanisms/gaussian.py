"""The Gaussian mechanism on what a site releases: clip, then add noise, in one step that cannot be halved.

Dwork & Roth, "The Algorithmic Foundations of Differential Privacy", 2014, appendix A; the exact guarantee is from Balle &
Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from torch import Tensor

from grandrounds.errors import ConfigurationError
from grandrounds.privacy.mechanisms.clipping import (
    NormPolicy,
    State,
    apply_norm_policy,
    clipping_factor,
    l2_norm,
    require_clip,
)
from grandrounds.privacy.mechanisms.secure_noise import RandomBytes, with_noise
from grandrounds.protocol.spending import Mechanism, Spending, Unit, update_sensitivity

MODEL_UPDATE = "model_update"
SOFT_LABELS = "soft_labels"


@dataclass(frozen=True)
class GaussianMechanism:
    r"""Releases :math:`u \min(1, C / \|u\|_2) + N(0, \sigma^2 I)`.

    Attributes:
        clip: :math:`C`, the bound on the L2 norm over all floating-point entries.
        sigma: :math:`\sigma`, the standard deviation of the noise on each entry, in the update's own units.
        unit: whom the noise is to protect; the sensitivity follows from it and from ``clip``.
        norm_policy: what happens to normalisation layers.
        norm_entries: names of their scales and shifts; running statistics are known without.
        kinds: the kinds of release that it may be used on; all others are refused.

    Raises:
        ConfigurationError: if there is noise without clipping, ``sigma`` is not positive, or soft labels are among the
            kinds: with noise on them they are no distributions any more.
    """

    clip: float
    sigma: float
    unit: Unit = Unit.SITE
    norm_policy: NormPolicy = NormPolicy.REFUSE
    norm_entries: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset({MODEL_UPDATE})

    def __post_init__(self) -> None:
        require_clip(self.clip)
        if SOFT_LABELS in self.kinds:
            raise ConfigurationError("kinds: soft labels with noise are no distributions; quantise or deny them")
        self.spending()

    @property
    def sensitivity(self) -> float:
        """How far two neighbouring updates can be apart, in L2."""
        return update_sensitivity(self.clip, self.unit)

    def spending(self) -> Spending:
        """What one release costs, for the ledger."""
        return Spending(Mechanism.GAUSSIAN, self.unit, self.sensitivity, self.sigma)

    def release(self, update: State, kind: str, random_bytes: RandomBytes = os.urandom) -> dict[str, Tensor]:
        """What may leave: the update, clipped and with noise.

        Args:
            update: differences by ``state_dict`` name, finite.
            kind: what kind of release it is.
            random_bytes: returns so many unpredictable bytes; the operating system's, except in tests.

        Returns:
            New tensors of the same dtypes on the CPU. Every floating-point entry has noise, but those that the policy
            ``zero`` silences, which are zero. Integer buffers are copies.

        Raises:
            ConfigurationError: if the kind is not among ``kinds``.
            ValueError: if an entry is complex or not finite, none is of floating point, or the policy refuses one.
        """
        if kind not in self.kinds:
            raise ConfigurationError(
                f"no noise is defined for releases of kind {kind!r}; only for {_words(self.kinds)}"
            )
        allowed = apply_norm_policy(update, self.norm_policy, self.norm_entries)
        silent = {name for name in update if allowed[name] is not update[name]}
        factor = clipping_factor(l2_norm(allowed), self.clip)
        # In double precision up to the end, so that the sensitivity is not a matter of the entries' rounding.
        return {
            name: with_noise(value.detach().double() * factor, self.sigma, random_bytes).to(value.dtype)
            if value.is_floating_point() and name not in silent
            else value.detach().cpu().clone()
            for name, value in allowed.items()
        }


def _words(kinds: frozenset[str]) -> str:
    return ", ".join(sorted(kinds)) or "none"
