"""What a server checks of sums that it has received."""

from __future__ import annotations

import sys

import torch

from grandrounds.models.closed_form.sums import PRODUCTS, TARGETS, Sums
from grandrounds.protocol.task import Task

SYMMETRY = 1e-9
"""By which the smallest eigenvalue of a matrix may be below 0, over its trace, and sums of one site may differ."""


def packed_shapes(features: int, classes: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a message.

    Example:
        >>> packed_shapes(2, 3)
        {'products': (6,), 'targets': (3, 3)}
    """
    size = features + 1
    return {PRODUCTS: (size * (size + 1) // 2,), TARGETS: (size, classes)}


def wrong_sums(sums: Sums, task: Task, norm: float) -> str:
    """What shows that a site's sums are not of images; empty if nothing does.

    Args:
        sums: of one site.
        task: what labels are.
        norm: R, the largest norm of an image's features.

    Example:
        >>> from grandrounds.models.closed_form.sums import sums_of
        >>> from grandrounds.protocol.tasks import SINGLE
        >>> sums = sums_of([(torch.ones(2, 1), torch.eye(2), torch.ones(2))], 1, 2)
        >>> wrong_sums(sums, SINGLE, 2.0)
        ''
        >>> wrong_sums(Sums(-sums.products, sums.targets), SINGLE, 2.0)
        'the sum of its weights is -2'
    """
    total = sums.weight
    if not total >= 0:
        return f"the sum of its weights is {total:g}"
    trace = float(sums.products.trace()) - total
    if trace > norm**2 * total * (1 + SYMMETRY):
        return f"the squares of its features add up to {trace:g}, more than {norm:g}^2 for each of {total:g} images"
    raised = sums.products.clone()
    raised.diagonal().add_(max(SYMMETRY * (trace + total), sys.float_info.min))
    if int(torch.linalg.cholesky_ex(raised)[1]):  # there is a factor if no eigenvalue is below 0
        return "the products of its features are not positive semidefinite"
    return task.wrong_targets(sums.targets, sums.products[:, -1], SYMMETRY * max(trace + total, 1.0))
