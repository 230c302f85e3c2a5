"""A site's part in secure sums where it has no gate: a simulation, which shows the arithmetic and hides nothing."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from grandrounds.privacy.secure_sums.asked import AskedSum
from grandrounds.privacy.secure_sums.attempt import Rules, SiteAttempt
from grandrounds.privacy.secure_sums.masks import framed
from grandrounds.privacy.secure_sums.messages import Phase, SumTask
from grandrounds.privacy.secure_sums.party import SimulatedIdentity, SumParty
from grandrounds.privacy.secure_sums.roster import ATTEMPT_NONCE_BYTES, KEY_BYTES, Roster, RunKeys
from grandrounds.privacy.secure_sums.summands import SUMMANDS
from grandrounds.protocol.messages import SUM, SUM_PART, Payload, Release, ReleaseKind, Result

MASKED_RELEASE: Mapping[str, ReleaseKind] = {SUM_PART: ReleaseKind.MASKED_SUM}


class NoNotes:
    """A simulation notes nothing."""

    def once(self, what: str, value: str) -> None:
        """See :class:`~grandrounds.privacy.secure_sums.attempt.Notes`."""

    def same(self, what: str, value: str) -> None:
        """See :class:`~grandrounds.privacy.secure_sums.attempt.Notes`."""

    def known(self, what: str) -> str:
        """See :class:`~grandrounds.privacy.secure_sums.attempt.Notes`."""
        return ""


class SimulatedParty(SumParty):
    """A site of a simulation without a gate: its secrets follow from public names, so that any process can go on.

    Args:
        site: its name.
        run: the run's identifier.
    """

    def __init__(self, site: str, run: str) -> None:
        drawn = _replayed(b"", site, run)
        channel, masks = (X25519PrivateKey.from_private_bytes(drawn(KEY_BYTES)) for _ in range(2))
        keys = RunKeys(channel, masks, Ed25519PrivateKey.from_private_bytes(drawn(KEY_BYTES)))
        super().__init__(site, run, "", SimulatedIdentity(), Rules(), NoNotes(), keys=keys)

    def attempt(self, task: SumTask) -> SiteAttempt:
        """The attempt as the phases before have left it."""
        attempt, at = self._attempt_of(task.known_roster), list(Phase).index(task.phase)
        if at > list(Phase).index(Phase.SHARES):
            attempt.shares(task.known_roster)
        if at > list(Phase).index(Phase.INPUT):
            attempt.masked({}, task.boxes, task.subject)
        if at > list(Phase).index(Phase.CONTRIBUTORS):
            attempt.consent(task.contributors)
        return attempt

    def _attempt_of(self, roster: Roster) -> SiteAttempt:
        nonce = roster.nonces.get(self._site, b"")
        return self._new(_replayed(nonce, self._site, self._run))

    def _begun(self) -> bytes:
        return os.urandom(ATTEMPT_NONCE_BYTES)


def _replayed(first: bytes, *names: str) -> Callable[[int], bytes]:
    """A stream that is the same for the same names; its first bytes are given, if they are."""
    numbers = itertools.count(0 if first else 1)

    def random_bytes(count: int) -> bytes:
        number = next(numbers)
        if not number:
            return first
        parts = (first, *(name.encode() for name in names), str(number).encode())
        return hashlib.shake_256(framed(*parts)).digest(count)

    return random_bytes


def simulated_answer(site: str, payload: Payload) -> Result:
    """What a site says about a sum.

    Raises:
        MessageError: if what it is asked is not accepted.
    """
    answer = SimulatedParty(site, payload.values["run_id"]).answer(SumTask.from_json(payload.values.get(SUM)))
    return Result({SUM_PART: Release(ReleaseKind.MASKED_SUM, answer.to_tensors())})


def with_simulated_masks(site: str, task: str, payload: Payload, result: Result, job: Mapping[str, Any]) -> Result:
    """A result whose releases are masked as far as they can be added up, if the task asks for a sum.

    Args:
        site: the site's name.
        task: that is answered.
        payload: the task's content.
        result: of the executor.
        job: the arguments of the job's executors.

    Raises:
        MessageError: if a release cannot be added up.
    """
    asked = AskedSum.of(task, payload, job)
    if asked is None:
        return result
    summed = {name: release for name, release in result.releases.items() if release.kind in SUMMANDS}
    plain = {name: release for name, release in result.releases.items() if name not in summed}
    numbers = {name: (release.kind, release.tensors) for name, release in summed.items()}
    party = SimulatedParty(site, payload.values["run_id"])
    tensors, _ = asked.masked(party, numbers, result.samples)
    return replace(result, releases={**plain, SUM_PART: Release(ReleaseKind.MASKED_SUM, tensors)})
