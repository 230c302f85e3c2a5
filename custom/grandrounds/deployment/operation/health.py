"""Whether a participant can take part in the next job: checks that are quick, read only, and independent of each other."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from grandrounds.data.fitness import Finding
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import read_manifest
from grandrounds.data.site import CONFIG_NAME, DatasetLocation, locate_dataset
from grandrounds.deployment.kit.certificates import WARNING_DAYS, certificate_days
from grandrounds.deployment.kit.findings import Check, guarded
from grandrounds.deployment.kit.machine import GIB, GOOD_DISK, MIN_DISK, listens
from grandrounds.deployment.kit.overlay import LEDGER_FOLDER
from grandrounds.deployment.kit.read import PROCESSES, Kit, running_processes, supervisor
from grandrounds.deployment.kit.safeguards import privacy
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.identity.copies import refused_copies, refused_here
from grandrounds.federation.proxy import proxy_url
from grandrounds.json_files import read_json_object
from grandrounds.privacy.inventory import dataset_identity, files_state
from grandrounds.privacy.ledger.ledger import Ledger, LedgerContent
from grandrounds.privacy.ledger.lines import DatasetIdentity
from grandrounds.privacy.ledger.recovery import noted_head
from grandrounds.protocol.paths import STATES

RECENT_SECONDS = 24 * 3600.0
"""How long what has happened is a warning: a refusal, the failure of a run, a copy of a kit."""
LOOKED_FOR = 64
"""Image files of a data set that are looked for; the doctor reads all."""
MOST_COMPARED = 20_000
"""Images of a data set whose files are compared with those of the last job at every look."""


def examine_health(kit: Kit) -> list[Finding]:
    """What is not as it must be, and what is fine, at the machine of a server or a site; the network is not used."""
    checks: list[Check] = [certificates, _disk, _processes]
    checks += [_connection, _identity, _policy, _ledger, _data_sets] if kit.kind == "site" else [_copies]
    return list(chain.from_iterable(guarded(check, kit) for check in checks))


def certificates(kit: Kit) -> Iterator[Finding]:
    """The kit's certificates are valid for a month."""
    left = certificate_days(kit)
    if left < 0:
        yield Finding("failure", "certificates", f"a certificate expired {-left:.0f} days ago; grandrounds kit renew")
    elif left < WARNING_DAYS:
        yield Finding("warning", "certificates", f"a certificate expires in {left:.0f} days; grandrounds kit renew")
    else:
        yield Finding("ok", "certificates", f"{left:.0f} days left")


def _disk(kit: Kit) -> Iterator[Finding]:
    """There is room for checkpoints, decoded images and logs."""
    free = shutil.disk_usage(kit.folder).free
    message = f"{free / GIB:.1f} GiB free at {kit.folder}"
    level = "failure" if free < MIN_DISK else "warning" if free < GOOD_DISK else "ok"
    advice = "" if level == "ok" else "; grandrounds kit clean removes folders of old jobs"
    yield Finding(level, "disk", message + advice)  # type: ignore[arg-type]


def _processes(kit: Kit) -> Iterator[Finding]:
    """FLARE runs, listens if it is the server's, and is started again when it dies."""
    running = running_processes(kit)
    if not running:
        message = f"FLARE does not run; see {kit.folder / 'log.txt'}, and start it by grandrounds kit start"
        yield Finding("failure", "processes", message)
        return
    if kit.kind == "server" and not listens(running, kit.port):
        message = f"FLARE runs, but does not listen on port {kit.port}; grandrounds doctor --kit finds why"
        yield Finding("failure", "processes", message)
    elif PROCESSES.is_dir() and not supervisor(kit):
        message = (
            "FLARE runs, but what starts it again after a crash has ended; run grandrounds kit stop, then start it as "
            "before, when no job runs"
        )
        yield Finding("warning", "processes", message)
    else:
        yield Finding("ok", "processes", f"FLARE runs (process {running[0]})")


def _connection(kit: Kit) -> Iterator[Finding]:
    """FLARE's client has a connection to the server, or to the proxy before it; the server is not asked."""
    running = running_processes(kit)
    proxy = proxy_url()
    port = urlsplit(proxy).port if proxy else kit.port
    remote = _remote_ports(running)
    if not running or remote is None:
        return
    if port in remote:
        yield Finding("ok", "connection", f"to port {port} of {'the proxy' if proxy else kit.host}")
    else:
        message = f"FLARE runs and has no connection to port {port} of {'the proxy' if proxy else kit.host}"
        yield Finding("warning", "connection", f"{message}; it tries again by itself: is the server up? See log.txt")


def _remote_ports(processes: Sequence[int]) -> set[int] | None:
    """The ports to which these processes are connected; None where one cannot be looked into."""
    ports: set[int] = set()
    for number in processes:
        try:
            connections = psutil.Process(number).net_connections(kind="tcp")
        except psutil.AccessDenied:
            return None
        except psutil.Error:  # it has ended
            continue
        ports |= {
            connection.raddr.port
            for connection in connections
            if connection.status == psutil.CONN_ESTABLISHED and connection.raddr
        }
    return ports


def _identity(kit: Kit) -> Iterator[Finding]:
    """No copy of this kit is connected in its place."""
    if reason := refused_here(kit.folder):
        yield Finding("failure", "identity", f"the server refuses this kit: {reason}")


def _copies(kit: Kit) -> Iterator[Finding]:
    """No kit was used at two places in the last day."""
    for seen in refused_copies(kit.folder, RECENT_SECONDS):
        text = f"{seen.what}: a second copy of its kit was refused {seen.ago / 60:.0f} min ago"
        yield Finding("warning", "identity", f"{text}; if nobody there knows of it, renew the kit: its key was taken")


def _policy(kit: Kit) -> Iterator[Finding]:
    """The site's privacy policy can be used; what it says is the doctor's matter."""
    return (finding for finding in privacy(kit) if finding.level == "failure")


def _ledger(kit: Kit) -> Iterator[Finding]:
    """The privacy ledger is complete, and has the head that the server has last returned."""
    content = _read_ledger(kit)
    content.chain.require_head(noted_head(kit.folder / STATES))
    yield Finding("ok", "ledger", f"complete, {len(content.bookings)} releases")


def _data_sets(kit: Kit) -> Iterator[Finding]:
    """The images of each data set are there, and are those of the last job."""
    path = kit.local / CONFIG_NAME
    if not path.is_file():
        return
    content: LedgerContent | None = None
    with suppress(GrandRoundsError):  # which the check of the ledger reports
        content = _read_ledger(kit)
    for name in read_json_object(path).get("datasets", {}):
        try:
            yield _data_set(name, locate_dataset(kit.name, name, [kit.local]), content)
        except (GrandRoundsError, OSError) as error:
            yield Finding("failure", "data sets", str(error))


def _data_set(name: str, location: DatasetLocation, content: LedgerContent | None) -> Finding:
    records = read_manifest(location.manifest, choices=location.keys)
    identity, names = dataset_identity(name, records), [record.image for record in records]
    looked = names[:: max(1, len(names) // LOOKED_FOR)]
    missing = _missing(location.root, looked)
    if missing:
        level = "failure" if len(missing) == len(looked) else "warning"
        message = f"{len(missing)} of {len(looked)} images that were looked for are not in {location.root}"
        return Finding(level, "data sets", f"{name!r}: {message}; is the folder mounted?")  # type: ignore[arg-type]
    when = ""
    if content is not None:
        content.require_known(identity)
        when = _changed_since(content, identity, names, location.root) if len(names) <= MOST_COMPARED else ""
    if when:
        message = f"image files have changed since a job has read them ({when}); the next job reads them again"
        return Finding("warning", "data sets", f"{name!r}: {message}, and what has changed is in its record")
    return Finding("ok", "data sets", f"{name!r}: {len(names)} images, reachable")


def _missing(root: Path, names: Sequence[str]) -> list[str]:
    """Images that are not there; of an archive, whose list of files is read, none."""
    if root.is_dir():
        return [name for name in names if not (root / name).is_file()]
    with open_images(root):
        return []


def _changed_since(content: LedgerContent, identity: DatasetIdentity, names: Sequence[str], root: Path) -> str:
    """When a job read other files of the same manifest; empty if the last one has read these, or none has any."""
    latest = content.latest(identity.name)
    if latest is None or latest.dataset != identity:
        return ""
    with open_images(root) as reader:
        return "" if files_state(reader, identity, names) == latest.state else latest.time


def _read_ledger(kit: Kit) -> LedgerContent:
    return Ledger(kit.local / LEDGER_FOLDER, kit.name).content()
