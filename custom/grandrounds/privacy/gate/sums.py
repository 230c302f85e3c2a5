"""A site's gate in secure sums: it alone holds keys, nonces and notes, and masks what the policy lets out in sums only."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.privacy.gate.audit import Refused
from grandrounds.privacy.gate.policy import SitePolicy
from grandrounds.privacy.ledger.ledger import PATIENT, Ledger, LedgerContent, read_digests
from grandrounds.privacy.ledger.lines import Known
from grandrounds.privacy.secure_sums.asked import AskedSum
from grandrounds.privacy.secure_sums.party import Identity, KitIdentity, SimulatedIdentity, SumParty
from grandrounds.protocol.messages import ReleaseKind
from grandrounds.protocol.names import STORED_BYTES
from grandrounds.protocol.refusal import Reason

MOST_RUNS = 64
"""Of which a process keeps keys; a job's process has one run, and a simulation many sites."""
_parties: dict[tuple[Path, str, str], SumParty] = {}


class LedgerNotes:
    """Notes in a site's ledger, on disk before an answer leaves."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def once(self, what: str, value: str) -> None:
        """See :class:`~grandrounds.privacy.secure_sums.attempt.Notes`."""
        self._ledger.note(what, value, again=False)

    def same(self, what: str, value: str) -> None:
        """See :class:`~grandrounds.privacy.secure_sums.attempt.Notes`."""
        self._ledger.note(what, value, again=True)

    def known(self, what: str) -> str:
        """See :class:`~grandrounds.privacy.secure_sums.attempt.Notes`."""
        return self._ledger.content().notes.get(what, "")


def note_question(ledger: Ledger, what: str, where: str, kind: ReleaseKind, asked: AskedSum) -> None:
    """Let a job ask for a sum in one way: one question about sums of features, and others with weights or without.

    From sums of features at many bounds, weights or heads, and from updates with weights and without, would follow parts of
    single sites.

    Args:
        ledger: of the site.
        what: is added, with its data set.
        where: it is asked, see :meth:`KitJob.started`.
        kind: of the release.
        asked: the question.

    Raises:
        MessageError: if it was asked in another way before.
    """
    once = asked.subject.hex() if kind is ReleaseKind.SUFFICIENT_STATISTICS else f"weighted {asked.task.weighted}"
    ledger.note(f"question about {what} in {where}", once, again=True)


def require_large_change(ledger: Ledger, dataset: str, minimum: int) -> str:
    """Refuse a sum of a data set that differs by few patients from one, of whatever name, of which there was a sum before.

    Compared is what the ledger knows of images and patients, each of whom may have two digests; where patients are not
    known each image counts as one. Other labels or parts of the same images are not noticed.

    Args:
        ledger: of the site.
        dataset: its name.
        minimum: of the patients that have come or gone.

    Returns:
        The name under which sums of these images were first.

    Raises:
        MessageError: naming the number of patients that have come or gone.
    """
    content = ledger.content()
    latest = content.latest(dataset)
    if latest is None:
        return dataset
    if _data_of_sums(latest) in content.notes:
        return _first_name(content, latest)
    now, first = _of_images(content, latest), dataset
    for before in content.known:
        if _data_of_sums(before) not in content.notes:
            continue
        known, name = _of_images(content, before), before.dataset.name
        changed = Counter(digest.partition(":")[0] for digest in known ^ now)
        people = any(digest.startswith(f"{PATIENT}:") for digest in known | now)
        patients = (changed[PATIENT] + 1) // 2 if people else max(changed.values(), default=0)
        if changed and patients < minimum:
            raise MessageError(
                f"{dataset} has changed by {patients} patients since a sum of {name}, and the difference of two sums would "
                f"show them: wait until at least {minimum} have come or gone, or take the change back"
            )
        first = first if changed else _first_name(content, before)
    ledger.note(_data_of_sums(latest), first, again=False)
    return first


def _data_of_sums(known: Known) -> str:
    return f"data of sums of {known.dataset.name}: {known.content}"


def _first_name(content: LedgerContent, known: Known) -> str:
    """Of the data set under which these images were in a sum first; notes of earlier versions have none."""
    noted = content.notes[_data_of_sums(known)]
    return noted if any(noted == other.dataset.name for other in content.known) else known.dataset.name


def _of_images(content: LedgerContent, line: Known) -> frozenset[str]:
    """Digests of patients and pixels, or of bytes where no pixels are known: other files of the same pixels are the same."""
    known = read_digests(content.chain.path.parent, line.file)
    return frozenset(digest for digest in known if not digest.startswith(STORED_BYTES)) or known


@dataclass(frozen=True)
class KitJob:
    """What a gate knows of the kit and the job that it works for.

    Attributes:
        startup: the folder with the kit's certificate.
        is_kit: whether this is a kit and no simulation.
        job: the identity of FLARE's job.
        client: the client's part of the signed job.
    """

    startup: Path
    is_kit: bool
    job: str
    client: Mapping[str, Any]

    @classmethod
    def read(cls, startup: Path, is_kit: bool, job: str, client: Path) -> KitJob:
        """Read the client's part of the job.

        Raises:
            Refused: if it cannot be read.
        """
        try:
            content = json.loads(client.read_text(encoding="utf-8"))
            return cls(startup, is_kit, job, dict(content))
        except (OSError, ValueError, TypeError) as error:
            raise Refused(Reason.SUM_REFUSED, f"{client} cannot be read: {error}") from error

    @property
    def digest(self) -> str:
        """SHA-256 of the client's part of the job, on which all sites must agree."""
        return hashlib.sha256(json.dumps(self.client, sort_keys=True).encode()).hexdigest()

    def started(self, run: str) -> str:
        """What a person has started: a kit's job, whatever runs a server calls it, or a simulation's run."""
        return self.job if self.is_kit else run

    def require_no_filters(self) -> None:
        """Refuse a job that filters answers: its filters come after the gate's.

        Raises:
            Refused: then.
        """
        if self.client.get("task_result_filters"):
            raise Refused(Reason.SUM_FILTERS, "the job has task_result_filters")

    def identity(self, policy: SitePolicy) -> Identity:
        """Who the site is to its partners. Without a certificate it is one of a simulation.

        Raises:
            ConfigurationError: if a kit's files cannot be read.
        """
        certificate = self.startup / "client.crt"
        if not self.is_kit and not certificate.exists():
            return SimulatedIdentity()
        try:
            own, key, root = ((self.startup / name).read_bytes() for name in ("client.crt", "client.key", "rootCA.pem"))
        except OSError as error:
            raise ConfigurationError(f"{error.filename} cannot be read, which secure sums need: {error}") from error
        return KitIdentity.read(own, key, root, policy.sums.partners)


def party_of(folder: Path, site: str, run_id: str, policy: SitePolicy, kit: KitJob, ledger: Ledger) -> SumParty:
    """The site's part in the sums of a run, which lasts as long as this process.

    Args:
        folder: of the ledger.
        site: the site's name.
        run_id: of the run.
        policy: of the job's scope.
        kit: and job.
        ledger: of the site.

    Raises:
        Refused: if the job filters answers, or the kit cannot take part.
    """
    kit.require_no_filters()
    key = (folder, kit.job, run_id)
    if key not in _parties:
        try:
            identity = kit.identity(policy)
        except (ConfigurationError, MessageError) as error:
            raise Refused(Reason.SUM_REFUSED, str(error)) from error
        notes, kinds = LedgerNotes(ledger), policy.masked_kinds
        made = SumParty(site, run_id, kit.digest, identity, policy.sums.rules, notes, kinds)
        _parties[key] = made
        for old in list(_parties)[:-MOST_RUNS]:
            del _parties[old]
    return _parties[key]
