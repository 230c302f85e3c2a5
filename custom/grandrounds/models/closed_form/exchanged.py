r"""Classes that a site has exchanged, as the head of the other sites puts the means of its images.

Sums hold the mean features :math:`m_c` of each class and, with A, the spread of any score within classes. Of two classes
the other sites' head gives the difference :math:`v = W_a - W_b`; :math:`(m_a - m_b)^T v` over its standard error is clearly
above 0 where both mean the same as elsewhere, and clearly below where they are exchanged. What shifts all scores of a site,
such as another device, is in both means.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from grandrounds.models.closed_form.solve import solve
from grandrounds.models.closed_form.sums import Sums

CLEAR = -4.0
"""Standard errors by which exchanged classes are apart at most: clean sites of HAM10000, blood cells and
BreastMNIST are above -1."""
FEWEST_PATIENTS = 5
"""Of a class at a site, and twice as many at the others together, below which nothing is said of it."""
MOST_HERE = 4
"""Times as many patients of a class as the others have: beyond, the others' head does not know the class."""
FEWEST_SITES = 3
"""Of two sites it is not known which has exchanged labels."""


def furthest(site: Sums, others: Tensor, patients: Tensor) -> tuple[float, tuple[int, int]]:
    """The two classes that the others' head most clearly puts the other way round, after their standard errors apart.

    Args:
        site: sums of its images, each of one class.
        others: W, their head.
        patients: of each class at the site.

    Example:
        >>> from grandrounds.models.closed_form.sums import sums_of
        >>> own = sums_of([(torch.tensor([[1.0], [3.0], [5.0], [7.0]]), torch.eye(2)[[0, 0, 1, 1]], torch.ones(4))], 1, 2)
        >>> head = torch.tensor([[1.0, 0.0], [0.0, 0.0]]).double()  # means 2 and 6 of variance 1, five patients each
        >>> apart, classes = furthest(own, head, torch.tensor([5, 5]))
        >>> round(apart, 6), classes  # (2 - 6) / sqrt(1 / 5 + 1 / 5)
        (-6.324555, (0, 1))
    """
    weights = site.targets[-1]
    enough = (patients >= FEWEST_PATIENTS).nonzero().flatten()
    means = (site.targets / weights.clamp(min=1e-12)).T @ others  # of scores, by class
    squares = others.T @ site.products @ others
    least = (0.0, (0, 0))
    for first, second in torch.combinations(enough).tolist():
        scores = means[:, first] - means[:, second]
        whole = squares[first, first] + squares[second, second] - 2 * squares[first, second]
        within = whole - weights @ scores.square()
        error = (within / weights.sum() * (1 / patients[first] + 1 / patients[second])).clamp(min=1e-12).sqrt()
        least = min(least, (float((scores[first] - scores[second]) / error), (first, second)))
    return least


def _known_elsewhere(patients: Tensor, everywhere: Tensor) -> Tensor:
    """The patients of each class at a site; 0 of a class that the others hardly have."""
    elsewhere = everywhere - patients
    return patients * ((elsewhere >= 2 * FEWEST_PATIENTS) & (MOST_HERE * elsewhere >= patients))


def exchanged(
    sites: Mapping[str, Sums], heads: Mapping[str, Tensor], patients: Mapping[str, Tensor], nu: float
) -> dict[str, tuple[int, int]]:
    """The sites at which two classes are exchanged, the clearest first; each is then out of the others' head.

    Args:
        sites: sums of each, with images.
        heads: of the others of each.
        patients: of each class at each.
        nu: the penalty of these heads.
    """
    first, *rest = sites.values()
    total, named = sum(rest, start=first), dict[str, tuple[int, int]]()
    while len(sites) - len(named) >= FEWEST_SITES:
        everywhere = torch.stack([patients[site] for site in sites if site not in named]).sum(dim=0)
        tested = {
            site: furthest(sites[site], head, _known_elsewhere(patients[site], everywhere))
            for site, head in heads.items()
        }
        seen = {site: pair for site, pair in tested.items() if pair[0] < CLEAR}
        if not seen:
            break
        worst = min(seen, key=lambda site: seen[site])
        total, named[worst] = total - sites[worst], seen[worst][1]
        heads = {site: solve(total - sites[site], nu) for site in seen if site != worst}
    return named
