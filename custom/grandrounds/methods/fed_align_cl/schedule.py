"""Iterations, epochs and communications, and from when on alignment and curriculum take part.

Jiménez-Sánchez et al., 2021, Algorithm 1. All hospitals make the same number of iterations in an epoch, each with a
batch of its own size. Epochs, iterations and rounds count from 1.
"""

from __future__ import annotations

from typing import NamedTuple

from grandrounds.checks import require_at_least
from grandrounds.errors import DataError

ITERATIONS = 120
PACE = 40
WARM_UP = 5


class Stretch(NamedTuple):
    """The iterations between two communications.

    Attributes:
        epoch: which.
        first: its first iteration in that epoch.
        last: its last, after which the hospitals communicate.
        closes: whether it is the epoch's last.
    """

    epoch: int
    first: int
    last: int
    closes: bool


def site_batch_size(images: int, iterations: int = ITERATIONS, least: int = 2, site: str = "the site") -> int:
    r"""The batch size of a hospital: :math:`B_n = \lfloor m_n / Q \rfloor`.

    Args:
        images: :math:`m_n`, its training images. :math:`m_n - Q B_n` of them are not visited in an epoch.
        iterations: :math:`Q`, of an epoch.
        least: the smallest batch: 2 with batch norm, which cannot train on one sample, else 1.
        site: how the error calls the hospital.

    Raises:
        DataError: if there are too few images for that many iterations.
        ValueError: if ``iterations`` or ``least`` is below one.

    Example:
        >>> [site_batch_size(images) for images in (1022, 287, 596)]
        [8, 2, 4]
    """
    require_at_least(iterations, 1, "iterations")
    require_at_least(least, 1, "least")
    size = images // iterations
    if images < least:
        raise DataError(f"{site} has {images} training images and needs {least} for a batch; leave it out of the job")
    if size < least:
        raise DataError(
            f"{site} has {images} training images, which make no batch of {least} for each of {iterations} iterations; "
            f"set iterations to at most {images // least}"
        )
    return size


def communications(iterations: int = ITERATIONS, pace: int = PACE) -> tuple[int, ...]:
    r"""The iterations of an epoch after which the hospitals communicate: every :math:`\tau`, and the last.

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


def stretch_of_round(round_number: int, iterations: int = ITERATIONS, pace: int = PACE) -> Stretch:
    """What a round of the federation is in an epoch: the hospitals communicate once in a round.

    Args:
        round_number: from 1.
        iterations: of an epoch.
        pace: iterations between two communications.

    Raises:
        ValueError: if an argument is below one.

    Example:
        >>> stretch_of_round(3, 120, 50), stretch_of_round(4, 120, 50).epoch
        (Stretch(epoch=1, first=101, last=120, closes=True), 2)
    """
    require_at_least(round_number, 1, "round_number")
    ends = communications(iterations, pace)
    epoch, index = divmod(round_number - 1, len(ends))
    first = ends[index - 1] + 1 if index else 1
    return Stretch(epoch + 1, first, ends[index], closes=index == len(ends) - 1)


def takes_part(epoch: int, warm_up: int = WARM_UP) -> bool:
    """Whether alignment and curriculum take part in an epoch: after the warm-up (the paper's e > 5).

    Args:
        epoch: from 1.
        warm_up: epochs of plain federated training.

    Raises:
        ValueError: if ``epoch`` is below one or ``warm_up`` negative.

    Example:
        >>> takes_part(5), takes_part(6)
        (False, True)
    """
    require_at_least(epoch, 1, "epoch")
    require_at_least(warm_up, 0, "warm_up")
    return epoch > warm_up


def scores_are_due(epoch: int, warm_up: int = WARM_UP) -> bool:
    """Whether the end of an epoch has to tell what was forgotten: only if the next epoch makes use of it.

    Example:
        >>> scores_are_due(4), scores_are_due(5)
        (False, True)
    """
    return takes_part(epoch + 1, warm_up)
