"""A new certificate for a kit that is in use: keys and certificates change, everything else stays where it is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from grandrounds.deployment.kit.certificates import certificate_fault, days_left, read_certificate
from grandrounds.deployment.kit.overlay import LEDGER_FOLDER
from grandrounds.deployment.kit.read import Kit, read_kit, running_processes
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.files import file_digest
from grandrounds.privacy.ledger.ledger import LEDGER_NAME, read_ledger


@dataclass(frozen=True)
class Renewal:
    """What a renewal has left.

    Attributes:
        days: until the new certificate expires.
        old: folder with the old keys and certificates.
        ledger_head: hash of the ledger's last line, the same before and after; empty without a ledger.
        files: number of the participant's own files, each compared before and after.
    """

    days: float
    old: Path
    ledger_head: str
    files: int


def renew(kit: Kit, new: Kit) -> Renewal:
    """Move a new kit's keys and certificates into a kit that is in use.

    The folder ``startup`` is replaced, and the old one stays beside it. The participant's own files, its ledger, the state
    of runs, and the path that a service or a container names stay as they are.

    Raises:
        ConfigurationError: if the kit is running, the new one is of another participant or project, or its certificate is
            not valid for longer than the old one.
        GrandRoundsError: if another file than a certificate or key has changed; the old ones are put back.
    """
    _require_successor(kit, new)
    head, before = _ledger_head(kit), _own_files(kit)
    old = kit.folder / f"startup.until-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    with _replaced(kit.startup, new.startup, old):
        renewed = read_kit(kit.folder)
        if fault := certificate_fault(renewed):
            raise GrandRoundsError(f"{kit.folder}: {fault}; the old certificate was put back")
        if (_ledger_head(renewed), _own_files(renewed)) != (head, before):
            raise GrandRoundsError(f"{kit.local} has changed meanwhile; the old certificate was put back, try again")
    return Renewal(days_left(read_certificate(renewed.certificate)), old, head, len(before))


def _require_successor(kit: Kit, new: Kit) -> None:
    if processes := running_processes(kit):
        raise ConfigurationError(f"{kit.name} is running (process {processes[0]}); stop it, renew, and start it again")
    if kit.folder == new.folder:
        raise ConfigurationError(f"{kit.folder} is both the kit in use and the new one; name the new one by --from")
    if (kit.kind, kit.name, kit.project) != (new.kind, new.name, new.project):
        raise ConfigurationError(
            f"{new.folder} is the kit of {new.name} ({new.kind} of {new.project}), {kit.folder} that of {kit.name} "
            f"({kit.kind} of {kit.project})"
        )
    if fault := certificate_fault(new):
        raise ConfigurationError(f"{new.folder}: {fault}")
    old_days, days = (days_left(read_certificate(each.certificate)) for each in (kit, new))
    if days <= max(old_days, 0):
        raise ConfigurationError(
            f"the certificate in {new.folder} is valid for {days:.0f} days, the one in use for {old_days:.0f}: it is no "
            "newer one"
        )


@contextmanager
def _replaced(startup: Path, new: Path, old: Path) -> Iterator[None]:
    """``new`` is in the place of ``startup``, which is moved to ``old``; after an error all is as before."""
    fresh = startup.with_name(".startup.new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(new, fresh)
    os.rename(startup, old)
    try:
        os.rename(fresh, startup)
        yield
    except BaseException:
        shutil.rmtree(startup, ignore_errors=True)
        os.rename(old, startup)
        raise


def _ledger_head(kit: Kit) -> str:
    path = kit.local / LEDGER_FOLDER / LEDGER_NAME
    return read_ledger(path).chain.head if path.is_file() else ""


def _own_files(kit: Kit) -> dict[str, str]:
    """Digests of the files in ``local``."""
    files = (path for path in kit.local.rglob("*") if path.is_file())
    return {path.relative_to(kit.local).as_posix(): file_digest(path) for path in files}
