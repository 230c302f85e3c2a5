"""One random stream per (run, round, site, purpose), so that results do not depend on order or machine.

Seeds are derived by hashing what they are for. A site that is trained in another process, in another order or after a
restart draws the same numbers, and two purposes never share a stream.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive_seed(*purpose: int | str) -> int:
    """Hash a purpose into a 63-bit seed.

    Args:
        purpose: what the stream is for, for example ``(run_seed, "round", 3, "site-1", "weak")``. Order and
            types count.

    Returns:
        An integer in [0, 2**63).

    Example:
        >>> derive_seed(1, "site-1") == derive_seed(1, "site-1"), derive_seed(1, "site-1") == derive_seed(1, "site-2")
        (True, False)
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in purpose)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_generator(*purpose: int | str) -> np.random.Generator:
    """A counter-based NumPy generator of its own for this purpose."""
    return np.random.Generator(np.random.Philox(derive_seed(*purpose)))


def torch_generator(*purpose: int | str) -> torch.Generator:
    """A CPU torch generator of its own for this purpose."""
    import torch

    return torch.Generator().manual_seed(derive_seed(*purpose))
