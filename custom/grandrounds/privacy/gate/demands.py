"""Protections from the server that a site's policy demands of every task: noise in the training, a precision.

The values of a task come from the server. A task that lacks what is demanded is refused by name, and an answer without it
does not leave::

    "demands": {"noise_multiplier": 1.0, "update_precision": "bfloat16"}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grandrounds.checks import told_as
from grandrounds.errors import ConfigurationError
from grandrounds.json_files import require_object
from grandrounds.option_annotations import ABOVE_ZERO
from grandrounds.options import require_value
from grandrounds.privacy.gate.audit import Reason, Refused
from grandrounds.privacy.gate.treatment import MULTIPLIER_TOLERANCE
from grandrounds.protocol.spending import Mechanism, Spending
from grandrounds.protocol.tensors import FULL, UpdatePrecision, require_precision


@dataclass(frozen=True)
class Terms:
    """What a task asks of a site's answer.

    Attributes:
        updates: whether it has a model that the site trains, so that an update answers it.
        precision: in which it leaves.
        models: whether any part of it has weights, by which the site's images may be scored.
        image_size: side of the images that it works on, in pixels.
    """

    updates: bool = False
    precision: object = FULL
    models: bool = False
    image_size: int = 0


@dataclass(frozen=True)
class SiteDemands:
    """What a policy demands; None and an absent entry demand nothing.

    Attributes:
        noise_multiplier: smallest one of any training (DP-SGD), also of one whose model stays at the site.
        update_precision: the only one in which updates leave.
    """

    noise_multiplier: float | None = None
    update_precision: UpdatePrecision | None = None

    def to_json(self) -> dict[str, Any]:
        """What is demanded, as plain values by name."""
        found = {
            "noise_multiplier": self.noise_multiplier,
            "update_precision": self.update_precision,
        }
        return {name: value for name, value in found.items() if value is not None}

    def require_task(self, terms: Terms) -> None:
        """Check a training task before any work.

        Raises:
            Refused: if it lacks what is demanded; the reason names it.
        """
        if terms.updates and self.update_precision not in (None, terms.precision):
            raise Refused(Reason.PRECISION, f"the task asks for {terms.precision!r}, not {self.update_precision}")

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


def parse_demands(content: Any, where: str) -> SiteDemands:
    """Read the entry ``demands`` of a policy.

    Raises:
        ConfigurationError: naming the field, what was expected and what came.

    Example:
        >>> parse_demands({"noise_multiplier": 1}, "demands").noise_multiplier
        1.0
    """
    entry = require_object(content, where, [], ["noise_multiplier", "update_precision"])
    noise = entry.get("noise_multiplier")
    if noise is not None:
        require_value(noise, float, ABOVE_ZERO, f"{where}.noise_multiplier")
    with told_as(ConfigurationError, ConfigurationError, where=where):
        precision = require_precision(entry["update_precision"]) if "update_precision" in entry else None
    return SiteDemands(None if noise is None else float(noise), precision)
