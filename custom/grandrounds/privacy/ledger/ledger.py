"""The privacy ledger: every release of a site and the epsilon spent, in one file of the site, outside any job.

It counts over rounds, restarts and jobs on the same data set, by :mod:`grandrounds.privacy.accounting`. A release
is booked before it leaves: if the process dies in between, the ledger has a release too many, never one too few. Nothing in
it describes an image; digests of a data set's images are in files beside it, which it names by their SHA-256, so that they
cannot be altered unseen.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from grandrounds.checks import reraised_as
from grandrounds.errors import ConfigurationError, DataError, GrandRoundsError, MessageError
from grandrounds.files import write_bytes
from grandrounds.privacy.accounting import exceeds, renyi_epsilon, spent_epsilon
from grandrounds.privacy.ledger.chain import Chain, ChainedFile
from grandrounds.privacy.ledger.lines import (
    Amendment,
    Booking,
    DatasetIdentity,
    Distinction,
    Known,
    Loss,
    Opening,
    Purpose,
    SumNote,
    read_line,
)
from grandrounds.protocol.spending import Spending, Unit, counted

DIGEST_FOLDER = "images"
"""Beside the ledger."""


def write_digests(folder: Path, digests: Iterable[str]) -> str:
    """Write digests beside a ledger in ``folder``; the SHA-256 of the file is returned, which is its name, too.

    Raises:
        DataError: if the file cannot be written.
    """
    content = (json.dumps(sorted(digests), indent=0) + "\n").encode()
    name = hashlib.sha256(content).hexdigest()
    path = folder / DIGEST_FOLDER / f"{name}.json"
    try:
        write_bytes(path, content, private=True)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}; nothing may be released") from error
    return name


def read_digests(folder: Path, name: str) -> frozenset[str]:
    """Read the digests that a line of the ledger names.

    Raises:
        DataError: if the file is missing or was altered.
    """
    path = folder / DIGEST_FOLDER / f"{name}.json"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror or error}; nothing may be released before the file is restored from a backup"
        ) from error
    if hashlib.sha256(content).hexdigest() != name:
        raise DataError(f"{path} was altered; nothing may be released before it is restored from a backup")
    return frozenset(json.loads(content))


LEDGER_NAME = "ledger.jsonl"
PATIENT = "patient"
Kind = TypeVar("Kind")
"""The scheme of digests of patients' keys."""


class BudgetExceeded(GrandRoundsError):
    """A release would exceed the target epsilon of its data set; it is not booked and must not leave."""


class Ledger:
    """One site's ledger, in the site's own folder.

    Raises:
        ConfigurationError: if there is no ledger in ``folder``, or it belongs to another site.
        DataError: if it was damaged, altered or truncated.
    """

    def __init__(self, folder: Path, site: str) -> None:
        self.site = site
        self._file = ChainedFile(folder / LEDGER_NAME)
        read = LedgerContent(self._file.read())
        if read.opening.site != site:
            raise ConfigurationError(f"{self._file.path} is the ledger of {read.opening.site!r}, not of {site!r}")

    @classmethod
    def create(cls, folder: Path, site: str) -> Ledger:
        """Open a site's ledger, and create it if there is none.

        Creation is explicit, so that a removed ledger is an error and not a new one with nothing spent.

        Raises:
            ConfigurationError: if the existing ledger belongs to another site.
            DataError: if it was damaged or truncated, or cannot be written.
        """
        if not site:
            raise ConfigurationError("a ledger needs the name of its site, got an empty one")
        opening = Opening(_now(), site, secrets.token_hex(16))
        ChainedFile(folder / LEDGER_NAME).create(opening.to_json())
        return cls(folder, site)

    def content(self) -> LedgerContent:
        """Read and verify the ledger.

        Raises:
            DataError: if it was damaged, altered or truncated.
        """
        return LedgerContent(self._file.read())

    def book(
        self, purpose: Purpose, dataset: DatasetIdentity, spending: Spending, delta: float, target: float = math.inf
    ) -> Booking:
        """Book a release. It may leave the site after this has returned, and not before.

        ``target`` is the maximum epsilon after this release, for the spending's unit at ``delta``.

        Returns:
            The line as written, with the epsilon of all releases that share the budget, including this one.

        Raises:
            BudgetExceeded: if the target would be exceeded; nothing is written.
            ConfigurationError: if the ledger has another data set under this name, or this one under another.
            DataError: if the ledger was damaged, altered or truncated, or cannot be written.
        """
        with self._file.extending() as extension:
            content = LedgerContent(extension.chain)
            content.require_known(dataset)
            epsilon = _epsilon([*content.spendings(dataset.name, spending.unit), spending], delta, spending.unit)
            if exceeds(epsilon, target):
                raise BudgetExceeded(
                    f"{self.site}: with release {purpose.release!r} of round {purpose.round_number}, data set "
                    f"{dataset.name!r} would have spent epsilon {epsilon:.4g} at delta {delta:g} for "
                    f"{spending.unit.described()}, more than the target {target:g}; it was not released"
                )
            booking = Booking(_now(), purpose, dataset, spending, delta, epsilon)
            extension.append(booking.to_json())
        return booking

    def amend(self, dataset: DatasetIdentity, reason: str) -> None:
        """Record that a data set has changed, for example grown; its name and its spending stay. The reason is a sentence.

        Raises:
            ConfigurationError: if the name is unknown, the fingerprint is another data set's, or the reason is empty.
            DataError: if the ledger was damaged, altered or truncated, or cannot be written.
        """
        if not reason.strip():
            raise ConfigurationError(f"data set {dataset.name!r}: the reason of the change is missing")
        with self._file.extending() as extension:
            content = LedgerContent(extension.chain)
            if dataset.name not in content.datasets:
                known = ", ".join(content.datasets) or "none"
                raise ConfigurationError(f"{self._file.path} has no data set {dataset.name!r}; it has {known}")
            content.require_owner(dataset)
            extension.append(Amendment(_now(), dataset, reason).to_json())

    def join(self, dataset: DatasetIdentity, state: str, digests: Collection[str], content: str = "") -> None:
        """Record what the images and patients of a data set are known by, beside what is known already.

        Args:
            dataset: as its manifest describes it.
            state: of its files; nothing is written if the ledger has it as the latest.
            digests: of :func:`~grandrounds.data.images.files.identity.image_identity`, and of patients.
            content: a hash of what is in each image, by name.

        Raises:
            DataError: if the ledger was damaged, altered or truncated, or cannot be written.
        """
        with self._file.extending() as extension:
            latest = LedgerContent(extension.chain).latest(dataset.name)
            if latest is None or latest.state != state:
                file = write_digests(self._file.path.parent, digests)
                extension.append(Known(_now(), dataset, state, len(digests), file, content).to_json())

    def distinguish(self, first: str, second: str, reason: str) -> None:
        """Record that the patients of two data sets are different people, although some are called alike.

        Raises:
            ConfigurationError: if a name is unknown, or the reason is empty.
            DataError: if the ledger was damaged, altered or truncated, or cannot be written.
        """
        if not reason.strip():
            raise ConfigurationError(f"data sets {first!r} and {second!r}: the reason is missing")
        with self._file.extending() as extension:
            names = {line.dataset.name for line in LedgerContent(extension.chain).known}
            if unknown := sorted({first, second} - names):
                known = ", ".join(sorted(names)) or "none"
                raise ConfigurationError(f"{self._file.path} knows no images of {unknown[0]!r}, only of {known}")
            extension.append(Distinction(_now(), first, second, reason).to_json())

    def note(self, what: str, value: str, again: bool) -> None:
        """Record what is said about a secure sum; it is on disk when this returns.

        Args:
            what: it is about.
            value: what is said.
            again: whether the same may be said again.

        Raises:
            MessageError: if something was said about it before, or something else.
            DataError: if the ledger was damaged, altered or truncated, or cannot be written.
        """
        with self._file.extending() as extension:
            known = LedgerContent(extension.chain).notes.get(what)
            if not known:
                extension.append(SumNote(_now(), what, value).to_json())
            elif not again or known != value:
                raise MessageError(f"{what}: the ledger has {known!r}, asked for is {value!r}")

    def renew_notes(self, notes: Mapping[str, str]) -> None:
        """Let an administrator say something else about secure sums than the site has.

        Args:
            notes: what is said, by what it is about; empty where nothing is said any more.

        Raises:
            DataError: if the ledger was damaged, altered or truncated, or cannot be written.
        """
        with self._file.extending() as extension:
            for what, value in notes.items():
                extension.append(SumNote(_now(), what, value).to_json())


class LedgerContent:
    """The content of a ledger, from the file's verified lines.

    Raises:
        DataError: if a line does not belong in a ledger; its number is named.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        lines = [read_line(line, f"{chain.path}: line {number}") for number, line in enumerate(chain.lines, start=1)]
        opening, *others = lines
        if not isinstance(opening, Opening):
            raise DataError(
                f"{chain.path}: line 1 must be the opening of the ledger, but is a {chain.lines[0].get('kind')}"
            )
        self.opening = opening
        self.losses = _of_kind(Loss, others)
        booked = [entry for line in others for entry in (line.bookings if isinstance(line, Loss) else (line,))]
        self.bookings = _of_kind(Booking, booked)
        self.known = _of_kind(Known, others)
        self.distinctions = {frozenset((line.first, line.second)) for line in _of_kind(Distinction, others)}
        self.notes = {line.what: line.value for line in _of_kind(SumNote, others)}
        self._identities = [line.dataset for line in booked if isinstance(line, Booking | Amendment)]

    @property
    def datasets(self) -> dict[str, str]:
        """The data sets by name, with their latest fingerprint."""
        return {identity.name: identity.fingerprint for identity in self._identities}

    def sharing(self, name: str, unit: Unit) -> list[Booking]:
        """The releases that share one budget with those of a data set: of a unit of the site, those of all its data sets.

        Ledgers of earlier versions are counted like this, too, although their lines have the epsilon of one data set.
        """
        return [booking for booking in self.bookings if unit.of_site or booking.dataset.name == name]

    def spendings(self, name: str, unit: Unit) -> list[Spending]:
        """The costs of all releases that share the budget of a data set."""
        return [booking.spending for booking in self.sharing(name, unit)]

    def spent(self, name: str, delta: float, unit: Unit) -> float:
        """The epsilon of all releases that share the budget of a data set; 0 without any.

        Raises:
            ConfigurationError: if ``delta`` is outside (0, 1).
        """
        return _epsilon(self.spendings(name, unit), delta, unit)

    def spent_bound(self, name: str, delta: float, unit: Unit) -> float:
        """An upper bound of the same by Rényi differential privacy, independent of :meth:`spent`."""
        spendings = counted(self.spendings(name, unit))
        steps = [step for step in (spending.towards(unit) for spending in spendings) if step is not None]
        return renyi_epsilon(steps, delta) if len(steps) == len(spendings) else math.inf

    def latest(self, name: str) -> Known | None:
        """What the images of a data set were known by when a job read them for the last time; None before the first."""
        return next((line for line in reversed(self.known) if line.dataset.name == name), None)

    def changes(self, name: str) -> int:
        """How often images of a data set had another content than before under the same manifest."""
        lines = [line for line in self.known if line.dataset.name == name and line.content]
        return sum(
            (before.dataset == after.dataset) and before.content != after.content for before, after in pairwise(lines)
        )

    def digests(self, name: str) -> set[str]:
        """What the images and patients of a data set are known by, in all its lines together.

        Raises:
            DataError: if the file of a line is missing or altered.
        """
        lines = {line.file for line in self.known if line.dataset.name == name}
        return {digest for file in lines for digest in read_digests(self.chain.path.parent, file)}

    def require_own_images(self, name: str, described: Collection[str]) -> None:
        """Check that no data set of another name has an image or a patient of this one: each has one budget.

        One that the site does not describe any more counts if something of it was booked.

        Args:
            name: of the data set.
            described: the data sets that the site has.

        Raises:
            ConfigurationError: naming both data sets and the number of images or patients.
            DataError: if what is known of a data set is missing or altered.
        """
        own = self.digests(name)
        others = {line.dataset.name for line in self.known} & {*described, *self.datasets}
        for other in sorted(others - {name}):
            shared = own & self.digests(other)
            schemes = Counter(digest.partition(":")[0] for digest in shared)
            people = schemes.pop(PATIENT, 0)
            where = (
                f"of data set {name!r} are also in {other!r}, which has a budget of its own; describe one of them only"
            )
            if schemes:
                raise ConfigurationError(f"{max(schemes.values())} images {where}")
            if people and frozenset((name, other)) not in self.distinctions:
                raise ConfigurationError(
                    f"{people} patients {where}, or, if these are different people, run: grandrounds ledger amend "
                    f"{self.chain.path.parent} {name} --distinct-from {other} --reason REASON"
                )

    def require_known(self, dataset: DatasetIdentity) -> None:
        """Check that a data set is new, or has the name and fingerprint of an earlier one.

        Raises:
            ConfigurationError: if it is not.
        """
        known = self.datasets.get(dataset.name, dataset.fingerprint)
        if known != dataset.fingerprint:
            raise ConfigurationError(
                f"{self.chain.path}: data set {dataset.name!r} was booked with fingerprint {known[:12]}, now it has "
                f"{dataset.fingerprint[:12]}; if its images have changed, amend it in the ledger (its spending stays)"
            )
        self.require_owner(dataset)

    def require_owner(self, dataset: DatasetIdentity) -> None:
        """Check that no data set of another name had these images: renaming does not give a new budget.

        Raises:
            ConfigurationError: if one had.
        """
        for identity in self._identities:
            if identity.fingerprint == dataset.fingerprint and identity.name != dataset.name:
                raise ConfigurationError(
                    f"{self.chain.path}: the images of data set {dataset.name!r} were booked as {identity.name!r}; "
                    "use that name"
                )


def _of_kind(kind: type[Kind], lines: Iterable[object]) -> tuple[Kind, ...]:
    return tuple(line for line in lines if isinstance(line, kind))


def read_ledger(path: Path) -> LedgerContent:
    """Read the ledger in a file, of any site.

    Raises:
        ConfigurationError: if there is none.
        DataError: if it was damaged, altered or truncated.
    """
    return LedgerContent(ChainedFile(path).read())


def _epsilon(spendings: Sequence[Spending], delta: float, unit: Unit) -> float:
    with reraised_as(ConfigurationError, ValueError):
        return spent_epsilon(spendings, delta, unit)


def dataset_fingerprint(names: Iterable[str], groups: Iterable[str]) -> str:
    """A hash of a data set's images and patients, independent of their order, of labels and of splits.

    ``groups`` is each image's patient, else lesion, else the image itself.

    Raises:
        ValueError: if there are not as many groups as names.

    Example:
        >>> dataset_fingerprint(["a", "b"], ["p", "q"]) == dataset_fingerprint(["b", "a"], ["q", "p"])
        True
    """
    pairs = sorted(zip(names, groups, strict=True))
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
