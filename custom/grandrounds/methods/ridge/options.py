"""Options of federated ridge regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from grandrounds.data.images.augmentation import view_named
from grandrounds.errors import ConfigurationError
from grandrounds.models.closed_form.solve import DEFAULT_CORRECTION, DEFAULT_PENALTIES
from grandrounds.models.closed_form.sums import DEFAULT_BALANCE, DEFAULT_NORM, FEATURE_VIEWS
from grandrounds.options import ABOVE_ZERO, FRACTION, METHOD, Options

MOST_PENALTIES = 12
LEAVE_ONE_OUT = "leave_one_out"


@dataclass(frozen=True)
class RidgeOptions(Options):
    """How the head is solved."""

    class_balance: Annotated[
        float,
        "beta: images of class c weigh (N / (C n_c))^beta; 1 balances classes, 0 weighs all images alike",
        FRACTION,
        METHOD,
    ] = DEFAULT_BALANCE
    prior_correction: Annotated[
        float,
        "tau: logits are lowered by tau times the log of a class's weighted share; 1 decides as if equally frequent",
        FRACTION,
        METHOD,
    ] = DEFAULT_CORRECTION
    penalties: Annotated[tuple[float, ...], "nu, the penalties of which penalty_rule chooses one", METHOD] = (
        DEFAULT_PENALTIES
    )
    penalty_rule: Annotated[
        Literal["auto", "leave_one_out", "validation"],
        "leave_one_out: the smallest squared error at left-out sites; validation: the smallest log loss of validation "
        "images, over penalties and temperatures; auto: validation where sums are secure, else leave_one_out",
        METHOD,
    ] = "auto"
    aggregation: Annotated[
        Literal["auto", "mean", "secure"],
        "mean: the server reads each site's sums; secure: only the sum over all sites; auto: secure where a site's policy "
        "asks for it, else mean",
        METHOD,
    ] = "auto"
    temperature: Annotated[
        float | None, "T, by which scores are multiplied; null chooses it by validation images", ABOVE_ZERO
    ] = None
    largest_norm: Annotated[float, "R, to which sites clip the norm of an image's features", ABOVE_ZERO] = DEFAULT_NORM
    weight_multiple: Annotated[
        float | None,
        "bound on a site's labelled images in sums that the server reads, and on its validation images, over the median of "
        "the sites'; null for none",
        ABOVE_ZERO,
    ] = 10.0

    def check(self) -> None:
        """Refuse penalties that are none, or too many, and errors that a sum over all sites does not tell."""
        if not 1 <= len(self.penalties) <= MOST_PENALTIES or min(self.penalties) <= 0:
            raise ConfigurationError(
                f"penalties must be 1 to {MOST_PENALTIES} positive numbers, got {list(self.penalties)}"
            )
        if self.aggregation == "secure":
            require_unseen(self.penalty_rule)


def require_unseen(penalty_rule: str) -> None:
    """Check that a penalty can be chosen where the server sees sums over all sites alone.

    Raises:
        ConfigurationError: if it needs the errors of single sites.
    """
    if penalty_rule == LEAVE_ONE_OUT:
        raise ConfigurationError(
            "penalty_rule=leave_one_out needs the sums of single sites, which secure sums hide: set "
            "controller.penalty_rule=validation, or have the sites take the policy open"
        )


@dataclass(frozen=True)
class ViewOptions(Options):
    """Of which views of an image the features are."""

    views: Annotated[tuple[str, ...], "fixed views of each training image, such as none, half_turn", METHOD] = (
        FEATURE_VIEWS
    )

    def check(self) -> None:
        """Refuse views that do not exist, that are drawn at random, or none."""
        if not self.views:
            raise ConfigurationError("views must be at least one view, such as none")
        for name in self.views:
            if not view_named(name, "views").fixed:
                raise ConfigurationError(f"views must be fixed, such as none or half_turn; {name} is drawn at random")
