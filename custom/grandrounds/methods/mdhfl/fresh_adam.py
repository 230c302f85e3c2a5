r"""The first step of Adam, over and over: what RHFL's alignment does.

RHFL's code (Fang & Ye, CVPR 2022) makes a new optimiser for every public batch. The first step of Adam (Kingma & Ba, ICLR
2015), whose averages are then the gradient and its square, is :math:`-\eta \, g / (|g| + \epsilon)`: descent by the sign of
the gradient, whatever its scale. So the weights of the clients matter in RHFL by their proportions only.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from grandrounds.checks import require_at_least


@torch.no_grad()
def fresh_adam_step(parameters: Iterable[Tensor], learning_rate: float = 1e-3, epsilon: float = 1e-8) -> None:
    r"""Move parameters as a new Adam would in its first step, in place and without its state.

    .. math:: \theta \leftarrow \theta - \eta \frac{g}{|g| + \epsilon}

    Args:
        parameters: with their gradients; those without (frozen, or no part of the loss) stay.
        learning_rate: :math:`\eta`, at least zero.
        epsilon: :math:`\epsilon`, above zero; where the gradient is zero nothing moves.

    Raises:
        ValueError: if an option is out of range.
    """
    require_at_least(learning_rate, 0, "learning_rate")
    if not epsilon > 0:
        raise ValueError(f"epsilon must be positive, got {epsilon}")
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.addcdiv_(parameter.grad, parameter.grad.abs() + epsilon, value=-learning_rate)
