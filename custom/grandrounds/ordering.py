"""One canonical order of sites, so that sums and choices do not depend on the order of answers."""

from __future__ import annotations

import re
from collections.abc import Iterable


def natural_key(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key under which ``site-2`` comes before ``site-10``."""
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part)


def natural_sorted(names: Iterable[str]) -> list[str]:
    """Sort names as people do.

    Example:
        >>> natural_sorted(["site-10", "site-2", "server"])
        ['server', 'site-2', 'site-10']
    """
    return sorted(names, key=lambda name: (natural_key(name), name))
