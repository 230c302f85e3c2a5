r"""The noise of Fed-Align-CL, as published and as released: obfuscation, without any guarantee.

Jiménez-Sánchez et al., "Memory-aware curriculum federated learning for breast cancer classification", 2021, add
:math:`N(0, s^2 \sigma^2)` to what sites send; the released code scales the noise by each tensor's own standard deviation.
Nothing is clipped. One record can move the result by any amount, so no finite epsilon holds. The functions exist for
comparison with the published results. They take a generator with a seed because nothing here is a secret.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from grandrounds.privacy.mechanisms.gaussian import State, floating_entries

VARIANCE = "running_var"


def absolute_noise(update: State, variance: float, generator: Generator) -> dict[str, Tensor]:
    r"""The paper's noise: the same standard deviation :math:`\sigma` on every entry; its sensitivity :math:`s` is one.

    Args:
        update: weights or differences by ``state_dict`` name.
        variance: :math:`\sigma^2`; the paper tries 0, 0.001, 0.01 and 0.1.
        generator: a CPU generator.

    Returns:
        New tensors of the same dtypes. Integer buffers and running variances are copies: with noise on it, a variance
        may be negative.

    Raises:
        ValueError: if ``variance`` is negative or not finite.

    Example:
        >>> state = {"w": torch.ones(3), "bn.running_var": torch.ones(1)}
        >>> absolute_noise(state, 0.0, torch.Generator())["w"]
        tensor([1., 1., 1.])
    """
    _require_scale(variance, "variance")
    return _noised(update, dict.fromkeys(_noisy(update), math.sqrt(variance)), generator)


def relative_noise(update: State, fraction: float, generator: Generator) -> dict[str, Tensor]:
    r"""The released code's noise: :math:`\kappa` times the standard deviation of each tensor's own values.

    The scale depends on the data, so it tells about them.

    Args:
        update: weights or differences by ``state_dict`` name.
        fraction: :math:`\kappa`; 0.001 in the code.
        generator: a CPU generator.

    Returns:
        New tensors of the same dtypes. Integer buffers, running variances, constant tensors and single values are copies.

    Raises:
        ValueError: if ``fraction`` is negative or not finite.

    Example:
        >>> relative_noise({"constant": torch.ones(3)}, 0.001, torch.Generator())
        {'constant': tensor([1., 1., 1.])}
    """
    _require_scale(fraction, "fraction")
    scales = {
        name: fraction * float(value.double().std()) for name, value in _noisy(update).items() if value.numel() > 1
    }
    return _noised(update, scales, generator)


def _noisy(update: State) -> dict[str, Tensor]:
    return {name: value for name, value in floating_entries(update).items() if name.rpartition(".")[2] != VARIANCE}


def _noised(update: State, scales: dict[str, float], generator: Generator) -> dict[str, Tensor]:
    noised = {}
    for name, value in update.items():
        plain = value.detach().cpu().clone()
        if scales.get(name, 0.0) > 0:
            noise = torch.randn(plain.shape, generator=generator, dtype=torch.float64)
            plain = (plain.double() + scales[name] * noise).to(plain.dtype)
        noised[name] = plain
    return noised


def _require_scale(value: float, name: str) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be at least 0 and finite, got {value}")
