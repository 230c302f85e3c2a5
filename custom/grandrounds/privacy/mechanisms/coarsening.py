"""Saying less: class statistics with enough patients behind them, and soft labels on a coarser grid.

Neither has an epsilon. They make an attack harder and the worst case milder, no more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grandrounds.checks import ROW_SUM_TOLERANCE, require_probabilities

WITHHELD = -1
UINT8_LEVELS = 255
HALF_TOLERANCE = 5e-3


def withhold_classes(matrix: Tensor, support: Tensor, least: int) -> tuple[Tensor, Tensor]:
    """Hide the rows of classes that few stand behind; a hidden row says neither how many nor whether there are any.

    Args:
        matrix: a distribution for each class, shape ``(classes, classes)``.
        support: how many stand behind each row, whole numbers, shape ``(classes,)``; -1 for a row that is hidden already.
        least: a row with fewer is made uniform, and its support -1.

    Returns:
        New tensors on the CPU, of the same shapes and dtypes.

    Raises:
        ValueError: if a shape or dtype is wrong, a row is no distribution, or a support is below -1.

    Example:
        >>> withhold_classes(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([1, 20]), least=5)
        (tensor([[0.5000, 0.5000],
                [0.3000, 0.7000]]), tensor([-1, 20]))
    """
    if support.dim() != 1 or support.dtype != torch.int64:
        raise ValueError(f"support must be int64 of shape (classes,), got {support.dtype} {tuple(support.shape)}")
    if matrix.shape != (len(support), len(support)) or not matrix.is_floating_point():
        raise ValueError(
            f"matrix must be of floating point and shape ({len(support)}, {len(support)}), got {matrix.dtype} "
            f"{tuple(matrix.shape)}"
        )
    require_probabilities(matrix, "matrix")
    if bool((support < WITHHELD).any()):
        raise ValueError(f"a support must be {WITHHELD} or more, got {int(support.min())}")
    matrix, support = matrix.detach().cpu(), support.detach().cpu()
    shown = support >= least
    uniform = torch.full_like(matrix, 1.0 / len(support))
    return torch.where(shown[:, None], matrix, uniform), torch.where(shown, support, WITHHELD)


def quantise_rows(rows: Tensor, levels: int, name: str = "rows") -> Tensor:
    r"""Round distributions to multiples of :math:`1/L` so that they stay distributions (largest remainders).

    Args:
        rows: probabilities, shape ``(samples, classes)``; or such times 255 as uint8.
        levels: :math:`L`.
        name: how an error calls the tensor.

    Returns:
        New tensor on the CPU, of the same dtype. Every entry is less than :math:`1/L` from what it was, every row sums to
        one (of uint8: to 255 where L divides it, else to within half the number of classes).

    Raises:
        ValueError: if a row is no distribution, or the dtype is none of probabilities.

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
    """The rows in double precision, summing to one exactly enough."""
    if rows.dim() != 2:
        raise ValueError(f"{name} must have shape (samples, classes), got {tuple(rows.shape)}")
    if rows.dtype != torch.uint8 and not rows.is_floating_point():
        raise ValueError(f"{name} must be probabilities or such times {UINT8_LEVELS} as uint8, got {rows.dtype}")
    values = rows.detach().cpu().double()
    sums = values.sum(dim=1, keepdim=True)
    # Each entry of eight bits may be half a level off, of half precision a two-thousandth.
    expected, tolerance = (1.0, HALF_TOLERANCE if rows.element_size() == 2 else ROW_SUM_TOLERANCE)
    if rows.dtype == torch.uint8:
        expected, tolerance = float(UINT8_LEVELS), rows.shape[1] / 2
    bad = ~torch.isfinite(values).all(dim=1) | (values < 0).any(dim=1)
    bad |= ~((sums[:, 0] - expected).abs() <= tolerance)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise ValueError(f"row {row} of {name} is no distribution: it sums to {float(sums[row]):.6g}, not {expected:g}")
    return values / sums
