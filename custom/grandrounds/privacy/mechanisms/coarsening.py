"""Coarsening: class statistics of too few patients are withheld, soft labels are rounded.

Neither has an epsilon; both only make attacks harder.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grandrounds.checks import ROW_SUM_TOLERANCE, require_probabilities

WITHHELD_COUNT = -1
UINT8_LEVELS = 255
HALF_TOLERANCE = 5e-3


def withhold_classes(matrix: Tensor, support: Tensor, minimum: int) -> tuple[Tensor, Tensor]:
    """Withhold the rows of classes with too little support, without revealing whether they have any.

    Args:
        matrix: a distribution for each class, shape ``(classes, classes)``; of findings, shape ``(2 findings, 2)``, one for
            those without and one for those with each.
        support: patients behind each row, whole numbers, shape ``(rows,)``; -1 for a row that is already withheld.
        minimum: a row with a smaller support becomes uniform, and its support -1.

    Returns:
        New tensors on the CPU, of the same shapes and dtypes.

    Raises:
        ValueError: if a shape or dtype is wrong, a row is not a distribution, or a support is below -1.

    Example:
        >>> withhold_classes(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([1, 20]), minimum=5)
        (tensor([[0.5000, 0.5000],
                [0.3000, 0.7000]]), tensor([-1, 20]))
    """
    if support.dim() != 1 or support.dtype != torch.int64:
        raise ValueError(f"support must be int64 of shape (classes,), got {support.dtype} {tuple(support.shape)}")
    if tuple(matrix.shape) not in ((len(support), len(support)), (len(support), 2)) or not matrix.is_floating_point():
        raise ValueError(
            f"matrix must be of floating point and shape ({len(support)}, {len(support)} or 2), got {matrix.dtype} "
            f"{tuple(matrix.shape)}"
        )
    require_probabilities(matrix, "matrix")
    if bool((support < WITHHELD_COUNT).any()):
        raise ValueError(f"a support must be {WITHHELD_COUNT} or more, got {int(support.min())}")
    matrix, support = matrix.detach().cpu(), support.detach().cpu()
    shown = support >= minimum
    uniform = torch.full_like(matrix, 1.0 / matrix.shape[1])
    return torch.where(shown[:, None], matrix, uniform), torch.where(shown, support, WITHHELD_COUNT)


def quantise_rows(rows: Tensor, levels: int, name: str = "soft labels") -> Tensor:
    r"""Round distributions to multiples of :math:`1/L` by largest remainders, so that they stay distributions.

    Args:
        rows: probabilities, shape ``(samples, classes)``, in floating point or times 255 as uint8.
        levels: :math:`L`.
        name: of the tensor, for errors.

    Returns:
        A new tensor on the CPU, of the same dtype. Every entry changes by less than :math:`1/L`. Every row sums to one (as
        uint8 to 255 if L divides it, else to within half the number of classes).

    Raises:
        ValueError: if a row is not a distribution, or the dtype is another.

    Example:
        >>> quantise_rows(torch.tensor([[0.55, 0.30, 0.15], [1.0, 0.0, 0.0]]), levels=4)
        tensor([[0.5000, 0.2500, 0.2500],
                [1.0000, 0.0000, 0.0000]])
    """
    probabilities = _probabilities(rows, name)
    scaled = probabilities * levels
    counts = scaled.floor()
    missing = (levels - counts.sum(dim=1)).round().long()
    order = (scaled - counts).argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(rows.shape[1]).expand_as(order))
    quantised = (counts + (rank < missing[:, None])) / levels
    if rows.dtype == torch.uint8:
        return (quantised * UINT8_LEVELS).round().to(torch.uint8)
    return quantised.to(rows.dtype)


def _probabilities(rows: Tensor, name: str) -> Tensor:
    """The rows in double precision, each normalised to sum to one."""
    if rows.dim() != 2:
        raise ValueError(f"{name} must have shape (samples, classes), got {tuple(rows.shape)}")
    if rows.dtype != torch.uint8 and not rows.is_floating_point():
        raise ValueError(
            f"{name} must be floating point, or probabilities times {UINT8_LEVELS} as uint8, got {rows.dtype}"
        )
    values = rows.detach().cpu().double()
    sums = values.sum(dim=1, keepdim=True)
    # Rounding error: half a level per entry of eight bits, a two-thousandth in half precision.
    expected, tolerance = (1.0, HALF_TOLERANCE if rows.element_size() == 2 else ROW_SUM_TOLERANCE)
    if rows.dtype == torch.uint8:
        expected, tolerance = float(UINT8_LEVELS), rows.shape[1] / 2
    bad = ~torch.isfinite(values).all(dim=1) | (values < 0).any(dim=1)
    bad |= ~((sums[:, 0] - expected).abs() <= tolerance)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise ValueError(
            f"row {row} of {name} is not a distribution: it sums to {float(sums[row]):.6g}, not {expected:g}"
        )
    return values / sums
