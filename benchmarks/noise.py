"""The noise with which a benchmark reaches an epsilon."""

from __future__ import annotations

import math

import dp_accounting  # type: ignore[import-untyped]

from grandrounds.privacy.accounting import composed_epsilon, renyi_epsilon
from grandrounds.protocol.spending import GaussianSteps, require_delta

HALVINGS = 12


def min_noise_multiplier(epsilon: float, delta: float, steps: int = 1, sampling_rate: float = 1.0) -> float:
    """The minimum noise multiplier with which a number of steps (or releases) stay within ``epsilon``.

    Args:
        epsilon: the maximum, positive.
        delta: above 0 and below 1.
        steps: their number, at least 1.
        sampling_rate: probability that a record is in a step's batch.

    Returns:
        The noise multiplier; at most 0.1 % too large with sampling, exact without.

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
    low, high = 0.0, float(dp_accounting.get_sigma_gaussian(epsilon, delta)) * math.sqrt(steps)
    if sampling_rate == 1:
        return high
    for _ in range(HALVINGS):  # sampling only helps; the cheap bound narrows the range from above
        middle = (low + high) / 2
        too_much = renyi_epsilon([GaussianSteps(middle, sampling_rate, steps)], delta) > epsilon
        low, high = (middle, high) if too_much else (low, middle)
    low = high / 2
    while composed_epsilon([GaussianSteps(low, sampling_rate, steps)], delta) <= epsilon:  # the bound was loose
        low, high = low / 2, low
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        too_much = composed_epsilon([GaussianSteps(middle, sampling_rate, steps)], delta) > epsilon
        low, high = (middle, high) if too_much else (low, middle)
    return high
