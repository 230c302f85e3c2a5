"""What hides a site's answers from the server: the signed job states it, and no task can take it back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.option_annotations import Min
from grandrounds.options import Options
from grandrounds.privacy.mechanisms.encrypted_sums import MIN_SITES
from grandrounds.protocol.messages import ENCRYPTION
from grandrounds.protocol.tensors import FULL, UPDATE_PRECISION, UpdatePrecision

REQUIRED = "required"


@dataclass(frozen=True)
class ConfidentialityOptions(Options):
    """What each task must ask of a site. A site's ``privacy.json`` may demand more."""

    encryption: Annotated[
        Literal["none", "required"],
        "required with controller.aggregation=encrypted: the model update leaves encrypted or not at all",
    ] = "none"
    min_models: Annotated[int, "minimum number of sites in an encrypted sum that a site opens", Min(MIN_SITES)] = (
        MIN_SITES
    )
    leaving_precision: Annotated[
        UpdatePrecision | None, "the only controller.update_precision in which updates leave; null is any"
    ] = None

    def check(self) -> None:
        """Refuse encrypted updates in half precision."""
        if self.encryption == REQUIRED and self.leaving_precision not in (None, FULL):
            raise ConfigurationError(
                f"encryption=required: ciphertexts have no precision; set leaving_precision to null, got "
                f"{self.leaving_precision}"
            )

    def require_task(self, values: Mapping[str, Any], site: str) -> None:
        """Refuse a training task, whose update would leave, before anything is trained.

        Args:
            values: of the task.
            site: its name.

        Raises:
            MessageError: naming what the task lacks.
        """
        if (self.encryption == REQUIRED) != (ENCRYPTION in values):
            lacks = "lacks" if self.encryption == REQUIRED else "has"
            raise MessageError(
                f"{site}: executor.encryption is {self.encryption}, and the task {lacks} the value {ENCRYPTION!r}; "
                "controller.aggregation=encrypted and executor.encryption=required belong together"
            )
        precision = values.get(UPDATE_PRECISION, FULL)
        if self.leaving_precision not in (None, precision):
            raise MessageError(
                f"{site}: updates leave in {self.leaving_precision} (executor.leaving_precision), and the task asks for "
                f"{precision!r}"
            )
