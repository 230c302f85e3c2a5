"""What all releases together amount to: one (epsilon, delta), by privacy loss distributions.

Numbers are dp-accounting's (Doroshenko et al., "Connect the Dots: Tighter Discrete Approximations of Privacy Loss
Distributions", PoPETs 2022): tight, and never below the truth. Releases on all records are combined exactly first.
Epsilons are not added up: that would be far too much; the mechanisms are composed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from grandrounds.privacy.accounting.conversions import (
    combined_multiplier,
    gaussian_epsilon,
    gaussian_noise_multiplier,
    require_delta,
)
from grandrounds.privacy.accounting.renyi import renyi_epsilon
from grandrounds.protocol.spending import GaussianSteps, Spending, Unit, counted

RELATIVE_INTERVAL = 1e-4
MIN_INTERVAL = 1e-6
HALVINGS = 12
TARGET_TOLERANCE = 1e-6


def composed_epsilon(history: Sequence[GaussianSteps], delta: float) -> float:
    """The epsilon of all steps together; neighbours differ by one record (or unit) more or less.

    Args:
        history: Gaussian mechanisms of any noise and sampling rate, in any order; may be empty.
        delta: above 0 and below 1.

    Returns:
        At least 0, finite.

    Raises:
        ValueError: if ``delta`` is outside its range.

    Example:
        >>> composed_epsilon([], delta=1e-5)
        0.0
        >>> round(composed_epsilon([GaussianSteps(1.0, 1 / 120, 600), GaussianSteps(20.0)], delta=1e-4), 2)
        0.97
    """
    require_delta(delta)
    sampled = [step for step in history if step.sampling_rate < 1]
    complete = [step for step in history if step.sampling_rate == 1]
    if sampled:
        return _by_loss_distributions(tuple(sampled), tuple(complete), delta)
    return gaussian_epsilon(combined_multiplier(complete), delta) if complete else 0.0


def spent_epsilon(spendings: Sequence[Spending], delta: float, unit: Unit) -> float:
    """The epsilon of releases of any mechanism for one unit of protection.

    Args:
        spendings: what was released, in any order.
        delta: above 0 and below 1.
        unit: whom the guarantee is for.

    Returns:
        At least 0; infinite as soon as one release gives no guarantee for this unit. What was released outside the
        budget is not in it.

    Raises:
        ValueError: if ``delta`` is outside its range.

    Example:
        >>> from grandrounds.protocol.spending import Mechanism, no_guarantee
        >>> update = Spending(Mechanism.GAUSSIAN, Unit.SITE, sensitivity=2.0, sigma=32.0)
        >>> round(spent_epsilon([update] * 80, 1e-5, Unit.SITE), 2), spent_epsilon([update, no_guarantee()], 1e-5, Unit.SITE)
        (2.26, inf)
    """
    require_delta(delta)
    relevant = counted(spendings)
    steps = [step for step in (spending.towards(unit) for spending in relevant) if step is not None]
    return composed_epsilon(steps, delta) if len(steps) == len(relevant) else math.inf


def exceeds(epsilon: float, target: float) -> bool:
    """Whether ``epsilon`` is above ``target`` by more than the rounding of a noise that was chosen to reach it.

    Example:
        >>> exceeds(2.0000001, 2.0), exceeds(2.001, 2.0)
        (False, True)
    """
    return not epsilon <= target * (1 + TARGET_TOLERANCE)


def min_noise_multiplier(epsilon: float, delta: float, steps: int, sampling_rate: float = 1.0) -> float:
    """The least noise, over the sensitivity, with which so many steps stay within ``epsilon``.

    Args:
        epsilon: what may be spent, positive.
        delta: above 0 and below 1.
        steps: how many, at least 1.
        sampling_rate: probability with which a record takes part in a step.

    Returns:
        The noise multiplier; at most 0.1 % too large with sampling, exact without.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> round(min_noise_multiplier(5.77, 1e-4, steps=50), 2)
        5.0
    """
    if sampling_rate == 1:
        return gaussian_noise_multiplier(epsilon, delta, steps)
    low, high = 0.0, gaussian_noise_multiplier(epsilon, delta, steps)  # sampling only helps
    for _ in range(HALVINGS):  # the cheap bound narrows the range from above
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


@lru_cache(maxsize=64)  # the same releases are asked about before training, at the door and when they are booked
def _by_loss_distributions(
    sampled: tuple[GaussianSteps, ...], complete: tuple[GaussianSteps, ...], delta: float
) -> float:
    """Losses are rounded up to a grid in proportion to the epsilon: a fixed one is too coarse or needs gigabytes."""
    bound = renyi_epsilon([*sampled, *complete], delta)
    epsilon = _on_grid(sampled, complete, delta, bound)
    while epsilon < bound / 2:  # the bound was loose, and the grid too coarse
        bound = epsilon
        epsilon = _on_grid(sampled, complete, delta, bound)
    return epsilon


def _on_grid(
    sampled: Sequence[GaussianSteps], complete: Sequence[GaussianSteps], delta: float, expected: float
) -> float:
    import dp_accounting  # type: ignore[import-untyped]
    from dp_accounting import pld

    interval = max(MIN_INTERVAL, RELATIVE_INTERVAL * expected)
    accountant = pld.PLDAccountant(value_discretization_interval=interval)
    counts: Counter[tuple[float, float]] = Counter()
    for step in sampled:
        counts[step.sampling_rate, step.noise_multiplier] += step.steps
    for (rate, multiplier), count in sorted(counts.items()):
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier)), count)
    if complete:
        accountant.compose(dp_accounting.GaussianDpEvent(combined_multiplier(complete)))
    return float(accountant.get_epsilon(delta))
