"""A site's part in the sums of a run: its keys, its open attempts, and its answer to each phase."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.privacy.secure_sums.attempt import Notes, Rules, SiteAttempt
from grandrounds.privacy.secure_sums.messages import Phase, SumAnswer, SumTask
from grandrounds.privacy.secure_sums.numbers import Words
from grandrounds.privacy.secure_sums.roster import Accepting, Join, Partners, Roster, RunKeys

MOST_ATTEMPTS = 4
"""Kept by a site: the open one, the next, and those that a server has given up."""


class Identity(Protocol):
    """Who a site is to its partners."""

    @property
    def partners(self) -> Accepting:
        """Whom it accepts."""
        ...

    @property
    def pinned(self) -> bool:
        """Whether it knows its partners' keys from them and not from the server."""
        ...

    def join(self, run: str, job: str, site: str, keys: RunKeys) -> Join:
        """Its statement about a run."""
        ...


@dataclass(frozen=True)
class KitIdentity:
    """A startup kit's.

    Attributes:
        certificate: of the site, in PEM form.
        key: the certificate's private key.
        partners: whom the hospital accepts.
    """

    certificate: bytes
    key: RSAPrivateKey
    partners: Partners

    @classmethod
    def read(cls, certificate: bytes, key: bytes, root: bytes, pins: Mapping[str, str] | None) -> KitIdentity:
        """Read a kit's files, in PEM form.

        Raises:
            ConfigurationError: if the key is no RSA key, or a file cannot be read.
        """
        try:
            private = load_pem_private_key(key, None)
            authority = x509.load_pem_x509_certificate(root)
        except (ValueError, TypeError) as error:
            raise ConfigurationError("the kit's key or root certificate cannot be read") from error
        if not isinstance(private, RSAPrivateKey):
            raise ConfigurationError("the kit's key is no RSA key, which secure sums need")
        return cls(certificate, private, Partners(authority, pins))

    @property
    def pinned(self) -> bool:
        """See :class:`Identity`."""
        return self.partners.pins is not None

    def join(self, run: str, job: str, site: str, keys: RunKeys) -> Join:
        """See :class:`Identity`."""
        return Join.signed(run, job, site, keys, self.certificate, self.key)


class SimulatedIdentity:
    """A simulation's: nobody signs, and everybody is accepted. It proves arithmetic, not privacy."""

    pinned = False

    @property
    def partners(self) -> Accepting:
        """Everybody."""
        return self

    def join(self, run: str, job: str, site: str, keys: RunKeys) -> Join:
        """See :class:`Identity`."""
        return Join(run, job, site, *keys.public, b"")

    def require(self, join: Join, run: str, job: str, now: datetime | None = None) -> str:
        """See :class:`~grandrounds.privacy.secure_sums.roster.Accepting`."""
        return join.site


class SumParty:
    """A site in a run. Keys and attempts end with the process: a server that goes on after that has it join again.

    Args:
        site: its name.
        run: the run's identifier.
        job: the digest of the signed job.
        identity: who it is to its partners.
        rules: of its policy.
        notes: where it notes what must happen once.
        kinds: of releases that leave in sums only.
        keys: of the run.
    """

    def __init__(
        self,
        site: str,
        run: str,
        job: str,
        identity: Identity,
        rules: Rules,
        notes: Notes,
        kinds: Collection[str] = (),
        keys: RunKeys | None = None,
    ) -> None:
        self._site, self._run, self._job = site, run, job
        self._identity, self._rules, self._notes = identity, rules, notes
        self._kinds = tuple(sorted(kinds))
        self._keys = keys or RunKeys()
        self._attempts: dict[bytes, SiteAttempt] = {}

    def answer(self, task: SumTask) -> SumAnswer:
        """Answer a phase other than ``input``.

        Raises:
            MessageError: if it is not next, or what it says is not accepted.
        """
        if task.phase is Phase.JOIN:
            join = self._identity.join(self._run, self._job, self._site, self._keys)
            return SumAnswer(self._begun(), join, self._kinds, self._rules, self._identity.pinned)
        attempt = self.attempt(task)
        if task.phase is Phase.SHARES:
            return SumAnswer(boxes=attempt.shares(task.known_roster))
        if task.phase is Phase.CONTRIBUTORS:
            return SumAnswer(self._begun(), signature=attempt.consent(task.contributors))
        if task.phase is Phase.UNMASK:
            opening = attempt.unmasking(task.signatures)
            self._attempts.pop(attempt.nonce, None)
            following = {} if task.following is None else self._attempt_of(task.following).shares(task.following)
            return SumAnswer(boxes=following, unmasking=opening)
        raise MessageError("masked numbers are the answer to a task, not to a question about a sum")

    def masked(
        self, task: SumTask, words: Mapping[str, Words], subject: bytes, fixed_for: str = ""
    ) -> dict[str, Words]:
        """Phase ``input``: words under masks.

        Args:
            task: about the sum.
            words: of each tensor.
            subject: what the site was asked, as a digest.
            fixed_for: the data set whose sums have fixed contributors; empty for updates.

        Raises:
            MessageError: if it is not next, or a partner's share was changed.
        """
        if task.phase is not Phase.INPUT:
            raise MessageError(f"a task for masked numbers is in phase {task.phase}")
        return self.attempt(task).masked(words, task.boxes, subject, fixed_for)

    def attempt(self, task: SumTask) -> SiteAttempt:
        """The open attempt that a task is about.

        Raises:
            MessageError: if there is none.
        """
        return self._attempt_of(task.known_roster)

    def _attempt_of(self, roster: Roster) -> SiteAttempt:
        attempt = self._attempts.get(roster.nonces.get(self._site, b""))
        if attempt is None or not attempt.is_of(roster):
            raise MessageError(f"{self._site} has no open attempt at {roster.quantity} with this roster")
        return attempt

    def _new(self, random_bytes: Callable[[int], bytes] = os.urandom) -> SiteAttempt:
        given = (self._keys, self._identity.partners, self._rules, self._notes)
        return SiteAttempt(self._site, self._run, self._job, *given, random_bytes=random_bytes)

    def _begun(self) -> bytes:
        attempt = self._new()
        self._attempts = dict([*self._attempts.items(), (attempt.nonce, attempt)][-MOST_ATTEMPTS:])
        return attempt.nonce
