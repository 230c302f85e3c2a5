"""One attempt at one sum: what a site answers in each phase, and how the server opens the sum.

Bonawitz et al., CCS 2017, figure 4, with the signed list of contributors that protects against an active server. An attempt
lives in memory only: if the site's process ends, so does it, and the next attempt has another nonce.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.privacy.secure_sums.masks import MASK_SEED_BYTES, framed, masked, pair_seed, shared_secret
from grandrounds.privacy.secure_sums.numbers import Words
from grandrounds.privacy.secure_sums.roster import ATTEMPT_NONCE_BYTES, Accepting, Roster, RunKeys
from grandrounds.privacy.secure_sums.shares import opened, sealed, split, threshold


def batch_note(dataset: str, number: int) -> str:
    """What a site notes of the hospitals, from number 1 on, that are in sums of a data set together or not at all."""
    return f"batch {number} of sums of {dataset}"


def renewed_batches(
    notes: Mapping[str, str], dataset: str, site: str, names: Collection[str]
) -> tuple[dict[str, str], list[str]]:
    """The notes by which the hospitals of a data set's sums are others from now on, and those that are in no sum any more.

    Raises:
        ConfigurationError: if there was no sum of the data set, the site is not among them, or nobody has left.
    """
    numbers = [number for number in range(1, len(notes) + 1) if notes.get(batch_note(dataset, number))]
    before = {name for number in numbers for name in notes[batch_note(dataset, number)].split(", ")}
    gone = sorted(before - set(names))
    if not gone or not {site} <= set(names) <= before:
        raise ConfigurationError(
            f"sums of {dataset} are over {', '.join(sorted(before)) or 'nobody yet'}: name all of these that have not left, "
            f"{site} among them"
        )
    return {
        **{batch_note(dataset, number): "" for number in numbers},
        batch_note(dataset, 1): ", ".join(sorted(names)),
    }, gone


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

    def known(self, what: str) -> str:
        """The noted value; empty if there is none."""
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

    @property
    def batch(self) -> int:
        """How many hospitals a later batch has at least: the difference of two sums is the sum of a batch."""
        return self.minimum_sites + self.colluding


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
        keys: RunKeys,
        partners: Accepting,
        rules: Rules,
        notes: Notes,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._site, self._run, self._job = site, run, job
        self._keys, self._partners, self._rules, self._notes = keys, partners, rules, notes
        self._random_bytes = random_bytes
        self.nonce = random_bytes(ATTEMPT_NONCE_BYTES)
        self._phase, self._roster_digest = 0, b""
        notes.once(f"nonce {self.nonce.hex()}", run)

    def is_of(self, roster: Roster) -> bool:
        """Whether it is about this roster, or could be."""
        return roster.nonces.get(self._site) == self.nonce and self._roster_digest in (b"", roster.digest)

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
        if roster.nonces.get(self._site) != self.nonce:
            raise MessageError(f"the roster is not of this attempt at {roster.quantity}")
        if own is None or (own.channel, own.masks, own.signing) != self._keys.public:
            raise MessageError(f"the roster has other keys of {self._site} than its own")
        roster.require(self._partners, self._run, self._job)
        self._roster, self._roster_digest = roster, roster.digest
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
        context = framed(self._roster.digest, self._subject)
        return pair_seed(self._keys.masks, public, context, self._site, partner)

    def _partner_names(self) -> list[str]:
        return [name for name in self._roster.sites if name != self._site]

    def masked(
        self, words: Mapping[str, Words], boxes: Mapping[str, bytes], subject: bytes = b"", fixed_for: str = ""
    ) -> dict[str, Words]:
        """Phase B: the own words under masks.

        Args:
            words: of each tensor.
            boxes: the sealed share that each partner has made for this site.
            subject: what the site was asked. Masks of sites that were asked different things do not cancel: a server that
                sends the others a model from which nothing can be learnt does not see this site's update (Pasquini et al.,
                "Eluding secure aggregation in federated learning via model inconsistency", CCS 2022).
            fixed_for: the data set whose sums are over whole batches of hospitals, because they are of one quantity or of
                near ones: the difference of two over other sites would be one site's part. Empty for updates.

        Raises:
            MessageError: if a partner's share is missing or was changed.
        """
        self._next(1)
        self._subject, self._fixed_for = subject, fixed_for
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
        if self._fixed_for:
            self._require_whole_batches(chosen)
        # Of two sums of one quantity over other sites the difference would be seen.
        self._notes.same(f"contributors of {self._roster.quantity} in {self._run}", ", ".join(chosen))
        self._notes.once(f"contributors {self._roster.digest.hex()}", ", ".join(chosen))
        self._contributors = chosen
        return self._keys.signing.sign(self._roster.contributors(chosen))

    def _require_whole_batches(self, chosen: Collection[str]) -> None:
        """Sums of a data set are over whole batches: those of its first sum, and later ones of enough new hospitals.

        Raises:
            MessageError: if a batch is in it in part, or a new one is too small.
        """
        left, number = set(chosen), 1
        while noted := self._notes.known(batch_note(self._fixed_for, number)):
            batch = set(noted.split(", "))
            if left & batch not in (set(), batch):
                raise MessageError(
                    f"sums of {self._fixed_for} are over all of {noted} or none, asked for are {', '.join(chosen)}: if one "
                    "of them has left for good, grandrounds ledger contributors books the others"
                )
            left, number = left - batch, number + 1
        if not left:
            return
        if number > 1 and len(left) < self._rules.batch:
            raise MessageError(
                f"{', '.join(sorted(left))} are new in sums of {self._fixed_for}, and fewer than {self._rules.batch}: the "
                "difference to earlier sums would show them"
            )
        self._notes.once(batch_note(self._fixed_for, number), ", ".join(sorted(left)))

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
