"""Bounds on numbers of images, which are claims of sites: a multiple of the median of the sites' numbers.

Every sum of ridge regression grows with the images behind it, so a site that claimed a million times its images would own
the head. A median says nothing where one site could choose it: it must be of three sites that have images.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from grandrounds.federation.server.robust import MIN_VALUES


def used_shares(numbers: Mapping[str, float], multiple: float | None) -> dict[str, float]:
    """By which factor the number of each site counts, in (0, 1]; exactly 1 within the bound, and where there is none.

    Args:
        numbers: of images, by site; sites without images do not belong to the median.
        multiple: of the median; None bounds nothing.

    Example:
        >>> used_shares({"site-1": 40, "site-2": 50, "site-3": 60, "site-4": 1000}, 10.0)
        {'site-1': 1.0, 'site-2': 1.0, 'site-3': 1.0, 'site-4': 0.55}
        >>> used_shares({"site-1": 40, "site-2": 1e9}, 10.0)
        {'site-1': 1.0, 'site-2': 1.0}
    """
    positive = [number for number in numbers.values() if number > 0]
    if multiple is None or len(positive) < MIN_VALUES:
        return dict.fromkeys(numbers, 1.0)
    limit = multiple * statistics.median(positive)
    return {site: limit / number if number > limit else 1.0 for site, number in numbers.items()}


def share_notes(numbers: Mapping[str, float], multiple: float | None) -> dict[str, Any]:
    """Whose number was bounded, with it and what is used of it; or, where nothing bounds it, who has one.

    Example:
        >>> share_notes({"site-1": 40, "site-2": 50, "site-3": 60, "site-4": 1000}, 10.0)
        {'bounded': {'site-4': {'weight': 1000.0, 'weight_used': 550.0}}}
        >>> share_notes({"site-1": 40, "site-2": 1e9}, 10.0)
        {'bounds_void': {'site-1': ['weight'], 'site-2': ['weight']}}
    """
    positive = [site for site, number in numbers.items() if number > 0]
    if multiple is not None and len(positive) < MIN_VALUES:
        return {"bounds_void": {site: ["weight"] for site in positive}} if positive else {}
    bounded = {
        site: {"weight": float(f"{numbers[site]:.6g}"), "weight_used": float(f"{numbers[site] * share:.6g}")}
        for site, share in used_shares(numbers, multiple).items()
        if share < 1
    }
    return {"bounded": bounded} if bounded else {}
