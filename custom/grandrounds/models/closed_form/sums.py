r"""Sums of products of features, from which a head follows in closed form; those of sites add up to those of all images.

With :math:`\phi_i` for the features of image i, followed by a one for the bias, and a target :math:`y_i` with one entry for
each class or finding:

.. math:: A = \sum_i w_i \phi_i \phi_i^T, \qquad B = \sum_i w_i \phi_i y_i^T

Sources: Fanì et al., "Accelerating Heterogeneous Federated Learning with Closed-form Classifiers" (Fed3R), ICML 2024, and
He et al., "AFL: A Single-Round Analytic Approach for Federated Learning with Pre-trained Models", CVPR 2025.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

PRODUCTS, TARGETS = "products", "targets"
"""Names of the tensors of a message."""
DEFAULT_BALANCE, DEFAULT_NORM = 0.5, 256.0
FEATURE_VIEWS = ("none", "half_turn")
"""Of training images; these and the bound on a norm are defaults."""
BLOCK = 512
"""Rows of a matrix of products that are computed at a time."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over images with their weights.

    Attributes:
        products: A, float64, shape ``(features + 1, features + 1)``; the last row and column are the bias's.
        targets: B, float64, shape ``(features + 1, classes)``.
    """

    products: Tensor
    targets: Tensor

    @property
    def weight(self) -> float:
        """S, the sum of the images' weights."""
        return float(self.products[-1, -1])

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.products + other.products, self.targets + other.targets)

    def __sub__(self, other: Sums) -> Sums:
        return Sums(self.products - other.products, self.targets - other.targets)

    def packed(self) -> dict[str, Tensor]:
        """As it travels: the upper triangle of A as a vector, row by row, and B."""
        upper = torch.cat([row[number:] for number, row in enumerate(self.products)])
        return {PRODUCTS: upper, TARGETS: self.targets}

    @classmethod
    def unpacked(cls, packed: Mapping[str, Tensor]) -> Sums:
        """Undo :meth:`packed`."""
        size = len(packed[TARGETS])
        upper = torch.zeros(size, size, dtype=torch.float64)
        for number, row in enumerate(torch.split(packed[PRODUCTS], list(range(size, 0, -1)))):
            upper[number, number:] = row
        return cls(upper + upper.triu(1).T, packed[TARGETS])


def class_weights(counts: Tensor, beta: float) -> Tensor:
    r"""The weight of each class's images.

    .. math:: w_c = \left(\frac{N}{C n_c}\right)^\beta, \qquad w_c = 0 \text{ where } n_c = 0

    Args:
        counts: labelled training images of each class over all sites, shape ``(classes,)``, not negative.
        beta: 1 balances the classes, 0 weights all images alike.

    Returns:
        Weights, float64, shape ``(classes,)``; N is the number of all images, C that of all classes.

    Raises:
        ValueError: if there is no image.

    Example:
        >>> class_weights(torch.tensor([1, 2]), 1.0)
        tensor([1.5000, 0.7500], dtype=torch.float64)
        >>> class_weights(torch.tensor([1, 2]), 0.0)
        tensor([1., 1.], dtype=torch.float64)
    """
    numbers = counts.double()
    if not bool((numbers > 0).any()):
        raise ValueError("counts must have at least one labelled image, got none in any class")
    weights = (numbers.sum() / (len(numbers) * numbers)).pow(beta)
    return torch.where(numbers > 0, weights, torch.zeros_like(weights))


def sums_of(
    features: Iterable[tuple[Tensor, Tensor, Tensor]], width: int, classes: int, device: torch.device | str = "cpu"
) -> Sums:
    """Add up one site's images, on the device where their features are.

    Args:
        features: batches of features ``(images, width)``, targets ``(images, classes)`` and weights ``(images,)``.
        width: of the features.
        classes: or findings.
        device: of the batches.
    """
    products = torch.zeros(width + 1, width + 1, dtype=torch.float64, device=device)
    targets = torch.zeros(width + 1, classes, dtype=torch.float64, device=device)
    for batch, wanted, weights in features:
        rows = with_bias(batch.double())
        weighted = (rows * weights.double()[:, None]).T
        for first in range(0, width + 1, BLOCK):  # what is left of the diagonal is that above it
            products[first : first + BLOCK, first:].addmm_(weighted[first : first + BLOCK], rows[:, first:])
        targets += weighted @ wanted.double()
    upper = products.triu()  # of a product of two floating-point matrices the triangles differ in the last bits
    return Sums((upper + upper.triu(1).T).cpu(), targets.cpu())


def clipped(features: Tensor, norm: float) -> Tensor:
    """The features of images, shape ``(images, width)``, none longer than ``norm``."""
    size = torch.linalg.vector_norm(features, dim=1, keepdim=True)
    result: Tensor = features * (norm / size.clamp(min=norm))
    return result


def with_bias(features: Tensor) -> Tensor:
    """The features of images, shape ``(images, width)``, followed by a one."""
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1)
