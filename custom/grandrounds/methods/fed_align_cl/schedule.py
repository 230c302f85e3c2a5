"""Iterations, epochs and communications, and when alignment and curriculum start.

Jiménez-Sánchez et al., 2021, Algorithm 1. All sites make the same number of iterations in an epoch, each with a batch size
of its own. Epochs, iterations and rounds count from 1.
"""

from __future__ import annotations

from typing import NamedTuple

from grandrounds.checks import require_at_least
from grandrounds.errors import DataError


class LocalInterval(NamedTuple):
    """The iterations between two communications.

    Attributes:
        epoch: which.
        first: its first iteration in that epoch.
        last: its last, after which the sites communicate.
        ends_epoch: whether it is the epoch's last.
    """

    epoch: int
    first: int
    last: int
    ends_epoch: bool


def site_batch_size(images: int, iterations: int = 120, minimum: int = 2, site: str = "the site") -> int:
    r"""The batch size of a site: :math:`B_n = \lfloor m_n / Q \rfloor`.

    Args:
        images: :math:`m_n`, its training images. :math:`m_n - Q B_n` of them are not visited in an epoch.
        iterations: :math:`Q`, of an epoch.
        minimum: the smallest batch: 2 with batch norm, which cannot train on one sample, else 1.
        site: for errors.

    Raises:
        DataError: if there are too few images for that many iterations.
        ValueError: if ``iterations`` or ``minimum`` is below one.

    Example:
        >>> [site_batch_size(images) for images in (1022, 287, 596)]
        [8, 2, 4]
    """
    require_at_least(iterations, 1, "iterations")
    require_at_least(minimum, 1, "minimum")
    size = images // iterations
    if images < minimum:
        raise DataError(f"{site} has {images} training images and needs {minimum} for a batch; leave it out of the job")
    if size < minimum:
        raise DataError(
            f"{site} has {images} training images, which make no batch of {minimum} for each of {iterations} iterations; "
            f"set iterations to at most {images // minimum}"
        )
    return size


def communications(iterations: int = 120, pace: int = 40) -> tuple[int, ...]:
    r"""The iterations of an epoch after which the sites communicate: every :math:`\tau`, and the last.

    Args:
        iterations: :math:`Q`.
        pace: :math:`\tau`.

    Raises:
        ValueError: if an argument is below one.

    Example:
        >>> communications(120, 40), communications(120, 50)
        ((40, 80, 120), (50, 100, 120))
    """
    require_at_least(iterations, 1, "iterations")
    require_at_least(pace, 1, "pace")
    return tuple(min(start + pace, iterations) for start in range(0, iterations, pace))


def interval_of_round(round_number: int, iterations: int = 120, pace: int = 40) -> LocalInterval:
    """The iterations of a round: the sites communicate once in a round.

    Args:
        round_number: from 1.
        iterations: of an epoch.
        pace: iterations between two communications.

    Raises:
        ValueError: if an argument is below one.

    Example:
        >>> interval_of_round(3, 120, 50), interval_of_round(4, 120, 50).epoch
        (LocalInterval(epoch=1, first=101, last=120, ends_epoch=True), 2)
    """
    require_at_least(round_number, 1, "round_number")
    ends = communications(iterations, pace)
    epoch, index = divmod(round_number - 1, len(ends))
    first = ends[index - 1] + 1 if index else 1
    return LocalInterval(epoch + 1, first, ends[index], ends_epoch=index == len(ends) - 1)


def after_warm_up(epoch: int, warm_up: int = 5) -> bool:
    """Whether an epoch uses alignment and curriculum (the paper's e > 5).

    Args:
        epoch: from 1.
        warm_up: epochs of plain federated training.

    Raises:
        ValueError: if ``epoch`` is below one or ``warm_up`` negative.

    Example:
        >>> after_warm_up(5), after_warm_up(6)
        (False, True)
    """
    require_at_least(epoch, 1, "epoch")
    require_at_least(warm_up, 0, "warm_up")
    return epoch > warm_up
