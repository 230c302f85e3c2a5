r"""A head from sums: ridge regression on standardised features with a free bias.

.. math:: W = (A + \nu S D)^{-1} B

D is diagonal: the weighted variance of each feature, 0 for the bias, so that penalties do not depend on the units of
features; S is the sum of all weights, so that one grid of :math:`\nu` serves a few images and many. The columns of W are of
classes or findings; for images x, :math:`z = \phi(x)^T W` is near 1 for the class and near 0 for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grandrounds.models.closed_form.sums import Sums

DEFAULT_PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
LEAST_VARIANCE = 1e-6
"""Of a feature, over the median of all: a constant one would make A singular."""


def feature_variances(sums: Sums) -> Tensor:
    r"""The diagonal of D without the bias's, :math:`D_j = A_{jj} / S - (A_{j0} / S)^2`.

    Returns:
        float64, shape ``(features,)``, each at least ``LEAST_VARIANCE`` of their median.
    """
    total = sums.weight
    means = sums.products[:-1, -1] / total
    variances = (sums.products.diagonal()[:-1] / total - means.square()).clamp(min=0)
    median = float(variances.median()) or float(variances.max()) or 1.0
    return variances.clamp(min=LEAST_VARIANCE * median)


@dataclass(frozen=True, eq=False)
class Standardised:
    """The normal equations of standardised features, from which the bias has been eliminated.

    Attributes:
        products: correlations, shape ``(features, features)``.
        targets: shape ``(features, classes)``.
        means: of features, and of targets.
        deviations: of features.
    """

    products: Tensor
    targets: Tensor
    means: tuple[Tensor, Tensor]
    deviations: Tensor

    @classmethod
    def of(cls, sums: Sums, variances: Tensor | None = None) -> Standardised:
        """Of these sums, by default with the variances of their features."""
        total = sums.weight
        means = sums.products[:-1, -1] / total, sums.targets[-1] / total
        deviations = (feature_variances(sums) if variances is None else variances).sqrt()
        products = sums.products[:-1, :-1] / total - torch.outer(means[0], means[0])
        targets = sums.targets[:-1] / total - torch.outer(means[0], means[1])
        return cls(products / torch.outer(deviations, deviations), targets / deviations[:, None], means, deviations)

    def factor(self, nu: float) -> Tensor:
        """The Cholesky factor of the products with this penalty.

        Raises:
            ValueError: if there is none.
        """
        penalised = self.products.clone()
        penalised.diagonal().add_(nu)
        factor: Tensor
        factor, failed = torch.linalg.cholesky_ex(penalised)
        if int(failed):
            raise ValueError(f"the sums have no solution with nu = {nu:g}; take a larger one")
        return factor

    def solved(self, factor: Tensor) -> Tensor:
        """The head, see :func:`solve`."""
        weights = torch.cholesky_solve(self.targets, factor) / self.deviations[:, None]
        return torch.cat([weights, (self.means[1] - self.means[0] @ weights)[None]])


def solve(sums: Sums, nu: float) -> Tensor:
    """The head.

    Args:
        sums: of all sites, of at least one image.
        nu: the penalty of a standardised feature, over the sum of all weights; positive.

    Returns:
        W, float64, shape ``(features + 1, classes)``, the bias last. The column of a class without images is 0.

    Raises:
        ValueError: if there is no image, or the equations cannot be solved.

    Example:
        >>> from grandrounds.models.closed_form.sums import sums_of
        >>> x, y = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[1.0, 0], [0, 1.0], [0, 1.0]])
        >>> solve(sums_of([(x, y, torch.ones(3))], 1, 2), nu=1 / 3)  # lambda 1: [[-3/8, 3/8], [13/12, -1/12]]
        tensor([[-0.3750,  0.3750],
                [ 1.0833, -0.0833]], dtype=torch.float64)
    """
    return solve_grid(sums, [nu])[0]


def solve_grid(sums: Sums, grid: Sequence[float]) -> list[Tensor]:
    """The heads of several penalties, see :func:`solve`."""
    if not sums.weight > 0:
        raise ValueError("the sums are of no image")
    equations = Standardised.of(sums)
    return [equations.solved(equations.factor(nu)) for nu in grid]


def standardised(head: Tensor, sums: Sums) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""A head on features that are standardised, in place of one on features as they are.

    Args:
        head: W.
        sums: from which it was solved.

    Returns:
        Weights, shape ``(classes, features)``, and bias, of features from which shift is subtracted and that are multiplied
        by scale; shift and scale, shape ``(features,)``.
    """
    deviations = feature_variances(sums).sqrt()
    means = sums.products[:-1, -1] / sums.weight
    return (head[:-1] * deviations[:, None]).T, head[-1] + means @ head[:-1], means, 1 / deviations


def squared_error(head: Tensor, sums: Sums) -> float:
    r"""The weighted squared error of a head on images whose sums alone are known.

    .. math:: \mathrm{tr}(W^T A W) - 2\,\mathrm{tr}(W^T B) + \sum_i w_i |y_i|^2

    Args:
        head: W.
        sums: of these images; their targets are 0 or 1, so the bias's row of B has the last term.
    """
    quadratic = (head * (sums.products @ head)).sum()
    return float(quadratic - 2 * (head * sums.targets).sum() + sums.targets[-1].sum())


def held_out_errors(sites: Sequence[Sums], grid: Sequence[float]) -> list[float]:
    """The error of each penalty at hospitals that were left out: each site's, by the head of all others, added up.

    Weights of classes stay as they are.

    Args:
        sites: the sums of each; at least two with images.
        grid: of penalties.
    """
    total = sites[0]
    for site in sites[1:]:
        total = total + site
    errors = [0.0] * len(grid)
    for site in sites:
        others = total - site
        if site.weight > 0 and others.weight > 0:
            for number, head in enumerate(solve_grid(others, grid)):
                errors[number] += squared_error(head, site)
    return errors


def best_penalty(sites: Sequence[Sums], grid: Sequence[float]) -> tuple[float, list[float]]:
    """The penalty with the smallest error at hospitals that were left out, and the errors of all.

    With one site or one penalty there are no errors, and the middle one of the grid is taken.
    """
    labelled = [site for site in sites if site.weight > 0]
    if len(labelled) < 2 or len(grid) < 2:
        return grid[len(grid) // 2], []
    errors = held_out_errors(labelled, grid)
    return grid[errors.index(min(errors))], errors
