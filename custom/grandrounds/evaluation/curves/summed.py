"""Curves of several sites' counts: their distribution functions are added, as if scores were spread evenly within a bin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grandrounds.evaluation.curves.binned import MINIMUM, Array, CurveCounts, SiteCurves, merge_to, supported_edges


def sum_curves(sites: Sequence[SiteCurves], classes: Sequence[str]) -> SiteCurves:
    """The counts of several sites together; of each class those of the sites that have counts of it.

    Of the reliability, bins with fewer than ``MINIMUM`` cases together are merged with their neighbours.
    """
    of_class = {name: [site.classes[name] for site in sites if name in site.classes] for name in classes}
    reliability = [site.reliability for site in sites if site.reliability is not None]
    return SiteCurves(
        {name: sum_counts(counts) for name, counts in of_class.items() if counts},
        _with_cases(sum_counts(reliability)) if reliability else None,
    )


def sum_counts(sites: Sequence[CurveCounts]) -> CurveCounts:
    """Add the counts of several sites on all edges that any of them has.

    Example:
        >>> halves = CurveCounts(np.array([0.0, 0.5, 1.0]), np.array([10.0, 30.0]), np.array([15.0, 5.0]))
        >>> whole = CurveCounts(np.array([0.0, 1.0]), np.array([20.0]), np.array([40.0]))
        >>> sum_counts([halves, whole]).positives  # the second site's twenty are spread evenly
        array([20., 40.])
    """
    if not sites:
        raise ValueError("there are no counts")
    edges = np.unique(np.concatenate([site.edges for site in sites]))
    return CurveCounts(
        edges,
        _sum_on(edges, [(site.edges, site.positives) for site in sites]),
        _sum_on(edges, [(site.edges, site.negatives) for site in sites]),
    )


def _sum_on(edges: Array, counted: Sequence[tuple[Array, Array]]) -> Array:
    """Counts on edges of their own, spread evenly within their bins and added on other edges."""
    below = np.zeros(len(edges))
    for own, counts in counted:
        below += np.interp(edges, own, np.r_[0.0, np.cumsum(counts)])
    return np.diff(below)


def _with_cases(counts: CurveCounts) -> CurveCounts:
    """The counts with neighbouring bins merged until each is empty or of at least ``MINIMUM`` cases."""
    cases = np.round(counts.positives + counts.negatives, 6)
    return merge_to(counts, supported_edges(cases.tolist(), [0.0] * len(cases), MINIMUM))
