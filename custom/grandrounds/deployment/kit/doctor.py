"""Checks of a startup kit, before its first start or while it runs; nothing in the kit is changed.

FLARE's own preflight check logs in as the site, which disconnects a running site. Here nobody logs in: there is a TLS
handshake with the server, and a mebibyte of zeros that measures the line.
"""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from grandrounds import __version__
from grandrounds.data.fitness import Finding
from grandrounds.data.manifest import read_manifest
from grandrounds.data.site import CONFIG_NAME, read_site_config
from grandrounds.deployment.code_digest import installed_digest
from grandrounds.deployment.kit import machine
from grandrounds.deployment.kit.admission import privacy_fault
from grandrounds.deployment.kit.certificates import (
    CERTIFICATE_CONNECT_SECONDS,
    WARNING_DAYS,
    certificate_days,
    certificate_fault,
    connection_fault,
    not_yet_valid,
    read_certificate,
    secured_line,
)
from grandrounds.deployment.kit.classes import added_classes, classes_fault, component_classes
from grandrounds.deployment.kit.distributions import listed_plugins, locked_networks, locked_plugins
from grandrounds.deployment.kit.findings import APPLY, Check, guarded, in_force, verdict
from grandrounds.deployment.kit.overlay import AUTHORIZATION, LEDGER_FOLDER, RESOURCES, listed_classes
from grandrounds.deployment.kit.policy import (
    FORBIDDEN,
    JOB_MANAGER,
    MOST_SITES,
    component,
    forbidden_rights,
    is_guarded,
)
from grandrounds.deployment.kit.read import Kit, running_processes
from grandrounds.deployment.kit.signers import SIGNERS, read_signers
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.identity.copies import refused_here
from grandrounds.federation.server.sites import ROSTER, read_roster
from grandrounds.files import file_digest, read_json_object
from grandrounds.plugins import PLUGINS_VARIABLE, Distribution, installed_plugins, load_plugins
from grandrounds.privacy.gate.policy import POLICY_FILE, read_policies
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.protocol.paths import LOCK
from grandrounds.protocol.tasks import FINDINGS

UPLOAD_BYTES, UPLOAD_SECONDS = 1 << 20, 10.0
"""Sent to measure a line, and the seconds after which a server of aiohttp hangs up on a body that it did not ask for."""
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
            machine.installation,
            plug_ins,
            overlay,
            allowed_classes,
            authorisation,
            channels,
            _launcher,
            machine.disk,
            machine.folders,
            machine.weights,
        ]
    if kit.kind == "site":
        checks += [logs, signers, privacy, privacy_ledger, data_sets, machine.gpu, machine.training_child]
    if kit.kind == "server":
        checks += [roster, most_sites, storage, _port]
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
    yield from certificate(kit)
    if kit.key.stat().st_mode & OTHERS:
        yield Finding(
            "warning", "certificate", f"other users of this machine can access {kit.key}; chmod 600 {kit.key}"
        )


def certificate(kit: Kit) -> Iterator[Finding]:
    """The kit's certificates are valid for a month."""
    left = certificate_days(kit)
    expired = f"a certificate expired {-left:.0f} days ago; grandrounds kit renew" if left < 0 else ""
    soon = f"a certificate expires in {left:.0f} days; grandrounds kit renew" if left < WARNING_DAYS else ""
    yield verdict("certificate", expired, f"of {kit.name}, project {kit.project}, for {left:.0f} more days", soon)


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
        seconds = max(1e7 / max(speed, least), 0.1)
        slow = (
            f"slower than {least / 1e6:.1f} MB/s to the server: a model of 10 MB takes {seconds:.0f} s or more in every "
            "round; the consortium needs a long controller.round_timeout and controller.grace, or this site another line"
        )
        good = f"{speed / 1e6:.1f} MB/s to the server: a model of 10 MB takes {seconds:.1f} s in every round"
        yield verdict("bandwidth", "", f"{good}, and about as long on its way here", slow if speed < least else "")


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
        level, message = ("failure", f"{what}; stop the program that uses it, or provision with another fed_learn_port")
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
    changed = f"{edited} changed since the overlay; check the change, then {APPLY} {kit.folder} to lock it"
    yield verdict("overlay", "", f"{', '.join(files)} unchanged", changed if edited else "")


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


def most_sites(kit: Kit) -> Iterator[Finding]:
    """FLARE's limit of sites leaves room for those that have been connected."""
    known = len(read_roster(kit.local / ROSTER))
    most = min((int(server[MOST_SITES]) for server in in_force(kit, RESOURCES).get("servers", [])), default=known)
    fault = f"{known} are mandatory and at most {most} may be connected; {APPLY} --max-sites N {kit.folder}"
    yield verdict("sites", fault if most < known else "", f"{known} mandatory, at most {most} may be connected")


def storage(kit: Kit) -> Iterator[Finding]:
    """Jobs and results are not in a folder for temporary files."""
    root = Path(component(in_force(kit, RESOURCES), JOB_MANAGER).get("args", {}).get("uri_root", TEMPORARY[0]))
    temporary = any(root.is_relative_to(folder) for folder in TEMPORARY) and not root.is_relative_to(kit.folder)
    where = f"jobs and results are in {root}"
    yield verdict("storage", f"{where}, which may be emptied; {APPLY} --storage DIR" if temporary else "", where)


def _unchanged(path: Path, digest: str) -> bool:
    return path.is_file() and file_digest(path) == digest


RELAYED = "relay__resources.json*"
"""Of FLARE's: in the kit of a site that is behind a relay."""


def plug_ins(kit: Kit) -> Iterator[Finding]:
    """No plug-in is installed that is not listed, and the libraries of listed networks are those that were reviewed."""
    names = {plugin.name for plugin in locked_plugins(kit)}
    for plugin in installed_plugins():
        if plugin.distribution not in names:
            message = (
                f"{plugin.distribution} {plugin.version} ({plugin.module}) is installed and not listed; uninstall it, or "
                f"review it and {APPLY} {kit.folder} --plugin {plugin.distribution}"
            )
            yield Finding("failure", "plug-ins", message)
    if os.environ.get(PLUGINS_VARIABLE):
        yield Finding("failure", "plug-ins", f"{PLUGINS_VARIABLE} is set, which no kit reads; remove it")
    try:
        shown = [f"{plugin.distribution} {plugin.version} ({plugin.module})" for plugin in load_plugins()]
        for name, library in locked_networks(kit).items():
            library.require_installed()
            shown.append(f"{name} ({library.name} {library.version})")
    except ConfigurationError as error:
        yield Finding("failure", "plug-ins", str(error))
    else:
        yield Finding("ok", "plug-ins", ", ".join(shown) or "none")


def allowed_classes(kit: Kit) -> Iterator[Finding]:
    """FLARE may build this package's components, and neither its other functions nor classes that bypass the gate."""
    resources = in_force(kit, RESOURCES)
    listed = listed_classes(kit)
    fault = classes_fault(resources, kit.kind == "site", listed)
    others = f"{1 + len(listed)} of FLARE's" if kit.kind == "server" else "none of FLARE's"
    good = f"{others} and {len(component_classes())} of this package"
    yield verdict("allowed classes", f"{RESOURCES}: {fault}; {APPLY} {kit.folder}" if fault else "", good)
    if added := ", ".join([*added_classes(resources), *listed]):
        message = f"jobs may also call {added}, with any arguments; remove from {RESOURCES} what is not needed"
        yield Finding("warning", "allowed classes", message)


def authorisation(kit: Kit) -> Iterator[Finding]:
    """No role may send code with a job, or read files of this participant."""
    faults = [
        f"{role} may {FORBIDDEN.get(right, FORBIDDEN['shell_commands'])} ({right})"
        for role, right in forbidden_rights(in_force(kit, AUTHORIZATION))
    ]
    fault = f"{AUTHORIZATION}: {', '.join(faults)}; {APPLY} {kit.folder}, and restart" if faults else ""
    yield verdict("authorisation", fault, "no job may bring code of its own, and no role may read files")


def channels(kit: Kit) -> Iterator[Finding]:
    """FLARE's admin channel is restricted."""
    fault = (
        f"{RESOURCES} lacks the component that restricts FLARE's admin channel, so others can read this machine's files"
    )
    if list(kit.local.glob(RELAYED)):
        fault = "this kit reaches the server through a relay, which no guard sees through: have it made without"
        yield Finding("failure", "channels", fault)
        return
    guarded = is_guarded(in_force(kit, RESOURCES))
    good = (
        "no files for others, and requests from the server only" if kit.kind == "site" else "sites cannot reach sites"
    )
    yield verdict("channels", "" if guarded else f"{fault}; {APPLY} {kit.folder}, and restart", good)


def logs(kit: Kit) -> Iterator[Finding]:
    """The site's logs stay at the site."""
    streamed = in_force(kit, RESOURCES).get("allow_log_streaming", True) is not False
    fault = f"the site's error log is sent to the server and may contain file names; {APPLY} {kit.folder}"
    yield verdict("logs", fault if streamed else "", "stay at the site")


def signers(kit: Kit) -> Iterator[Finding]:
    """The site says who may sign a job."""
    path = kit.local / SIGNERS
    if not path.is_file():
        yield Finding("failure", "signers", f"there is no {SIGNERS}: no job is accepted; {APPLY} {kit.folder}")
        return
    allowed = read_signers(read_json_object(path), SIGNERS)
    yield Finding("ok", "signers", f"jobs of {allowed.described()}")


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


def upload_speed(kit: Kit) -> float:
    """Bytes in a second that reach the server from here; 0 if a mebibyte takes longer than ten seconds.

    They are the body of a request to FLARE's HTTP server for an address that it does not know. It reads and forgets them
    before it answers the next request, so the time is not that of this machine's buffers. There is no login.

    Raises:
        OSError: if there is no connection, or what answers is no HTTP server.
    """
    with secured_line(kit, CERTIFICATE_CONNECT_SECONDS) as secured:
        secured.settimeout(UPLOAD_SECONDS)
        connection = http.client.HTTPConnection(kit.host)
        connection.sock = secured
        started = time.perf_counter()
        try:
            for method, body in (("POST", bytes(UPLOAD_BYTES)), ("GET", None)):
                connection.request(method, "/", body)
                connection.getresponse().read()
        except (OSError, http.client.HTTPException) as error:
            if time.perf_counter() - started > UPLOAD_SECONDS / 2:
                return 0.0
            raise OSError(f"no HTTP server answers at {kit.host}:{kit.port}") from error
        return UPLOAD_BYTES / (time.perf_counter() - started)
