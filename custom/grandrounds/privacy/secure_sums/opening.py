"""What a server does about a sum: it adds what the contributors sent, and takes away the masks. No site needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

import torch
from torch import Tensor

from grandrounds.errors import MessageError
from grandrounds.privacy.secure_sums.attempt import Unmasking
from grandrounds.privacy.secure_sums.masks import MASK_SEED_BYTES, stream, with_pair_masks
from grandrounds.privacy.secure_sums.numbers import Words, add, subtract
from grandrounds.privacy.secure_sums.roster import Roster
from grandrounds.privacy.secure_sums.shares import PRIME, SHARE_BYTES
from grandrounds.privacy.secure_sums.summands import SUMMANDS, WEIGHT, SumTerms, weight_encoding
from grandrounds.protocol.messages import ReleaseKind, State


def open_sum(
    roster: Roster, needed: int, inputs: Mapping[str, Mapping[str, Words]], answers: Mapping[str, Unmasking]
) -> dict[str, Words]:
    """The server's part: add what the contributors sent and take away the masks.

    Args:
        roster: of the attempt.
        needed: t.
        inputs: what each contributor sent in phase B.
        answers: of sites in phase D; of t contributors if all sites of the roster contributed, else of all contributors.

    Returns:
        The words of the sum.

    Raises:
        MessageError: if answers are missing or do not fit: the sum is lost.
    """
    lost = [name for name in roster.sites if name not in inputs]
    if lost and (silent := inputs.keys() - answers.keys()):
        raise MessageError(
            f"{', '.join(lost)} did not contribute and {', '.join(sorted(silent))} did not answer: the sum is lost"
        )
    if not answers.keys() <= inputs.keys():
        raise MessageError(f"answers of sites that are not in the sum: {sorted(answers.keys() - inputs.keys())}")
    for name, answer in answers.items():
        if answer.shares.keys() != inputs.keys() or answer.seeds.keys() != set(lost):
            raise MessageError(f"the answer of {name} is about other contributors")
    position = {name: at for at, name in enumerate(roster.sites, 1)}
    own = [
        reconstructed({position[name]: answer.shares[site] for name, answer in answers.items()}, needed)
        for site in sorted(inputs)
    ]
    total = reduce(add, (inputs[site] for site in sorted(inputs)))
    return unmasked(total, own, {site: {name: answer.seeds[site] for name, answer in answers.items()} for site in lost})


def unmasked(
    total: Mapping[str, Words], own_seeds: Iterable[bytes], lost: Mapping[str, Mapping[str, bytes]]
) -> dict[str, Words]:
    """Take away from the sum of masked words what does not cancel.

    Args:
        total: the sum of what the contributors sent.
        own_seeds: b_v of each contributor.
        lost: for each site that did not contribute, the seeds that it shares with each contributor.

    Raises:
        MessageError: if a seed is unusable.
    """
    result = dict(total)
    for seed in own_seeds:
        result = subtract(result, stream(seed, result))
    for site, seeds in lost.items():  # its masks have the opposite sign of those that its partners added
        result = with_pair_masks(result, seeds, site)
    return result


def reconstructed(shares: Mapping[int, bytes], needed: int) -> bytes:
    """Open a secret (Lagrange's interpolation at 0), and check that shares beyond those needed agree.

    Args:
        shares: the share at each position, from 1.
        needed: t.

    Returns:
        32 bytes.

    Raises:
        MessageError: if there are too few shares, one is malformed, or they are not of one secret.
    """
    if len(shares) < needed:
        raise MessageError(f"{len(shares)} shares are fewer than the {needed} that are needed")
    points = {at: _element(share) for at, share in sorted(shares.items())}
    chosen = dict(list(points.items())[:needed])
    if any(_interpolated(chosen, at) != value for at, value in points.items()):
        raise MessageError("the shares are not of one secret: a site sent a wrong one")
    secret = _interpolated(chosen, 0)
    if secret >> (8 * MASK_SEED_BYTES):
        raise MessageError("the shares are not of one secret: a site sent a wrong one")
    return secret.to_bytes(MASK_SEED_BYTES, "little")


def _element(share: bytes) -> int:
    value = int.from_bytes(share, "little")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise MessageError(f"a share must be {SHARE_BYTES} bytes of the field")
    return value


def _interpolated(points: Mapping[int, int], at: int) -> int:
    total = 0
    for own, value in points.items():
        top = bottom = 1
        for other in points.keys() - {own}:
            top, bottom = top * (at - other) % PRIME, bottom * (own - other) % PRIME
        total = (total + value * top * pow(bottom, -1, PRIME)) % PRIME
    return total


def opened_numbers(
    words: Mapping[str, Words], kinds: Mapping[str, ReleaseKind], contributors: int, terms: SumTerms
) -> tuple[dict[str, dict[str, Tensor]], float]:
    """Read the words of a sum.

    Args:
        words: by ``release/tensor``.
        kinds: of each release.
        contributors: how many sites are in it.
        terms: of the sum.

    Returns:
        Sums in double precision by release and tensor, and the sum of weights.

    Raises:
        MessageError: if a sum is beyond what its contributors can add up to.
    """
    sums: dict[str, dict[str, Tensor]] = {name: {} for name in kinds}
    weight = float(contributors)
    for key, value in words.items():
        if key == WEIGHT:
            weight = float(weight_encoding(terms).decode(value, contributors)[0])
            continue
        release, _, name = key.partition("/")
        encoding = SUMMANDS[kinds[release]].encoding(name, terms)
        sums[release][name] = torch.from_numpy(encoding.decode(value, contributors))
    return sums, weight


def tensors_to_words(tensors: State) -> dict[str, Words]:
    """The words in tensors.

    Raises:
        MessageError: if one is of another type.
    """
    words: dict[str, Words] = {}
    for name, value in tensors.items():
        if value.dtype not in (torch.int32, torch.int64):
            raise MessageError(f"{name} of a sum is of {value.dtype}")
        array = value.detach().cpu().contiguous().numpy()
        words[name] = array.view(f"<u{array.itemsize}")
    return words
