"""One attempt at one sum: what a site answers in each phase, and how the server opens the sum.

Bonawitz et al., CCS 2017, figure 4, with the signed list of contributors that protects against an active server. An attempt
lives in memory only: if the site's process ends, so does it, and the next attempt has another nonce.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

from grandrounds.errors import MessageError
from grandrounds.privacy.secure_sums.masks import MASK_SEED_BYTES, masked, pair_seed, shared_secret, unmasked
from grandrounds.privacy.secure_sums.numbers import Words, add
from grandrounds.privacy.secure_sums.roster import ATTEMPT_NONCE_BYTES, Partners, Roster, RunKeys
from grandrounds.privacy.secure_sums.shares import opened, reconstructed, sealed, split, threshold


class Notes(Protocol):
    """Where a site notes what must happen once; a note is on disk before the answer leaves."""

    def once(self, what: str, value: str) -> None:
        """Note a value.

        Raises:
            MessageError: if there is a note of this already.
        """
        ...

    def same(self, what: str, value: str) -> None:
        """Note a value, or find the same one noted.

        Raises:
            MessageError: if another value is noted.
        """
        ...


@dataclass(frozen=True)
class Rules:
    """What a hospital's policy says about sums.

    Attributes:
        minimum_sites: of the contributors, at least 3.
        colluding: c, hospitals that may work together with the server.
    """

    minimum_sites: int = 3
    colluding: int = 1

    def needed(self, sites: int) -> int:
        """t, of a roster of this many sites.

        Raises:
            ConfigurationError: if there are too few.
        """
        return threshold(sites, self.colluding)

    def contributors(self, sites: int) -> int:
        """How many contributors a sum has at least."""
        return max(self.needed(sites), self.minimum_sites, 3)


@dataclass(frozen=True)
class Unmasking:
    """What a site tells the server when the contributors are settled.

    Attributes:
        shares: of each contributor's own seed.
        seeds: that the site shares with each site of the roster that did not contribute.
    """

    shares: Mapping[str, bytes]
    seeds: Mapping[str, bytes]


class SiteAttempt:
    """A site's part in one attempt. Each phase is answered once, in order.

    Args:
        site: the own name.
        run: the run's identifier.
        job: the digest of the signed job.
        quantity: what is added.
        keys: the site's keys of the run.
        partners: whom this hospital accepts.
        rules: what its policy says.
        notes: where it notes what must happen once.
        random_bytes: the operating system's.
    """

    def __init__(
        self,
        site: str,
        run: str,
        job: str,
        quantity: str,
        keys: RunKeys,
        partners: Partners,
        rules: Rules,
        notes: Notes,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._site, self._run, self._job, self._quantity = site, run, job, quantity
        self._keys, self._partners, self._rules, self._notes = keys, partners, rules, notes
        self._random_bytes = random_bytes
        self.nonce = random_bytes(ATTEMPT_NONCE_BYTES)
        self._phase = 0
        notes.once(f"nonce {self.nonce.hex()}", quantity)

    def _next(self, phase: int) -> None:
        if self._phase != phase:
            raise MessageError(f"{self._site} answers each phase of a sum once and in order; phase {phase} is not next")
        self._phase += 1

    def shares(self, roster: Roster) -> dict[str, bytes]:
        """Phase A: a sealed share of the own seed for each partner.

        Args:
            roster: of the attempt.

        Raises:
            MessageError: if the roster is not of this attempt, or has a site that this hospital does not accept.
        """
        self._next(0)
        own = roster.joins.get(self._site)
        if roster.quantity != self._quantity or roster.nonces.get(self._site) != self.nonce:
            raise MessageError(f"the roster is not of this attempt at {self._quantity}")
        if own is None or (own.channel, own.masks, own.signing) != self._keys.public:
            raise MessageError(f"the roster has other keys of {self._site} than its own")
        roster.require(self._partners, self._run, self._job)
        self._roster = roster
        self._seed = self._random_bytes(MASK_SEED_BYTES)
        needed = self._rules.needed(len(roster.sites))
        shares = dict(zip(roster.sites, split(self._seed, needed, len(roster.sites), self._random_bytes), strict=True))
        self._shares = {self._site: shares.pop(self._site)}
        return {
            name: sealed(share, self._secret(name), roster.digest, self._site, name) for name, share in shares.items()
        }

    def _secret(self, partner: str) -> bytes:
        return shared_secret(self._keys.channel, self._roster.joins[partner].channel, partner)

    def _pair_seed(self, partner: str) -> bytes:
        public = self._roster.joins[partner].masks
        return pair_seed(self._keys.masks, public, self._roster.digest, self._site, partner)

    def _partner_names(self) -> list[str]:
        return [name for name in self._roster.sites if name != self._site]

    def masked(self, words: Mapping[str, Words], boxes: Mapping[str, bytes]) -> dict[str, Words]:
        """Phase B: the own words under masks.

        Args:
            words: of each tensor.
            boxes: the sealed share that each partner has made for this site.

        Raises:
            MessageError: if a partner's share is missing or was changed.
        """
        self._next(1)
        if boxes.keys() != set(self._partner_names()):
            raise MessageError(f"shares are of {sorted(boxes)}, expected {self._partner_names()}")
        digest = self._roster.digest
        for name, box in boxes.items():
            self._shares[name] = opened(box, self._secret(name), digest, name, self._site)
        return masked(words, self._seed, {name: self._pair_seed(name) for name in boxes}, self._site)

    def consent(self, names: Collection[str]) -> bytes:
        """Phase C: sign, once, who is in the sum.

        Args:
            names: of the contributors.

        Raises:
            MessageError: if they are too few, not of the roster, or without this site, or if this site has agreed to others
                for this quantity.
        """
        self._next(2)
        chosen, least = sorted(set(names)), self._rules.contributors(len(self._roster.sites))
        if len(chosen) != len(names) or not set(chosen) <= set(self._roster.sites) or self._site not in chosen:
            raise MessageError(
                f"the contributors must be sites of the roster, {self._site} among them: {sorted(names)}"
            )
        if len(chosen) < least:
            raise MessageError(f"{len(chosen)} contributors are fewer than {least}: their sum is not opened")
        # Of two sums of one quantity over other sites the difference would be seen.
        self._notes.same(f"contributors of {self._quantity} in {self._run}", ", ".join(chosen))
        self._notes.once(f"contributors {self._roster.digest.hex()}", ", ".join(chosen))
        self._contributors = chosen
        return self._keys.signing.sign(self._roster.contributors(chosen))

    def unmasking(self, signatures: Mapping[str, bytes]) -> Unmasking:
        """Phase D: a share of each contributor's own seed, and the seed shared with each site that is not in.

        Args:
            signatures: of sites of the roster, of the same contributors.

        Raises:
            MessageError: if fewer than t sites have signed what this site has signed.
        """
        self._next(3)
        roster, chosen = self._roster, self._contributors
        needed = self._rules.needed(len(roster.sites))
        valid = [name for name, signature in signatures.items() if roster.signed(name, chosen, signature)]
        if len(valid) < needed:
            raise MessageError(
                f"{len(valid)} sites have signed these contributors, {needed} must: the sum is not opened"
            )
        lost = set(roster.sites) - set(chosen)
        return Unmasking({name: self._shares[name] for name in chosen}, {name: self._pair_seed(name) for name in lost})


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
