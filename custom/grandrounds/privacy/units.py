"""Whom a guarantee is about: what may differ between two data sets that must look alike from outside.

An epsilon without this word says nothing. The same noise protects one image well and a whole hospital badly, and whether
"the hospital" means that it takes part or what it has differs by a factor of two (Dwork & Roth, "The Algorithmic
Foundations of Differential Privacy", 2014, chapter 2).
"""

from __future__ import annotations

import math
from enum import StrEnum


class Unit(StrEnum):
    """What may differ.

    ``record``: one image more or less. ``presence``: the site's contribution is there, or zero in its place. ``site``:
    all of the site's data, replaced by any other.
    """

    RECORD = "record"
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
            Unit.PRESENCE: "the site's taking part",
            Unit.SITE: "all data of the site",
        }[self]


def update_sensitivity(clip: float, unit: Unit) -> float:
    """How far two updates of norm at most ``clip`` can be apart, in L2.

    Without one's presence the update is zero: ``clip``. Two updates of two data sets may be opposite: ``2 clip``, and a
    single record can do that as well, since training is no contraction; so for a record it is the same.

    Args:
        clip: bound on the L2 norm of the whole update, positive.
        unit: what may differ.

    Example:
        >>> update_sensitivity(1.5, Unit.PRESENCE), update_sensitivity(1.5, Unit.SITE)
        (1.5, 3.0)
    """
    return clip if unit is Unit.PRESENCE else 2.0 * clip


def distance(booked: Unit, claimed: Unit) -> float:
    """By how much a sensitivity grows when a release is counted for another unit than it was made for.

    What hides all data hides a record and the presence too: 1. From one data set to another is twice as far as from a
    data set to nothing: 2. What hides one record hides no site: infinite.

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
