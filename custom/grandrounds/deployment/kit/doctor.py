"""Checks of a startup kit, before its first start or while it runs; the kit is not changed.

FLARE's own preflight check logs in as the site, which disconnects a running site. Here nobody logs in: there is a TLS
handshake with the server, and a mebibyte of zeros that measures the line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from grandrounds import __version__
from grandrounds.data.fitness import Finding
from grandrounds.data.manifest import read_manifest
from grandrounds.data.site import CONFIG_NAME, read_site_config
from grandrounds.deployment.kit import machine
from grandrounds.deployment.kit.certificates import (
    UPLOAD_BYTES,
    UPLOAD_SECONDS,
    WARNING_DAYS,
    certificate_days,
    certificate_fault,
    connection_fault,
    not_yet_valid,
    read_certificate,
    upload_speed,
)
from grandrounds.deployment.kit.distributions import listed_plugins, locked_plugins
from grandrounds.deployment.kit.findings import APPLY, Check, guarded, in_force, verdict
from grandrounds.deployment.kit.overlay import RESOURCES, installed_digest
from grandrounds.deployment.kit.policy import JOB_MANAGER, component
from grandrounds.deployment.kit.read import Kit, running_processes
from grandrounds.deployment.kit.safeguards import (
    allowed_classes,
    authorisation,
    channels,
    logs,
    plug_ins,
    privacy,
    privacy_ledger,
    signers,
)
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.identity.copies import refused_here
from grandrounds.federation.server.sites import ROSTER, read_roster
from grandrounds.files import file_digest
from grandrounds.json_files import read_json_object
from grandrounds.plugins import Distribution
from grandrounds.protocol.paths import LOCK
from grandrounds.protocol.tasks import FINDINGS

TEMPORARY = ("/tmp", "/var/tmp")
POD_LAUNCHER = "k8s_launcher"
"""In the name of FLARE's component that starts a job in a pod of Kubernetes."""
OTHERS = 0o077
"""Access rights of others than the owner in a file's mode."""


def examine_kit(kit: Kit, network: bool = True) -> list[Finding]:
    """Run all checks for the kind of participant; without ``network`` the server is not contacted."""
    checks: list[Check] = [machine.python, machine.packages, _certificate, _clock]
    if kit.kind != "person":
        checks += [
            package,
            machine.libraries,
            plug_ins,
            overlay,
            allowed_classes,
            authorisation,
            channels,
            _launcher,
            machine.disk,
            machine.weights,
        ]
    if kit.kind == "site":
        checks += [logs, signers, privacy, privacy_ledger, data_sets, machine.gpu, machine.training_child]
    if kit.kind == "server":
        checks += [roster, storage, _port]
    elif network:
        checks.append(_server)
    hint = f"; a file in {kit.local} is invalid; see those edited last"
    with listed_plugins(_listed(kit)):
        return list(chain.from_iterable(guarded(check, kit, hint) for check in checks))


def _listed(kit: Kit) -> list[Distribution]:
    """None where the lock is damaged, which :func:`overlay` reports."""
    try:
        return locked_plugins(kit)
    except (GrandRoundsError, TypeError, AttributeError):
        return []


def _certificate(kit: Kit) -> Iterator[Finding]:
    fault = certificate_fault(kit)
    if fault:
        yield Finding("failure", "certificate", f"{fault}; ask the operator for the kit again")
        return
    left = certificate_days(kit)
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
    yield verdict("clock", fault, "not slow: the certificate is already valid")


def _server(kit: Kit) -> Iterator[Finding]:
    answers = f"{kit.host}:{kit.port} answers, with a certificate of project {kit.project}"
    fault = connection_fault(kit)
    yield verdict("server", fault, answers)
    if kit.kind == "site" and not fault:
        yield from _bandwidth(kit)
    if reason := refused_here(kit.folder):
        yield Finding("failure", "identity", f"the server refuses this kit: {reason}")


def _bandwidth(kit: Kit) -> Iterator[Finding]:
    """The time that models take to the server; a server that is not FLARE's says nothing of it."""
    with suppress(OSError):
        speed, least = upload_speed(kit), UPLOAD_BYTES / UPLOAD_SECONDS
        if speed < least:
            message = (
                f"slower than {least / 1e6:.1f} MB/s to the server: a model of 10 MB takes {1e7 / least:.0f} s or more"
            )
            advice = (
                "the consortium needs a long controller.round_timeout and controller.grace, or this site another line"
            )
            yield Finding("warning", "bandwidth", f"{message} in every round; {advice}")
        else:
            message = f"{speed / 1e6:.1f} MB/s to the server: a model of 10 MB takes {max(1e7 / speed, 0.1):.1f} s"
            yield Finding("ok", "bandwidth", f"{message} in every round, and about as long on its way here")


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
    yield verdict("package", fault if pinned.get("contents") != installed_digest() else "", f"{name}, unchanged")


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


def _launcher(kit: Kit) -> Iterator[Finding]:
    """Jobs run at the kit. From a pod of its own FLARE brings back a job's folder alone, and what else it wrote is lost."""
    for entry in in_force(kit, RESOURCES).get("components") or ():
        if POD_LAUNCHER in str(entry.get("path")):
            lost = "privacy ledger, audit trail and states" if kit.kind == "site" else "states and checkpoints"
            message = (
                f"{RESOURCES}: {entry['path']} runs each job in a pod of its own, with which {lost} are lost; use FLARE's "
                f"process launcher, which is in {RESOURCES}.default"
            )
            yield Finding("failure", "launcher", message)


def data_sets(kit: Kit) -> Iterator[Finding]:
    """The site's manifests can be read."""
    path = kit.local / CONFIG_NAME
    if not path.is_file():
        message = f"there is no local/{CONFIG_NAME}: only synthetic images can be used; {APPLY} --datasets FILE"
        yield Finding("warning", "data sets", message)
        return
    for name, location in read_site_config(path).items():
        records = read_manifest(location.manifest)
        # The job says what a label is; a cell of one class mentions the same name where labels are findings.
        labels = sorted({name for record in records for name in FINDINGS.mentioned_in(record.label)})
        listed = ", ".join(labels) if labels else "none"
        splits = ", ".join(f"{sum(r.split == split for r in records)} {split}" for split in ("train", "val", "test"))
        message = f"{name!r}: {splits}; labels: {listed}; check the images by grandrounds doctor --site-config"
        yield Finding("ok" if labels else "warning", "data sets", message)


def roster(kit: Kit) -> Iterator[Finding]:
    """The server's list of mandatory sites can be read; a damaged one stops every run."""
    names = read_roster(kit.local / ROSTER)
    yield Finding("ok", "roster", f"mandatory for every job: {', '.join(names) or 'none'}")


def storage(kit: Kit) -> Iterator[Finding]:
    """Jobs and results are not in a folder for temporary files."""
    root = Path(component(in_force(kit, RESOURCES), JOB_MANAGER).get("args", {}).get("uri_root", TEMPORARY[0]))
    temporary = any(root.is_relative_to(folder) for folder in TEMPORARY) and not root.is_relative_to(kit.folder)
    where = f"jobs and results are in {root}"
    yield verdict("storage", f"{where}, which may be emptied; {APPLY} --storage DIR" if temporary else "", where)


def _unchanged(path: Path, digest: str) -> bool:
    return path.is_file() and file_digest(path) == digest
