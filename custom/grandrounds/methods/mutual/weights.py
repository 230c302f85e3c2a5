"""Client confidence: the weights of clients in RHFL and RHFL+.

MDH-FL weights all clients equally. RHFL (Fang & Ye, CVPR 2022) weights a client by how fast its loss on its own noisy labels
falls; RHFL+ (Fang, Ye & Du, IEEE TMC 2024) also by how far its parameters moved. Both are as in the authors' code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def equal_weights(clients: int) -> list[float]:
    r"""The weights of MDH-FL, and of the first epoch of RHFL and RHFL+: :math:`1/(P-1)`, so that the others' sum to one.

    Raises:
        ValueError: with fewer than two clients.

    Example:
        >>> equal_weights(3)
        [0.5, 0.5, 0.5]
    """
    if clients < 2:
        raise ValueError(f"there must be at least 2 clients to learn from each other, got {clients}")
    return [1 / (clients - 1)] * clients


def ccr_weights(previous: Sequence[float], current: Sequence[float], strength: float = 0.5) -> list[float]:
    r"""Client confidence re-weighting (RHFL).

    .. math::
        q_p = \frac{L_p^{t-1} - L_p^t}{L_p^t}, \qquad
        w = \mathrm{softmax}\Big( \frac{1}{P-1} + \beta \frac{q_p}{\sum_j q_j} \Big)

    When losses rise on the whole, the sum is negative and the client that does worst gets most; :func:`eccr_weights` does
    not have this.

    Args:
        previous: every client's mean loss on its own labels one epoch ago, above zero.
        current: the same now.
        strength: :math:`\beta`.

    Returns:
        One weight for each client; they sum to one over all clients. Equal where nobody's loss changed.

    Raises:
        ValueError: if there are fewer than two clients, their numbers differ, or a loss is not positive and finite.

    Example:
        >>> [round(weight, 4) for weight in ccr_weights([1, 1, 1], [0.5, 0.8, 1.0])]
        [0.4147, 0.3072, 0.278]
    """
    base = equal_weights(len(current))
    qualities = _relative_gains(previous, current)
    total = sum(qualities)
    if total == 0:
        return [1 / len(current)] * len(current)
    scores = [share + strength * quality / total for share, quality in zip(base, qualities, strict=True)]
    return [float(weight) for weight in torch.tensor(scores, dtype=torch.float64).softmax(dim=0)]


def eccr_weights(
    previous: Sequence[float], current: Sequence[float], changes: Sequence[float], strength: float = 1.2
) -> list[float]:
    r"""Enhanced client confidence re-weighting (RHFL+).

    .. math::
        q_p = \frac{L_p^{t-1} - L_p^t}{L_p^t (1 + \Delta_p)}, \qquad
        w_p \propto \max\Big(0, \frac{1}{P-1} + \beta \frac{q_p}{\sum_j |q_j|}\Big)

    The code has no maximum: a client that does badly can get a negative weight there, and pushes the others away.

    Args:
        previous: every client's mean loss on its own labels one epoch ago, above zero.
        current: the same now.
        changes: :math:`\Delta_p`, see :func:`parameter_change`; at least zero.
        strength: :math:`\beta`.

    Returns:
        One weight for each client; they sum to one over all clients. Equal where nobody's loss changed.

    Raises:
        ValueError: if there are fewer than two clients, their numbers differ, a loss is not positive and finite, or a
            change is negative.

    Example:
        >>> [round(weight, 4) for weight in eccr_weights([1, 1, 1], [0.5, 0.8, 1.0], [0, 0, 0])]
        [0.5407, 0.2741, 0.1852]
    """
    base = equal_weights(len(current))
    if len(changes) != len(current) or not all(0 <= change < math.inf for change in changes):
        raise ValueError(f"expected {len(current)} changes, not negative and finite, got {list(changes)}")
    gains = _relative_gains(previous, current)
    qualities = [gain / (1 + change) for gain, change in zip(gains, changes, strict=True)]
    total = sum(map(abs, qualities))
    if total == 0:
        return [1 / len(current)] * len(current)
    scores = [max(0.0, share + strength * quality / total) for share, quality in zip(base, qualities, strict=True)]
    # Many clients may all be at zero, as their 1/(P-1) is small.
    return [score / sum(scores) for score in scores] if any(scores) else [1 / len(current)] * len(current)


def parameter_change(after: Sequence[Tensor], before: Sequence[Tensor]) -> float:
    r"""How far a model has moved: the mean over its parameter tensors of the norm of their change.

    .. math:: \Delta = \frac{1}{K} \sum_{k=1}^{K} \lVert \theta_k - \theta_k^0 \rVert_2

    Raises:
        ValueError: if there is no tensor, or their numbers differ.

    Example:
        >>> parameter_change([torch.tensor([3.0, 4.0]), torch.ones(1)], [torch.zeros(2), torch.zeros(1)])  # (5 + 1) / 2
        3.0
    """
    if not after:
        raise ValueError("a model needs at least one parameter tensor, got none")
    norms = [torch.linalg.vector_norm(now - then) for now, then in zip(after, before, strict=True)]
    return float(torch.stack(norms).mean())


def _relative_gains(previous: Sequence[float], current: Sequence[float]) -> list[float]:
    if len(previous) != len(current):
        raise ValueError(f"expected two losses of each client, got {len(previous)} and {len(current)}")
    for loss in (*previous, *current):
        if not 0 < loss < math.inf:
            raise ValueError(f"losses must be positive and finite, got {loss}")
    return [(before - now) / now for before, now in zip(previous, current, strict=True)]
