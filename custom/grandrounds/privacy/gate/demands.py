"""Protections from the server that a site's policy demands of every task: encryption, noise in the training, a precision.

The values of a task come from the server. A task that lacks what is demanded is refused by name, and an answer without it
does not leave::

    "demands": {"encryption": {"min_models": 3}, "noise_multiplier": 1.0, "update_precision": "bfloat16"}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grandrounds.checks import told_as
from grandrounds.errors import ConfigurationError
from grandrounds.json_files import require_object
from grandrounds.option_annotations import ABOVE_ZERO, Min
from grandrounds.options import require_value
from grandrounds.privacy.gate.audit import Reason, Refused
from grandrounds.privacy.gate.treatment import MULTIPLIER_TOLERANCE
from grandrounds.privacy.mechanisms.encrypted_sums import MIN_SITES
from grandrounds.protocol.messages import UPDATE, ReleaseKind
from grandrounds.protocol.spending import Mechanism, Spending
from grandrounds.protocol.tensors import FULL, UpdatePrecision, require_precision

ENCRYPTED_KINDS = frozenset({ReleaseKind.MODEL_UPDATE, ReleaseKind.ENCRYPTED_VALUES, ReleaseKind.POOLED_COUNTS})
"""Kinds of releases that leave encrypted, or that do where the task asks for it; the others have no encrypted form."""


@dataclass(frozen=True)
class Terms:
    """What a task asks of a site's answer.

    Attributes:
        updates: whether it has a model that the site trains, so that an update answers it.
        encrypted: whether this update leaves encrypted.
        precision: in which it leaves.
        sums: how many contributions are in each encrypted sum of the task; None where one could not be verified.
        models: whether any part of it has weights, by which the site's images may be scored.
        image_size: side of the images that it works on, in pixels.
    """

    updates: bool = False
    encrypted: bool = False
    precision: object = FULL
    sums: tuple[int, ...] | None = ()
    models: bool = False
    image_size: int = 0


@dataclass(frozen=True)
class SiteDemands:
    """What a policy demands; None and an absent entry demand nothing.

    Attributes:
        min_models: smallest number of contributions in an encrypted sum; updates must be encrypted where there is one.
        noise_multiplier: smallest one of any training (DP-SGD), also of one whose model stays at the site.
        update_precision: the only one in which updates leave.
    """

    min_models: int | None = None
    noise_multiplier: float | None = None
    update_precision: UpdatePrecision | None = None

    def to_json(self) -> dict[str, Any]:
        """What is demanded, as plain values by name."""
        found = {
            "encryption, models in a sum": self.min_models,
            "noise_multiplier": self.noise_multiplier,
            "update_precision": self.update_precision,
        }
        return {name: value for name, value in found.items() if value is not None}

    def require_task(self, terms: Terms) -> None:
        """Check a training task before any work.

        Raises:
            Refused: if it lacks what is demanded; the reason names it.
        """
        if terms.updates and self.min_models is not None and not terms.encrypted:
            raise Refused(Reason.ENCRYPTION, "the task lacks the value 'encryption'")
        if terms.updates and self.update_precision not in (None, terms.precision):
            raise Refused(Reason.PRECISION, f"the task asks for {terms.precision!r}, not {self.update_precision}")

    def require_sums(self, terms: Terms) -> None:
        """Check the encrypted sums of a task of any kind.

        Raises:
            Refused: if one was not verified, or is of too few sites.
        """
        if terms.sums is None:
            raise Refused(Reason.SUM, "an encrypted sum of the task was not verified; the site's log says why")
        if self.min_models is not None and any(number < self.min_models for number in terms.sums):
            raise Refused(Reason.FEW, f"a sum is of {min(terms.sums)} sites, at least {self.min_models} are demanded")

    def require_noise(self, trained: Spending | None) -> None:
        """Check how a training is protected.

        Raises:
            Refused: if it has no noise, or too little.
        """
        if self.noise_multiplier is None:
            return
        private = trained is not None and trained.mechanism is Mechanism.DP_SGD
        found = trained.sigma / trained.sensitivity if trained is not None and private else 0.0
        if found < self.noise_multiplier * (1 - MULTIPLIER_TOLERANCE):
            raise Refused(Reason.NOISE, f"the noise multiplier is {found:.4g}, at least {self.noise_multiplier:g} is")

    def require_releases(self, kinds: Mapping[str, ReleaseKind], terms: Terms) -> None:
        """Check what is about to leave; the last of all checks.

        Args:
            kinds: of the releases, by name.
            terms: of the task.

        Raises:
            Refused: at the first release that may not leave.
        """
        for name, kind in kinds.items():
            if self.min_models is not None and kind not in ENCRYPTED_KINDS:
                raise Refused(Reason.ENCRYPTION, f"{name}: {kind} has no encrypted form")
        if UPDATE in kinds:
            self.require_task(Terms(True, terms.encrypted, terms.precision))


def parse_demands(content: Any, where: str) -> SiteDemands:
    """Read the entry ``demands`` of a policy.

    Raises:
        ConfigurationError: naming the field, what was expected and what came.

    Example:
        >>> parse_demands({"encryption": {"min_models": 3}}, "demands").min_models
        3
    """
    entry = require_object(content, where, [], ["encryption", "noise_multiplier", "update_precision"])
    models = None
    if "encryption" in entry:
        models = require_object(entry["encryption"], f"{where}.encryption", ["min_models"])["min_models"]
        require_value(models, int, Min(MIN_SITES), f"{where}.encryption.min_models")
    noise = entry.get("noise_multiplier")
    if noise is not None:
        require_value(noise, float, ABOVE_ZERO, f"{where}.noise_multiplier")
    with told_as(ConfigurationError, ConfigurationError, where=where):
        precision = require_precision(entry["update_precision"]) if "update_precision" in entry else None
    if models is not None and precision not in (None, FULL):
        raise ConfigurationError(
            f"{where}: encrypted updates have no precision; take encryption or update_precision out"
        )
    return SiteDemands(models, None if noise is None else float(noise), precision)
