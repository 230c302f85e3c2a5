"""When unlabelled sites begin to train, how much their loss weighs, and the labelled sites' step size.

Liu et al. (FedIRM), MICCAI 2021, section 3.1, and the authors' code. The weight follows the mean teacher (Tarvainen &
Valpola, NeurIPS 2017), whose exponent is squared; FedIRM prints it without the square and without an end. Rounds are
counted here as the paper counts them: by how many came before, so the first is round 0.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

from grandrounds.checks import require_at_least

RampKind = Literal["squared", "printed"]


def ramp_up(elapsed: float, length: float = 30.0, kind: RampKind = "squared") -> float:
    r"""The weight of the unlabelled loss in a round.

    .. math:: \lambda = \exp\big(-5 (1 - \min(\omega, \Omega) / \Omega)^2\big)

    Args:
        elapsed: :math:`\omega`, rounds before this one (with several local epochs: epochs), at least zero.
        length: :math:`\Omega`, when the weight is full, at least zero; with 0 it is full from the start.
        kind: ``squared`` as above (authors' code), or ``printed``, without the square. Both stay at one after
            :math:`\Omega`: as printed the weight would be 148 in round 60.

    Returns:
        In (0, 1].

    Raises:
        ValueError: if an argument is negative or the kind unknown.

    Example:
        >>> [round(ramp_up(elapsed), 4) for elapsed in (0, 10, 20, 30, 60)]
        [0.0067, 0.1084, 0.5738, 1.0, 1.0]
    """
    require_at_least(elapsed, 0, "elapsed")
    require_at_least(length, 0, "length")
    if kind not in get_args(RampKind):
        raise ValueError(f"kind must be squared or printed, got {kind!r}")
    if elapsed >= length:
        return 1.0
    missing = 1 - elapsed / length
    return math.exp(-5 * (missing**2 if kind == "squared" else missing))


def unlabelled_sites_train(elapsed: int, start: int = 21) -> bool:
    """Tell whether sites without labels train in a round: a model that knows nothing yet cannot label their images.

    Args:
        elapsed: rounds before this one, at least zero.
        start: their first round; 21 in the code, 0 in the text.

    Raises:
        ValueError: if an argument is negative.

    Example:
        >>> unlabelled_sites_train(20), unlabelled_sites_train(21)
        (False, True)
    """
    require_at_least(elapsed, 0, "elapsed")
    require_at_least(start, 0, "start")
    return elapsed >= start


def labelled_learning_rate(elapsed: int, first: float = 2e-4, later: float = 3e-4, change: int = 21) -> float:
    """The learning rate of labelled sites in a round: the code raises it when the unlabelled sites join.

    Args:
        elapsed: rounds before this one, at least zero.
        first: before the change, above zero.
        later: from then on, above zero; equal to ``first`` for a constant rate.
        change: the first round with the later rate.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> labelled_learning_rate(20), labelled_learning_rate(21)
        (0.0002, 0.0003)
    """
    require_at_least(elapsed, 0, "elapsed")
    require_at_least(change, 0, "change")
    for name, rate in (("first", first), ("later", later)):
        if not rate > 0:
            raise ValueError(f"{name} must be positive, got {rate}")
    return first if elapsed < change else later
