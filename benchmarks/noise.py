"""The noise with which a benchmark reaches an epsilon."""

from __future__ import annotations

import math

import dp_accounting  # type: ignore[import-untyped]
from scipy.optimize import brentq

from grandrounds.privacy.accounting import composed_epsilon, renyi_epsilon
from grandrounds.protocol.spending import GaussianSteps, require_delta

TOLERANCE = 5e-4


def min_noise_multiplier(epsilon: float, delta: float, steps: int = 1, sampling_rate: float = 1.0) -> float:
    """The minimum noise multiplier with which a number of steps (or releases) stay within ``epsilon``.

    With sampling, where ``sampling_rate`` is the probability that a record is in a step's batch, it is at most 0.1 % too
    large; without it is exact.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> round(min_noise_multiplier(5.77, 1e-4, steps=50), 2)
        5.0
    """
    require_delta(delta)
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be a positive number, got {epsilon}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    high = float(dp_accounting.get_sigma_gaussian(epsilon, delta)) * math.sqrt(steps)
    if sampling_rate == 1:
        return high

    def spent(multiplier: float) -> float:
        return composed_epsilon([GaussianSteps(multiplier, sampling_rate, steps)], delta)

    # Rényi's bound is cheap and an upper bound, so it narrows the range from above.
    while renyi_epsilon([GaussianSteps(high / 2, sampling_rate, steps)], delta) <= epsilon:
        high /= 2
    low = high / 2
    while spent(low) <= epsilon:
        low, high = low / 2, low
    root = brentq(lambda multiplier: spent(multiplier) - epsilon, low, high, rtol=TOLERANCE, xtol=TOLERANCE * low)
    return min(high, float(root) * (1 + TOLERANCE))
