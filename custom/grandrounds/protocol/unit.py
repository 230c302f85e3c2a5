"""The unit that a guarantee protects, and how far a release can move when one is replaced."""

from __future__ import annotations

import math
from enum import StrEnum


class Unit(StrEnum):
    """What may differ.

    ``record``: one image more or less. ``patient``: all images of one patient more or less. ``presence``: the site's
    contribution is there, or zero in its place. ``site``: all of the site's data, replaced by any other.
    """

    RECORD = "record"
    PATIENT = "patient"
    PRESENCE = "presence"
    SITE = "site"

    def described(self) -> str:
        """The unit in words.

        Example:
            >>> Unit.SITE.described()
            'all data of the site'
        """
        return {
            Unit.RECORD: "one record",
            Unit.PATIENT: "all records of one patient",
            Unit.PRESENCE: "the site's taking part",
            Unit.SITE: "all data of the site",
        }[self]


def require_delta(delta: float) -> None:
    """Raise ``ValueError`` unless ``delta`` is a probability strictly between 0 and 1."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must be above 0 and below 1, got {delta}; usual is less than 1 over the records")


def update_sensitivity(clip: float, unit: Unit) -> float:
    """The L2 sensitivity of updates of norm at most ``clip``.

    Without a site's presence the update is zero: ``clip``. Updates of two data sets may be opposite: ``2 clip``. A single
    record can have the same effect, because training is not a contraction.

    Args:
        clip: bound on the L2 norm of the whole update, positive.
        unit: what may differ.

    Example:
        >>> update_sensitivity(1.5, Unit.PRESENCE), update_sensitivity(1.5, Unit.SITE)
        (1.5, 3.0)
    """
    return clip if unit is Unit.PRESENCE else 2.0 * clip


def distance(booked: Unit, claimed: Unit) -> float:
    """The factor of a sensitivity when a release is counted for another unit than it was made for.

    Protection of all data covers a record and the presence: 1. Two data sets are twice as far apart as a data set and
    nothing: 2. Protection of one record or one patient does not cover a site: infinite. Neither do these two cover each
    other: a patient may have several records, and without one of them a patient is another patient, not an absent one.

    Args:
        booked: the unit of the release's sensitivity.
        claimed: the unit that the guarantee is wanted for.

    Example:
        >>> distance(Unit.SITE, Unit.RECORD), distance(Unit.PRESENCE, Unit.SITE), distance(Unit.RECORD, Unit.SITE)
        (1.0, 2.0, inf)
    """
    if booked is claimed or booked is Unit.SITE:
        return 1.0
    return 2.0 if booked is Unit.PRESENCE else math.inf
