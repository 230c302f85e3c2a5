"""Checks of a startup kit, before its first start or while it runs; the kit is not changed.

FLARE's own preflight check logs in as the site, which disconnects a running site. Here the only connection is a TLS
handshake with the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from grandrounds import __version__
from grandrounds.data.doctor import Finding
from grandrounds.data.manifest import read_manifest
from grandrounds.data.site import CONFIG_NAME, read_site_config
from grandrounds.deployment.kit import machine
from grandrounds.deployment.kit.admission import privacy_fault
from grandrounds.deployment.kit.certificates import (
    WARNING_DAYS,
    certificate_fault,
    connection_fault,
    days_left,
    not_yet_valid,
    read_certificate,
)
from grandrounds.deployment.kit.overlay import (
    AUTHORIZATION,
    DEFAULT,
    LEDGER_FOLDER,
    RESOURCES,
    file_digest,
    installed_digest,
)
from grandrounds.deployment.kit.policy import (
    FORBIDDEN,
    JOB_MANAGER,
    added_classes,
    classes_fault,
    component,
    component_classes,
    forbidden_rights,
    is_guarded,
)
from grandrounds.deployment.kit.read import Kit, running_processes
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.server.sites import ROSTER, read_roster
from grandrounds.json_files import read_json_object
from grandrounds.plugins import load_plugins
from grandrounds.privacy.gate.policy import POLICY_FILE, read_policies
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.protocol.paths import LOCK
from grandrounds.protocol.task_multi import SEPARATOR

APPLY = "apply the overlay: grandrounds overlay"
TEMPORARY = ("/tmp", "/var/tmp")
OTHERS = 0o077
"""Access rights of others than the owner in a file's mode."""
Check = Callable[[Kit], Iterator[Finding]]


def examine_kit(kit: Kit, network: bool = True) -> list[Finding]:
    """Run all checks for the kind of participant; without ``network`` the server is not contacted."""
    checks: list[Check] = [machine.python, machine.packages, _certificate, _clock]
    if kit.kind != "person":
        checks += [package, plug_ins, overlay, allowed_classes, authorisation, channels, machine.disk, machine.weights]
    if kit.kind == "site":
        checks += [logs, privacy, privacy_ledger, data_sets, machine.gpu]
    if kit.kind == "server":
        checks += [roster, storage, _port]
    elif network:
        checks.append(_server)
    return list(chain.from_iterable(_guarded(check, kit) for check in checks))


def _guarded(check: Check, kit: Kit) -> list[Finding]:
    """The findings of a check; a check that fails with an error is itself a finding."""
    try:
        return list(check(kit))
    except (GrandRoundsError, OSError) as error:
        reason = str(error)
    except Exception as error:  # a file that was edited by hand may have any form
        reason = f"{type(error).__name__}: {error}; a file in {kit.local} is invalid; see those edited last"
    return [Finding("failure", check.__name__.strip("_").replace("_", " "), reason)]


def _finding(check: str, fault: str, good: str) -> Finding:
    return Finding("failure", check, fault) if fault else Finding("ok", check, good)


def _certificate(kit: Kit) -> Iterator[Finding]:
    fault = certificate_fault(kit)
    if fault:
        yield Finding("failure", "certificate", f"{fault}; ask the operator for the kit again")
        return
    left = min(days_left(read_certificate(path)) for path in (kit.certificate, kit.authority))
    if left < 0:
        yield Finding("failure", "certificate", f"it expired {-left:.0f} days ago; renew it (grandrounds kit renew)")
    elif left < WARNING_DAYS:
        yield Finding("warning", "certificate", f"it expires in {left:.0f} days; renew it (grandrounds kit renew)")
    else:
        yield Finding("ok", "certificate", f"of {kit.name}, project {kit.project}, for {left:.0f} more days")
    if kit.key.stat().st_mode & OTHERS:
        yield Finding(
            "warning", "certificate", f"other users of this machine can access {kit.key}; chmod 600 {kit.key}"
        )


def _clock(kit: Kit) -> Iterator[Finding]:
    message = "the certificate becomes valid in the future: this machine's clock is slow; set it, for example by NTP"
    fault = message if not_yet_valid(read_certificate(kit.certificate)) else ""
    yield _finding("clock", fault, "not slow: the certificate is already valid")


def _server(kit: Kit) -> Iterator[Finding]:
    answers = f"{kit.host}:{kit.port} answers, with a certificate of project {kit.project}"
    yield _finding("server", connection_fault(kit), answers)


def _port(kit: Kit) -> Iterator[Finding]:
    running = running_processes(kit)
    fault = machine.port_fault(kit.port)
    if not fault:
        level, message = ("warning", "the server runs, but does not listen on it") if running else ("ok", "free")
    elif machine.listens(running, kit.port):
        level, message = "ok", "this kit's server listens on it"
    else:
        what = (
            "another program uses it, so this kit's server cannot listen" if running else f"it cannot be used ({fault})"
        )
        level, message = (
            "failure",
            f"{what}; stop the program that uses it, or provision with another fed_learn_port",
        )
    yield Finding(level, "port", f"{kit.port}: {message}")  # type: ignore[arg-type]


def package(kit: Kit) -> Iterator[Finding]:
    """The installed package is the pinned one."""
    if not (kit.local / LOCK).is_file():
        yield Finding("failure", "package", f"nothing is pinned in this kit; {APPLY} {kit.folder}")
        return
    pinned = read_json_object(kit.local / LOCK).get("package", {})
    name = f"version {pinned.get('version')}"
    if "wheel" in pinned:
        name = f"{pinned['wheel']} (sha256 {pinned['wheel_sha256'][:12]}…)"
    if pinned.get("contents") == installed_digest() and "wheel" not in pinned:
        yield Finding("warning", "package", f"{name} is pinned by its files, not by a wheel; {APPLY} --wheel")
        return
    fault = (
        f"the installed package (version {__version__}) is not the pinned {name}; install the pinned wheel, or review the "
        "other one and pin it by grandrounds overlay --wheel"
    )
    yield _finding("package", fault if pinned.get("contents") != installed_digest() else "", f"{name}, unchanged")


def plug_ins(_: Kit) -> Iterator[Finding]:
    """Installed plug-ins can be imported; their code runs at this participant like that of the package."""
    names = [f"{found.distribution} {found.version} ({found.module})" for found in load_plugins()]
    yield Finding("ok", "plug-ins", ", ".join(names) or "none")


def overlay(kit: Kit) -> Iterator[Finding]:
    """The participant's files are unchanged since the overlay, and the lock is this kit's."""
    if not (kit.local / LOCK).is_file():
        return
    content = read_json_object(kit.local / LOCK)
    project, participant = content.get("project"), content.get("participant")
    if (project, participant) != (kit.project, kit.name):
        owner = (
            f"local/ belongs to {participant} of project {project}, but this is the kit of {kit.name} of {kit.project}"
        )
        yield Finding("failure", "overlay", f"{owner}; {APPLY} {kit.folder} after removing {LOCK}")
        return
    files = content.get("files", {})
    edited = ", ".join(name for name, digest in files.items() if not _unchanged(kit.local / name, digest))
    if edited:
        message = f"{edited} changed since the overlay; check the change, then {APPLY} {kit.folder} to lock it"
        yield Finding("warning", "overlay", message)
    else:
        yield Finding("ok", "overlay", f"{', '.join(files)} unchanged")


def allowed_classes(kit: Kit) -> Iterator[Finding]:
    """FLARE may build this package's components, and neither its other functions nor classes that bypass the gate."""
    resources = _in_force(kit, RESOURCES)
    fault = classes_fault(resources, kit.kind == "site")
    others = "FLARE's own" if kit.kind == "server" else "none of FLARE's"
    good = f"{others} and {len(component_classes())} of this package"
    yield _finding("allowed classes", f"{RESOURCES}: {fault}; {APPLY} {kit.folder}" if fault else "", good)
    if added := ", ".join(added_classes(resources)):
        message = f"jobs may also call {added}, with any arguments; remove from {RESOURCES} what is not needed"
        yield Finding("warning", "allowed classes", message)


def authorisation(kit: Kit) -> Iterator[Finding]:
    """No role may send code with a job, or read files of this participant."""
    found = [
        f"{role} may {FORBIDDEN.get(right, FORBIDDEN['shell_commands'])} ({right})"
        for role, right in forbidden_rights(_in_force(kit, AUTHORIZATION))
    ]
    fault = f"{AUTHORIZATION}: {', '.join(found)}; {APPLY} {kit.folder}, and restart" if found else ""
    yield _finding("authorisation", fault, "no job may bring code of its own, and no role may read files")


def channels(kit: Kit) -> Iterator[Finding]:
    """FLARE's admin channel is restricted."""
    fault = (
        f"{RESOURCES} lacks the component that restricts FLARE's admin channel, so others can read this machine's files"
    )
    guarded = is_guarded(_in_force(kit, RESOURCES))
    good = (
        "no files for others, and requests from the server only" if kit.kind == "site" else "sites cannot reach sites"
    )
    yield _finding("channels", "" if guarded else f"{fault}; {APPLY} {kit.folder}, and restart", good)


def logs(kit: Kit) -> Iterator[Finding]:
    """The site's logs stay at the site."""
    streamed = _in_force(kit, RESOURCES).get("allow_log_streaming", True) is not False
    fault = f"the site's error log is sent to the server and may contain file names; {APPLY} {kit.folder}"
    yield _finding("logs", fault if streamed else "", "stay at the site")


def privacy(kit: Kit) -> Iterator[Finding]:
    """The site has a valid privacy policy."""
    path = kit.local / POLICY_FILE
    if not path.is_file():
        yield Finding("failure", "privacy", f"there is no {POLICY_FILE}: every job decides what leaves; {APPLY}")
        return
    content = read_json_object(path)
    policies = read_policies(content, POLICY_FILE)
    if fault := privacy_fault(kit.folder):
        yield Finding("failure", "privacy", f"{fault}; no job is accepted until it is corrected")
        return
    default = content["default_scope"]
    rules = ", ".join(f"{rule.kind.value}: {rule.treatment.name}" for rule in policies[default].releases) or "nothing"
    yield Finding("ok", "privacy", f"scope {default!r} allows {rules}")
    if len(policies) > 1:
        others = ", ".join(sorted(policies.keys() - {default}))
        yield Finding(
            "warning", "privacy", f"a job may choose another scope ({others}); keep only scopes that you accept"
        )


def privacy_ledger(kit: Kit) -> Iterator[Finding]:
    """The site's privacy ledger exists and is complete."""
    bookings = len(Ledger(kit.local / LEDGER_FOLDER, kit.name).content().bookings)
    yield Finding("ok", "privacy ledger", f"complete, {bookings} bookings")


def data_sets(kit: Kit) -> Iterator[Finding]:
    """The site's manifests can be read."""
    path = kit.local / CONFIG_NAME
    if not path.is_file():
        message = f"there is no local/{CONFIG_NAME}: only synthetic images can be used; {APPLY} --datasets FILE"
        yield Finding("warning", "data sets", message)
        return
    for name, location in read_site_config(path).items():
        records = read_manifest(location.manifest).records
        labels = sorted({name for record in records for name in record.label.split(SEPARATOR) if name})
        found = ", ".join(labels) if labels else "none"
        splits = ", ".join(f"{sum(r.split == split for r in records)} {split}" for split in ("train", "val", "test"))
        message = f"{name!r}: {splits}; labels: {found}; check the images by grandrounds doctor --site-config"
        yield Finding("ok" if labels else "warning", "data sets", message)


def roster(kit: Kit) -> Iterator[Finding]:
    """The server's list of mandatory sites can be read; a damaged one stops every run."""
    names = read_roster(kit.local / ROSTER)
    yield Finding("ok", "roster", f"mandatory for every job: {', '.join(names) or 'none'}")


def storage(kit: Kit) -> Iterator[Finding]:
    """Jobs and results are not in a folder for temporary files."""
    root = Path(component(_in_force(kit, RESOURCES), JOB_MANAGER).get("args", {}).get("uri_root", TEMPORARY[0]))
    temporary = any(root.is_relative_to(folder) for folder in TEMPORARY) and not root.is_relative_to(kit.folder)
    where = f"jobs and results are in {root}"
    yield _finding("storage", f"{where}, which may be emptied; {APPLY} --storage DIR" if temporary else "", where)


def _in_force(kit: Kit, name: str) -> dict[str, Any]:
    """A file of the kit as FLARE reads it: the participant's own, else the default."""
    own = kit.local / name
    return read_json_object(own if own.is_file() else kit.local / f"{name}{DEFAULT}")


def _unchanged(path: Path, digest: str) -> bool:
    return path.is_file() and file_digest(path) == digest
