"""Half precision is for networks: what is computed from their outputs is computed in single precision at least."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_single(values: Tensor) -> Tensor:
    """Widen half precision to single; single and double stay as they are.

    Args:
        values: floating point, of any shape.

    Example:
        >>> half = torch.ones(1, dtype=torch.bfloat16)
        >>> at_least_single(half).dtype, at_least_single(half.double()).dtype
        (torch.float32, torch.float64)
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))
