"""Can this participant take part? A startup kit is examined, before its first start or while it runs, and left as it is.

FLARE's own preflight check logs in as the site, which cuts a running site off. Here nobody logs in: the only connection is
a handshake of certificates with the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from grandrounds.data.doctor import Finding
from grandrounds.deployment.kit import files as kit_files
from grandrounds.deployment.kit import machine as kit_machine
from grandrounds.deployment.kit.certificates import (
    WARNING_DAYS,
    certificate_fault,
    connection_fault,
    days_left,
    not_yet_valid,
    read_certificate,
)
from grandrounds.deployment.kit.read import Kit, running_processes
from grandrounds.errors import GrandRoundsError

OTHERS = 0o077
"""Rights in a file's mode that are not its owner's."""
Check = Callable[[Kit], Iterator[Finding]]


def examine_kit(kit: Kit, network: bool = True) -> list[Finding]:
    """Run all checks that fit the kind of participant; each gives at least one finding.

    Args:
        kit: of a server, a site or a person.
        network: whether the server may be contacted.
    """
    checks: list[Check] = [kit_machine.python, kit_machine.packages, _certificate, _clock]
    if kit.kind != "person":
        checks += [
            kit_files.package,
            kit_files.overlay,
            kit_files.allowed_classes,
            kit_files.authorisation,
            kit_machine.disk,
        ]
    if kit.kind == "site":
        checks += [kit_files.logs, kit_files.privacy, kit_files.privacy_ledger, kit_files.data_sets, kit_machine.gpu]
    if kit.kind == "server":
        checks += [kit_files.roster, kit_files.storage, _port]
    elif network:
        checks.append(_server)
    return list(chain.from_iterable(_guarded(check, kit) for check in checks))


def _guarded(check: Check, kit: Kit) -> list[Finding]:
    """What keeps a check from being made is itself a finding, and the others go on."""
    try:
        return list(check(kit))
    except (GrandRoundsError, OSError) as error:
        reason = str(error)
    except Exception as error:  # a file that was edited by hand may have any form
        reason = f"{type(error).__name__}: {error}; a file in {kit.local} is not as it must be, see those edited last"
    return [Finding("failure", check.__name__.strip("_").replace("_", " "), reason)]


def _certificate(kit: Kit) -> Iterator[Finding]:
    fault = certificate_fault(kit)
    if fault:
        yield Finding("failure", "certificate", f"{fault}; ask the operator for the kit again")
        return
    left = min(days_left(read_certificate(path)) for path in (kit.certificate, kit.authority))
    if left < 0:
        yield Finding("failure", "certificate", f"it ended {-left:.0f} days ago; ask the operator for a new kit")
    elif left < WARNING_DAYS:
        yield Finding("warning", "certificate", f"it ends in {left:.0f} days; ask the operator for a new kit in time")
    else:
        yield Finding("ok", "certificate", f"of {kit.name}, project {kit.project}, for {left:.0f} more days")
    if kit.key.stat().st_mode & OTHERS:
        yield Finding(
            "warning", "certificate", f"{kit.key} is open to other users of this machine; chmod 600 {kit.key}"
        )


def _clock(kit: Kit) -> Iterator[Finding]:
    if not_yet_valid(read_certificate(kit.certificate)):
        message = "the certificate begins in the future: this machine's clock is behind; set it, for example by NTP"
        yield Finding("failure", "clock", message)
    else:
        yield Finding("ok", "clock", "not behind the certificate's beginning")


def _server(kit: Kit) -> Iterator[Finding]:
    fault = connection_fault(kit)
    if fault:
        yield Finding("failure", "server", fault)
    else:
        yield Finding("ok", "server", f"{kit.host}:{kit.port} answers, with a certificate of project {kit.project}")


def _port(kit: Kit) -> Iterator[Finding]:
    running = bool(running_processes(kit))
    fault = kit_machine.port_fault(kit.port)
    if not fault:
        level, message = ("warning", "the server runs, but nobody listens there") if running else ("ok", "free")
    elif running:
        level, message = "ok", "this kit's server listens"
    else:
        level, message = (
            "failure",
            f"it cannot be used ({fault}); stop the program that uses it, or provision with another fed_learn_port",
        )
    yield Finding(level, "port", f"{kit.port}: {message}")  # type: ignore[arg-type]
