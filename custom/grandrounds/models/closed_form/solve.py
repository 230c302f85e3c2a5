r"""A head from sums: ridge regression on standardised features with a free bias.

.. math:: W = (A + \nu S D)^{-1} B

D is diagonal: the weighted variance of each feature, 0 for the bias, so that penalties do not depend on the units of
features; S is the sum of all weights, so that one grid of :math:`\nu` serves a few images and many. The columns of W are
of classes or findings; for images x, :math:`z = \phi(x)^T W` is near 1 for the class and near 0 for the others.

The temperature of scores near 0 and 1 is chosen by the likelihood of validation images, before frequencies are corrected:
logits are then ``T (z - centre) + offset`` with what :meth:`~grandrounds.protocol.task.Task.centre_and_offset` gives for
``correction=0``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grandrounds.models.closed_form.sums import Sums
from grandrounds.protocol.task import MASKED, Task

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
        products = (sums.products[:-1, :-1] / total).addr_(means[0], means[0], alpha=-1)
        products.div_(deviations).div_(deviations[:, None])
        targets = sums.targets[:-1] / total - torch.outer(means[0], means[1])
        return cls(products, targets / deviations[:, None], means, deviations)

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


TEMPERATURES = torch.logspace(0, 6, 25, base=2.0, dtype=torch.float64)
"""From 1 to 64; the third step doubles the second last."""
DEFAULT_CORRECTION = 1.0
DEFAULT_TEMPERATURE = 8.0
"""Without validation images."""


def best_temperature(losses: Tensor) -> float:
    """The temperature of the smallest loss; the largest of equal ones.

    Args:
        losses: over validation images, one for each of ``TEMPERATURES``.

    Example:
        >>> best_temperature((TEMPERATURES - 8).abs())
        8.0
    """
    return best_cell(losses[None])[1]


def best_cell(losses: Tensor) -> tuple[int, float]:
    """Head and temperature of the smallest loss; the last of equal ones.

    Args:
        losses: over validation images, shape ``(heads, temperatures)``, of ``TEMPERATURES``.

    Example:
        >>> best_cell(torch.stack([(TEMPERATURES - 8).abs() + 1, (TEMPERATURES - 4).abs(), (TEMPERATURES - 2).abs()]))
        (2, 2.0)
    """
    head, temperature = (losses == losses.min()).nonzero()[-1].tolist()
    return head, float(TEMPERATURES[temperature])


def summed_losses(
    kind: Task, scores: Tensor, centre: Tensor, offsets: Tensor, labels: NDArray[np.int64], worst: float
) -> Tensor:
    """The log losses of several heads at each of ``TEMPERATURES``, added up over images.

    Args:
        kind: what labels are.
        scores: of the heads, float64, shape ``(heads, n, classes)``.
        centre: of the scores, shape ``(classes,)``.
        offsets: of logits, shape ``(offsets, classes)``.
        labels: of the images; unknown ones do not count.
        worst: that the loss of an answer counts at most.

    Returns:
        In nats, float64, shape ``(offsets, heads, temperatures)``.

    Example:
        >>> from grandrounds.protocol.tasks import SINGLE
        >>> scores, none = torch.zeros(1, 3, 2).double(), torch.zeros(2).double()
        >>> float(summed_losses(SINGLE, scores, none, none[None], np.array([0, 1, 1]), 36.0)[0, 0, 0] / math.log(2))
        3.0
    """

    def of(offset: Tensor, head: Tensor, temperature: float) -> float:
        answers = kind.answered(labels, kind.probabilities(temperature * (head - centre) + offset).numpy())
        return -float(np.log(np.maximum(answers, math.exp(-worst))).sum())

    table = [[[of(one, head, value) for value in TEMPERATURES.tolist()] for head in scores] for one in offsets]
    return torch.tensor(table, dtype=torch.float64)


def risk_offset(kind: Task, shares: Tensor, weights: Tensor) -> Tensor:
    r"""The offset of logits of risks, probabilities at the shares of training images; up to what these do not show.

    Of one class an image it is :math:`\log \pi_c - \log p_c` of the shares before and after the images were weighted.

    Args:
        kind: what labels are.
        shares: of the classes or findings, weighted, shape ``(classes,)``.
        weights: of a class's images, shape ``(classes,)``.

    Returns:
        Float64, shape ``(classes,)``; ``MASKED`` for a name without images.
    """
    offset, weighted = (kind.centre_and_offset(shares, correction)[1] for correction in (0.0, 1.0))
    own = kind.centre_and_offset(torch.where(weights > 0, shares / weights, shares), 1.0)[1]
    return torch.where(offset == MASKED, MASKED, offset + weighted - own)


def risk_terms(decided: Tensor, temperature: float, risked: Tensor, of_risks: float) -> Tensor:
    """Factor and addend that make logits of risks of those of decisions.

    Args:
        decided: offset of logits of decisions, shape ``(classes,)``.
        temperature: of these.
        risked: offset of logits of risks, likewise.
        of_risks: their temperature.

    Returns:
        Float64, shape ``(2, classes)``.

    Example:
        >>> risk_terms(torch.tensor([3.0]), 8.0, torch.tensor([1.0]), 4.0).tolist()  # 4 z + 1 of 8 z + 3
        [[0.5], [-0.5]]
    """
    factor = torch.full_like(decided, of_risks / temperature)
    return torch.stack([factor, risked - factor * decided])


def uncorrected(kind: Task, shares: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Centre and offsets of the logits by which temperatures are chosen; a name without training images is not masked.

    Were it masked, one validation image of it would outweigh all others. Arguments as of :func:`risk_offset`.

    Returns:
        Shape ``(classes,)``, and ``(2, classes)``: of decisions and of risks.
    """
    centre, offset = kind.centre_and_offset(shares, 0.0)
    offsets = torch.stack([offset, risk_offset(kind, shares, weights)])
    return centre, torch.where(offsets == MASKED, 0.0, offsets)
