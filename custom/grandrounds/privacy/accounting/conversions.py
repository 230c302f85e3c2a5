"""Between noise and (epsilon, delta), for Gaussian mechanisms on which everybody takes part: exact, no bound.

Balle & Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, theorem 8; that several Gaussian
mechanisms are one of smaller noise is from Dong, Roth & Su, "Gaussian Differential Privacy", JRSS B 2022, corollary 3.3.
The numbers are dp-accounting's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from grandrounds.protocol.spending import GaussianSteps


def require_delta(delta: float) -> None:
    """Raise ``ValueError`` unless ``delta`` is a probability strictly between 0 and 1."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must be above 0 and below 1, got {delta}; usual is less than 1 over the records")


def gaussian_epsilon(noise_multiplier: float, delta: float, releases: int = 1) -> float:
    r"""The epsilon of so many releases of equal noise.

    The smallest :math:`\varepsilon` with :math:`\Phi(\mu/2 - \varepsilon/\mu) - e^\varepsilon \Phi(-\mu/2 -
    \varepsilon/\mu) \le \delta`, where :math:`\mu = \sqrt k / z`.

    Args:
        noise_multiplier: :math:`z`, standard deviation of the noise over the sensitivity.
        delta: above 0 and below 1.
        releases: :math:`k`, at least 1.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> round(gaussian_epsilon(16.0, delta=1e-5, releases=80), 2)
        2.26
    """
    import dp_accounting  # type: ignore[import-untyped]

    require_delta(delta)
    steps = GaussianSteps(noise_multiplier, steps=releases)
    return float(dp_accounting.get_epsilon_gaussian(combined_multiplier([steps]), delta))


def gaussian_noise_multiplier(epsilon: float, delta: float, releases: int = 1) -> float:
    """The least noise, over the sensitivity, with which so many releases stay within ``epsilon``.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> round(gaussian_noise_multiplier(1.0, delta=1e-4, releases=150), 1)
        39.0
    """
    import dp_accounting

    require_delta(delta)
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be a positive number, got {epsilon}")
    if releases < 1:
        raise ValueError(f"releases must be at least 1, got {releases}")
    return float(dp_accounting.get_sigma_gaussian(epsilon, delta)) * math.sqrt(releases)


def combined_multiplier(history: Iterable[GaussianSteps]) -> float:
    r"""The noise multiplier of the one Gaussian mechanism that is as revealing as all of these together.

    .. math:: z = \left( \sum_i k_i / z_i^2 \right)^{-1/2}

    Args:
        history: at least one, all with sampling rate 1.

    Raises:
        ValueError: if there is none, or one is on a sample.

    Example:
        >>> round(combined_multiplier([GaussianSteps(3.0), GaussianSteps(4.0)]), 12)
        2.4
    """
    steps = list(history)
    if not steps or any(step.sampling_rate < 1 for step in steps):
        raise ValueError("only Gaussian mechanisms on all records combine into one, and there must be at least one")
    return 1.0 / math.hypot(*(math.sqrt(step.steps) / step.noise_multiplier for step in steps))
