"""Ridge regression whose counts and sums the server adds up and cannot read; the sites solve.

A fourth round follows: when the sites' losses have chosen the penalty and the temperature, each site sends the head of this
choice. All must have sent the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError, GrandRoundsError, MessageError
from grandrounds.methods.ridge.controller import RidgeController
from grandrounds.methods.ridge.phases import (
    AGREE,
    CHOSEN_TEMPERATURE,
    CLASS_BALANCE,
    CLASS_COUNTS,
    COUNT,
    IMAGES_COUNTED,
    LARGEST_NORM,
    LOGITS,
    PENALTIES,
    PENALTY,
    PHASE,
    PHASES,
    PRIOR_CORRECTION,
    SOLVE,
    SOLVED,
    SUMS,
    temperature_metric,
)
from grandrounds.models.closed_form.logits import DEFAULT_TEMPERATURE, TEMPERATURES
from grandrounds.ordering import natural_sorted
from grandrounds.privacy.mechanisms.encrypted_sums import MIN_SITES, EncryptedSum, Shapes
from grandrounds.protocol.messages import CONTRIBUTION, GLOBAL, Payload, ReleaseKind, Result, State

MOST_SCORED = 8
"""Penalties: the losses of each say something of the sum."""
AGREEMENT = 1e-6
"""By which heads of two sites may differ, over their largest number where that is above 1."""
SUM_OF_PHASE: Mapping[str, str] = {COUNT: CLASS_COUNTS, SOLVE: SUMS}
"""What is added up in a phase."""


class EncryptedRidgeController(RidgeController):
    """Ridge regression on encrypted sums of at least three sites (``rounds`` is 4); the server has the public key alone."""

    encrypts: ClassVar[bool] = True
    phases: ClassVar[tuple[str, ...]] = (*PHASES, AGREE)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.run.min_sites < MIN_SITES:
            raise ConfigurationError(
                f"min_sites must be at least {MIN_SITES} where sums are encrypted, got {self.run.min_sites}: of two, each "
                "site learns the other's"
            )
        if len(self.ridge.penalties) > MOST_SCORED:
            raise ConfigurationError(f"penalties must be at most {MOST_SCORED} where sums are encrypted")

    def start(self) -> None:
        """Build the network."""
        super().start()
        self._packed: dict[str, Tensor] = {}
        self._choice: dict[str, float] = {}

    def open_round(self, sites: list[str]) -> None:
        """Start an empty sum."""
        super().open_round(sites)
        self._sum = EncryptedSum(self.public_key, SUM_OF_PHASE.get(self.phase, self.phase))
        self._heads: dict[str, State] = {}

    def payload_for(self, site: str) -> Payload:
        """The phase, the model, the sums so far, and what sites solve by."""
        sums = {name: {CONTRIBUTION: packed} for name, packed in self._packed.items()}
        values = {
            PHASE: self.phase,
            LARGEST_NORM: self.ridge.largest_norm,
            CLASS_BALANCE: self.ridge.class_balance,
            PENALTIES: list(self.ridge.penalties),
            PRIOR_CORRECTION: self.ridge.prior_correction,
            **self._choice,
        }
        return self.payload({GLOBAL: self.model(), **sums}, **values)

    def check(self, site: str, result: Result) -> None:
        """Refuse what is no contribution to the sum, no losses, or no head.

        Raises:
            MessageError: naming what is wrong.
        """
        if self.phase == LOGITS:
            super().check(site, result)
        elif self.phase == AGREE:
            self._check_head(site, result)
        else:
            name = SUM_OF_PHASE[self.phase]
            release = result.releases.get(name)
            if (
                release is None
                or release.kind is not ReleaseKind.ENCRYPTED_VALUES
                or release.tensors.keys() != {CONTRIBUTION}
            ):
                raise MessageError(f"{site} must encrypt its {name}")
            counts: Shapes = {CLASS_COUNTS: self.class_shape, IMAGES_COUNTED: ()}
            shapes: Mapping[str, Shapes] = {CLASS_COUNTS: counts, SUMS: self.packed_shapes}
            self._sum.check(site, release.tensors[CONTRIBUTION], shapes[name])

    def _check_head(self, site: str, result: Result) -> None:
        found = result.releases[SOLVED].tensors if SOLVED in result.releases else {}
        width = (self.head.features,)
        expected = {"weights": (*self.class_shape, *width), "bias": self.class_shape, "shift": width, "scale": width}
        if {name: tuple(value.shape) for name, value in found.items()} != expected:
            raise MessageError(f"{site} has sent no head of shapes {expected}")
        if any(not bool(value.isfinite().all()) or value.dtype != torch.float64 for value in found.values()):
            raise MessageError(f"the head of {site} must be finite, in float64")

    def absorb(self, site: str, result: Result) -> None:
        """Add a site's contribution, or keep its losses or its head."""
        if self.phase == LOGITS:
            super().absorb(site, result)
        elif self.phase == AGREE:
            self._heads[site] = {name: value.clone() for name, value in result.releases[SOLVED].tensors.items()}
        else:
            self._sum.add(site, result.releases[SUM_OF_PHASE[self.phase]].tensors[CONTRIBUTION])

    def close_round(self) -> None:
        """Close the sum, choose by the losses, or take the head.

        Raises:
            GrandRoundsError: if two sites have sent different heads.
        """
        if self.phase == LOGITS:
            self._choose()
        elif self.phase == AGREE:
            self._take_head()
        else:
            total = self._sum.close()
            assert total is not None  # at least ``min_sites`` have answered
            self._packed[SUM_OF_PHASE[self.phase]] = total
            self.notes = {"summed": self._sum.roster}

    def loss_names(self) -> list[str]:
        """A loss for each penalty and temperature."""
        return [temperature_metric(number) for number in range(len(self.ridge.penalties) * len(TEMPERATURES))]

    def _choose(self) -> None:
        grid, (totals, count) = self.ridge.penalties, self.summed_losses()
        penalty, temperature = grid[len(grid) // 2], DEFAULT_TEMPERATURE
        if count:
            table = torch.tensor(totals, dtype=torch.float64).view(len(grid), len(TEMPERATURES))
            row, column = divmod(int(table.argmin()), len(TEMPERATURES))
            penalty, temperature = grid[row], float(TEMPERATURES[column])
        self._choice = {PENALTY: penalty, CHOSEN_TEMPERATURE: self.ridge.temperature or temperature}
        self.notes = {**self._choice, "validation_images": count}

    def _take_head(self) -> None:
        first, *others = natural_sorted(self._heads)
        head = self._heads[first]
        for other in others:
            for name, value in head.items():
                limit = AGREEMENT * max(float(value.abs().max()), 1.0)
                if float((self._heads[other][name] - value).abs().max()) > limit:
                    raise GrandRoundsError(f"{first} and {other} have solved different heads from the same sum")
        self.head.set_linear(**head, temperature=self._choice[CHOSEN_TEMPERATURE])

    def state_dict(self) -> dict[str, Any]:
        """The head and the choice; sums are snapshots."""
        return {GLOBAL: self.model(), "choice": self._choice}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.load_model(state[GLOBAL])
        self._choice = dict(state["choice"])

    def snapshots(self) -> Mapping[str, tuple[int, State | None]]:
        """The encrypted sums."""
        rounds = {name: self.phases.index(phase) + 1 for phase, name in SUM_OF_PHASE.items()}
        return {name: (rounds[name], {CONTRIBUTION: packed}) for name, packed in self._packed.items()}

    def load_snapshots(self, snapshots: Mapping[str, tuple[int, dict[str, Tensor]]]) -> None:
        """Restore :meth:`snapshots`."""
        self._packed = {name: found[CONTRIBUTION] for name, (_, found) in snapshots.items()}
