"""Counts of predictions in an encrypted sum: what a site adds, and what sites may release of the sum.

With a test a site sends its counts encrypted. The server adds them up and sends the sum back; each of its sites decrypts it
and releases it without what is of fewer cases than the largest minimum of these sites. The minimums travel in the sum, as
the number of sites that have each, so that the server cannot change them. The table must be the same from all sites.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grandrounds.checks import told_as
from grandrounds.errors import MessageError
from grandrounds.evaluation.counts import IMAGES, PATIENTS, SiteCounts, check_counts, suppress_counts
from grandrounds.privacy.mechanisms.encrypted_sums import MIN_SITES, Shapes, SumOf, decrypt_sum, encrypt_tensors

LARGEST_MINIMUM = 1000
"""Of cases behind a count; a site that asks for more keeps its counts."""
MINIMUMS = "minimums"
COUNT_TOLERANCE = 1e-6


def count_shapes(shape: Sequence[int]) -> Shapes:
    """The tensors of a contribution whose counts have a shape."""
    return {IMAGES: shape, PATIENTS: shape, MINIMUMS: (LARGEST_MINIMUM + 1,)}


def encrypt_counts(counts: SiteCounts, minimum: int, site: str, key: bytes, use: SumOf) -> Tensor:
    """A site's contribution to the sum.

    Args:
        counts: of its predictions, not suppressed.
        minimum: smallest number of cases that the site lets be shown of all sites together, at most ``LARGEST_MINIMUM``.
        site: its name, which is readable.
        key: the secret key.
        use: the sum.
    """
    minimums = torch.zeros(LARGEST_MINIMUM + 1, dtype=torch.float64)
    minimums[minimum] = 1
    images, patients = torch.from_numpy(counts.images), torch.from_numpy(counts.patients)
    return encrypt_tensors({IMAGES: images, PATIENTS: patients, MINIMUMS: minimums}, site, key, use)


def decrypt_counts(
    packed: Tensor, site: str, key: bytes, shape: tuple[int, ...], use: SumOf, at_least: int = MIN_SITES
) -> SiteCounts:
    """The counts of all sites together, without those of fewer cases than the largest of their minimums.

    Args:
        packed: the sum, as the server sends it.
        site: which decrypts it, and must be in it.
        key: the secret key.
        shape: of the counts.
        use: what the sum must be of.
        at_least: how many sites it must be of.

    Raises:
        MessageError: if the sum is not that of its sites' contributions, is of too few, without this one, or not of counts,
            or if some of its sites hide small counts and others show their own.
    """
    name = "the sum of the encrypted counts"
    total, roster = decrypt_sum(packed, key, count_shapes(shape), use, at_least)
    if site not in roster:
        raise MessageError(f"{name} is of {', '.join(roster)}; {site} must be among them")
    whole = {part: values.round() for part, values in total.items()}
    exact = all(bool(((whole[part] - values).abs() < COUNT_TOLERANCE).all()) for part, values in total.items())
    if not exact or (whole[MINIMUMS] < 0).any() or int(whole[MINIMUMS].sum()) != len(roster):
        raise MessageError(f"{name} is not one of counts")
    images, patients = (whole[part].long().numpy() for part in (IMAGES, PATIENTS))
    with told_as(MessageError, ValueError, where=name):
        counts = check_counts(images, patients, shape)
    minimums = whole[MINIMUMS].nonzero().flatten()
    if minimums.min() <= 1 < minimums.max():
        raise MessageError(
            f"{name} is of sites that show their own counts and of others that hide small ones; their difference shows these"
        )
    return suppress_counts(counts, int(minimums.max()))
