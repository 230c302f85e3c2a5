"""The lines of a ledger: its opening, bookings of releases, and amendments of data sets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.spending import Mechanism, Spending
from grandrounds.protocol.unit import Unit

LEDGER_VERSION = 1
OPENING, BOOKING, AMENDMENT = "opening", "release", "amendment"


@dataclass(frozen=True)
class DatasetIdentity:
    """A data set of the site by its name and :func:`~grandrounds.privacy.ledger.ledger.dataset_fingerprint`.

    Raises:
        ConfigurationError: if one is empty.
    """

    name: str
    fingerprint: str

    def __post_init__(self) -> None:
        if not self.name or not self.fingerprint:
            raise ConfigurationError(
                f"a data set needs a name and a fingerprint, got {self.name!r}, {self.fingerprint!r}"
            )


@dataclass(frozen=True)
class Purpose:
    """Identifies a release: FLARE's identity of the job, the run's name, the round from 1, a name such as ``update``."""

    job: str
    run: str
    round_number: int
    release: str


@dataclass(frozen=True)
class Opening:
    """The first line: when (in UTC), whose ledger it is, and a random identity, so that no two ledgers are equal."""

    time: str
    site: str
    identity: str

    def to_json(self) -> dict[str, Any]:
        """The line as plain values."""
        return {
            "kind": OPENING,
            "version": LEDGER_VERSION,
            "time": self.time,
            "site": self.site,
            "identity": self.identity,
        }


@dataclass(frozen=True)
class Amendment:
    """A data set has changed: when (in UTC), its name with the new fingerprint, and why."""

    time: str
    dataset: DatasetIdentity
    reason: str

    def to_json(self) -> dict[str, Any]:
        """The line as plain values."""
        return {"kind": AMENDMENT, "time": self.time, "reason": self.reason, **_identity(self.dataset)}


@dataclass(frozen=True)
class Booking:
    """A release.

    ``time`` is in UTC; ``epsilon`` is that of all releases of the data set up to this one at ``delta``, for the spending's
    unit, and may be infinite.
    """

    time: str
    purpose: Purpose
    dataset: DatasetIdentity
    spending: Spending
    delta: float
    epsilon: float

    def to_json(self) -> dict[str, Any]:
        """The line as plain values; infinity becomes null, because JSON has none."""
        return {
            "kind": BOOKING,
            "time": self.time,
            "job": self.purpose.job,
            "run": self.purpose.run,
            "round": self.purpose.round_number,
            "release": self.purpose.release,
            **_identity(self.dataset),
            "mechanism": self.spending.mechanism.value,
            "unit": self.spending.unit.value,
            "sensitivity": _finite_or_none(self.spending.sensitivity),
            "sigma": self.spending.sigma,
            "sampling_rate": self.spending.sampling_rate,
            "steps": self.spending.steps,
            "delta": self.delta,
            "epsilon": _finite_or_none(self.epsilon),
        }


def read_line(line: Mapping[str, Any], where: str) -> Opening | Amendment | Booking:
    """Parse a verified line.

    Raises:
        DataError: if this version does not know its form; ``where`` and the field are named.
    """
    kind = line.get("kind")
    try:
        if kind == OPENING and line["version"] == LEDGER_VERSION:
            return Opening(line["time"], line["site"], line["identity"])
        if kind == AMENDMENT:
            return Amendment(line["time"], _dataset(line), line["reason"])
        if kind == BOOKING:
            return _booking(line)
    except KeyError as error:
        raise DataError(f"{where}: {error.args[0]!r} is missing; was it written by another version?") from error
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: {error}; was it written by another version?") from error
    raise DataError(
        f"{where}: unknown kind {kind!r} or version {line.get('version')!r}; was it written by a newer version?"
    )


def _booking(line: Mapping[str, Any]) -> Booking:
    spending = Spending(
        Mechanism(line["mechanism"]),
        Unit(line["unit"]),
        _infinite_if_none(line["sensitivity"]),
        float(line["sigma"]),
        float(line["sampling_rate"]),
        int(line["steps"]),
    )
    purpose = Purpose(line["job"], line["run"], int(line["round"]), line["release"])
    delta, epsilon = float(line["delta"]), _infinite_if_none(line["epsilon"])
    return Booking(line["time"], purpose, _dataset(line), spending, delta, epsilon)


def _identity(dataset: DatasetIdentity) -> dict[str, str]:
    return {"dataset": dataset.name, "fingerprint": dataset.fingerprint}


def _dataset(line: Mapping[str, Any]) -> DatasetIdentity:
    return DatasetIdentity(line["dataset"], line["fingerprint"])


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _infinite_if_none(value: float | None) -> float:
    return math.inf if value is None else float(value)
