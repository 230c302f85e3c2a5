"""What a participant's own files must say, each with what to do when they do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grandrounds import __version__
from grandrounds.data.doctor import Finding
from grandrounds.data.manifest import read_manifest
from grandrounds.data.site import CONFIG_NAME, read_site_config
from grandrounds.deployment.kit.overlay import AUTHORIZATION, DEFAULT, LEDGER_FOLDER, LOCK, PRIVACY, RESOURCES
from grandrounds.deployment.kit.package_digest import file_digest, installed_digest
from grandrounds.deployment.kit.policy import (
    JOB_MANAGER,
    added_classes,
    classes_fault,
    component,
    component_classes,
    roles_with_own_code,
)
from grandrounds.deployment.kit.read import Kit
from grandrounds.federation.server.sites import ROSTER, read_roster
from grandrounds.files import read_json_object
from grandrounds.privacy.gate.policy import read_policies
from grandrounds.privacy.ledger.ledger import Ledger

APPLY = "apply the overlay: grandrounds overlay"
TEMPORARY = ("/tmp", "/var/tmp")


def package(kit: Kit) -> Iterator[Finding]:
    """The installed package is the one that was pinned when the overlay was applied."""
    lock_file = kit.local / LOCK
    if not lock_file.is_file():
        yield Finding("failure", "package", f"nothing is pinned in this kit; {APPLY} {kit.folder}")
        return
    pinned = read_json_object(lock_file).get("package", {})
    name = f"version {pinned.get('version')}"
    if "wheel" in pinned:
        name = f"{pinned['wheel']} (sha256 {pinned['wheel_sha256'][:12]}…)"
    if pinned.get("contents") != installed_digest():
        message = (
            f"what is installed (version {__version__}) is not {name}, which is pinned; install the pinned wheel, or "
            "review the other one and pin it by grandrounds overlay --wheel"
        )
        yield Finding("failure", "package", message)
    elif "wheel" not in pinned:
        yield Finding("warning", "package", f"{name} is pinned by its files, not by a wheel; {APPLY} --wheel")
    else:
        yield Finding("ok", "package", f"{name}, unchanged")


def overlay(kit: Kit) -> Iterator[Finding]:
    """The participant's files are as they were locked, and the lock is this kit's."""
    if not (kit.local / LOCK).is_file():
        return
    content = read_json_object(kit.local / LOCK)
    owner = (content.get("project"), content.get("participant"))
    if owner != (kit.project, kit.name):
        message = (
            f"local/ was set for {owner[1]} of project {owner[0]}, but this is the kit of {kit.name} of {kit.project}"
        )
        yield Finding("failure", "overlay", f"{message}; {APPLY} {kit.folder} after removing {LOCK}")
        return
    files = content.get("files", {})
    edited = [name for name, digest in files.items() if not _is(kit.local / name, digest)]
    if edited:
        message = (
            f"{', '.join(edited)} changed since the overlay; check the change, then {APPLY} {kit.folder} to lock it"
        )
        yield Finding("warning", "overlay", message)
    else:
        yield Finding("ok", "overlay", f"{', '.join(files)} as they were locked")


def allowed_classes(kit: Kit) -> Iterator[Finding]:
    """FLARE builds our components here, and neither other functions of this package nor what goes around the gate."""
    resources = _in_force(kit, RESOURCES)
    if fault := classes_fault(resources, kit.kind == "site"):
        yield Finding("failure", "allowed classes", f"{RESOURCES}: {fault}; {APPLY} {kit.folder}")
    else:
        yield Finding("ok", "allowed classes", f"FLARE's own and {len(component_classes())} of this package")
    if added := added_classes(resources):
        message = (
            f"jobs may call {', '.join(added)} as well, with any arguments; take out of {RESOURCES} what is not needed"
        )
        yield Finding("warning", "allowed classes", message)


def authorisation(kit: Kit) -> Iterator[Finding]:
    """Nobody may send code with a job."""
    roles = roles_with_own_code(_in_force(kit, AUTHORIZATION))
    if roles:
        message = f"jobs of {', '.join(roles)} may bring code of their own (byoc); {APPLY} {kit.folder}, and restart"
        yield Finding("failure", "authorisation", message)
    else:
        yield Finding("ok", "authorisation", "no job may bring code of its own")


def logs(kit: Kit) -> Iterator[Finding]:
    """The site's logs stay at the site."""
    if _in_force(kit, RESOURCES).get("allow_log_streaming", True) is not False:
        message = f"the site's error log is sent to the server, and may name files; {APPLY} {kit.folder}"
        yield Finding("failure", "logs", message)
    else:
        yield Finding("ok", "logs", "stay here")


def privacy(kit: Kit) -> Iterator[Finding]:
    """The site has a policy that the gate understands."""
    path = kit.local / PRIVACY
    if not path.is_file():
        yield Finding("failure", "privacy", f"there is no {PRIVACY}: every job decides itself what leaves; {APPLY}")
        return
    content = read_json_object(path)
    policies = read_policies(content, PRIVACY)
    default = content["default_scope"]
    rules = ", ".join(f"{rule.kind.value}: {rule.treatment.name}" for rule in policies[default].releases) or "nothing"
    yield Finding("ok", "privacy", f"scope {default!r} lets out {rules}")
    if len(policies) > 1:
        others = ", ".join(sorted(policies.keys() - {default}))
        yield Finding(
            "warning", "privacy", f"a job may choose another scope ({others}); keep the weakest you accept only"
        )


def privacy_ledger(kit: Kit) -> Iterator[Finding]:
    """The site's privacy ledger is there and whole."""
    bookings = len(Ledger(kit.local / LEDGER_FOLDER, kit.name).content().bookings)
    yield Finding("ok", "privacy ledger", f"whole, {bookings} bookings")


def data_sets(kit: Kit) -> Iterator[Finding]:
    """Manifests can be read and files are where they say."""
    path = kit.local / CONFIG_NAME
    if not path.is_file():
        message = f"there is no local/{CONFIG_NAME}: only drawn images can be used; {APPLY} --datasets FILE"
        yield Finding("warning", "data sets", message)
        return
    for name, location in read_site_config(path).items():
        records = read_manifest(location.manifest).records
        labels = sorted({record.label for record in records if record.label})
        found = ", ".join(labels) if labels else "none"
        splits = ", ".join(f"{sum(r.split == split for r in records)} {split}" for split in ("train", "val", "test"))
        message = f"{name!r}: {splits}; labels: {found}; look at the images by grandrounds doctor --site-config"
        yield Finding("ok" if labels else "warning", "data sets", message)


def roster(kit: Kit) -> Iterator[Finding]:
    """The server's list of sites that must be there can be read; a damaged one stops every run."""
    names = read_roster(kit.local / ROSTER)
    yield Finding("ok", "roster", f"must be there for every job: {', '.join(names) or 'nobody'}")


def storage(kit: Kit) -> Iterator[Finding]:
    """Jobs and results are where nobody tidies up."""
    root = Path(component(_in_force(kit, RESOURCES), JOB_MANAGER).get("args", {}).get("uri_root", TEMPORARY[0]))
    if any(root.is_relative_to(place) for place in TEMPORARY) and not root.is_relative_to(kit.folder):
        yield Finding(
            "failure", "storage", f"jobs and results are in {root}, which is tidied up; {APPLY} --storage DIR"
        )
    else:
        yield Finding("ok", "storage", f"jobs and results are in {root}")


def _in_force(kit: Kit, name: str) -> dict[str, Any]:
    """A file of the kit as FLARE reads it: the participant's own before the default."""
    own = kit.local / name
    return read_json_object(own if own.is_file() else kit.local / f"{name}{DEFAULT}")


def _is(path: Path, digest: str) -> bool:
    return path.is_file() and file_digest(path) == digest
