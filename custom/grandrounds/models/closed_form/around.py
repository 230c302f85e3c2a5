r"""A head from a few labels of an external site, kept near the head that a model has.

.. math:: \min_V \; \sum_i |\phi_i^T V + b - y_i|^2 + \mu\,|V - a W|_D^2

D is diagonal: the variance of each feature; the bias b is free. W gives logits, and targets are 0 or 1: a is the number, at
least 0, by which the logits are nearest to the targets, each centred.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grandrounds.models.closed_form.solve import LEAST_VARIANCE, Standardised
from grandrounds.models.closed_form.sums import Sums, with_bias

MU_GRID = torch.logspace(-3, 3, 13, dtype=torch.float64)
"""Over the mean square of the labelled images' scaled features."""


@dataclass(frozen=True, eq=False)
class NearHead:
    """A head.

    Attributes:
        weights: V and as the last row the bias, float64, shape ``(features + 1, classes)``.
        penalty: mu; where images were added to sums, their weight.
        held_out: the scores of each image by the head of all others, at the same a and mu, shape ``(n, classes)``.
    """

    weights: Tensor
    penalty: float
    held_out: Tensor


def solve_near(
    features: Tensor, targets: Tensor, start: Tensor, variances: Tensor, penalties: Tensor | None = None
) -> NearHead:
    """The head, with the penalty of the smallest squared error of images that are left out in turn.

    Args:
        features: of labelled images, float64, shape ``(n, features)``.
        targets: 1 for the class of an image, else 0, shape ``(n, classes)``.
        start: W, shape ``(features, classes)``.
        variances: the diagonal of D, shape ``(features,)``; one of a constant feature is raised.
        penalties: mu to choose from, above 0; by default ``MU_GRID``. Of equal errors the largest is taken.

    Example:
        >>> features, targets = torch.tensor([[0.0], [2.0]]).double(), torch.eye(2).double()
        >>> start, ones = torch.zeros(1, 2).double(), torch.ones(1).double()
        >>> solve_near(features, targets, start, ones, torch.tensor([2.0])).weights
        tensor([[-0.2500,  0.2500],
                [ 0.7500,  0.2500]], dtype=torch.float64)
    """
    median = float(variances.median()) or float(variances.max()) or 1.0
    deviations = variances.clamp(min=LEAST_VARIANCE * median).sqrt()
    centre, wanted = features.mean(dim=0), targets.mean(dim=0)
    scaled = (features - centre) / deviations
    scores = (features - centre) @ start
    part = float(((scores * (targets - wanted)).sum() / scores.square().sum().clamp(min=1e-30)).clamp(min=0))
    missing = targets - wanted - part * scores
    sizes, axes = torch.linalg.eigh(scaled @ scaled.T)
    sizes = sizes.clamp(min=0)
    grid = MU_GRID * float(sizes.mean().clamp(min=1e-30)) if penalties is None else penalties.double()

    def residual(penalty: Tensor) -> Tensor:
        """Of each image, by the head of all others."""
        smoother = (axes * (sizes / (sizes + penalty))) @ axes.T
        others = 1 - smoother.diagonal() - 1 / len(features)
        residual: Tensor = (missing - smoother @ missing) / others.clamp(min=1e-12)[:, None]
        return residual

    residuals = [residual(penalty) for penalty in grid]
    errors = torch.stack([residual.square().sum() for residual in residuals])
    best = int((errors == errors.min()).nonzero().max())
    change = scaled.T @ ((axes / (sizes + grid[best])) @ (axes.T @ missing)) / deviations[:, None]
    weights = part * start + change
    bias = wanted - centre @ weights
    return NearHead(torch.cat([weights, bias[None]]), float(grid[best]), targets - residuals[best])


def solve_added(
    sums: Sums, nu: float, features: Tensor, targets: Tensor, relative: Tensor, weights: Tensor | None = None
) -> NearHead:
    r"""The head of sums to which images were added, with the weight w of the smallest error of images left out in turn.

    .. math:: V = (A + \nu S D + w \Phi^T R \Phi)^{-1} (B + w \Phi^T R Y)

    S and D are those of the sums alone, see :mod:`~grandrounds.models.closed_form.solve`. R is diagonal, and weighs the
    squared errors by which w is chosen, too.

    Args:
        sums: of training images.
        nu: their penalty.
        features: of labelled images, float64, shape ``(n, features)``.
        targets: 1 for the class of an image, else 0, shape ``(n, classes)``.
        relative: R, of each image, above 0, shape ``(n,)``; where the images in the sums have class weights, these.
        weights: w to choose from, above 0; by default such that these images together weigh from a thousandth of the
            training images to a thousand times as much. Of equal errors the smallest is taken.

    Returns:
        The head; its ``held_out`` are at the same w.

    Raises:
        ValueError: if the sums alone have no solution.
    """
    equations, total = Standardised.of(sums), sums.weight
    factor = equations.factor(nu)
    head = equations.solved(factor)
    roots = relative.sqrt()[:, None]
    scaled = roots * (features - equations.means[0]) / equations.deviations
    moved = torch.cholesky_solve(scaled.T, factor) / total
    sizes, axes = torch.linalg.eigh(scaled @ moved + roots @ roots.T / total)
    missing = roots * (targets - with_bias(features) @ head)
    candidates = []
    for weight in MU_GRID * total / relative.sum() if weights is None else weights.double():
        inverse = (axes / (1 / weight + sizes.clamp(min=0))) @ axes.T
        pull = inverse @ missing
        candidates.append((pull, pull / inverse.diagonal()[:, None], float(weight)))
    pull, residual, weight = min(candidates, key=lambda candidate: float(candidate[1].square().sum()))
    change = moved @ pull / equations.deviations[:, None]
    bias = (roots * pull).sum(dim=0) / total - equations.means[0] @ change
    return NearHead(head + torch.cat([change, bias[None]]), weight, targets - residual / roots)
