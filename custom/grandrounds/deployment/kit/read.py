"""A startup kit: the folder that FLARE's provisioning makes for a server, a site or a person.

A kit is only read here, also while its processes run.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grandrounds.errors import ConfigurationError
from grandrounds.files import read_json_object

Kind = Literal["server", "site", "person"]
KIT_MARKERS: dict[str, Kind] = {"fed_server.json": "server", "fed_client.json": "site", "fed_admin.json": "person"}
CERTIFICATES: dict[Kind, tuple[str, str]] = {
    "server": ("server.crt", "server.key"),
    "site": ("client.crt", "client.key"),
    "person": ("client.crt", "client.key"),
}
PROCESSES = Path("/proc")
OWN_PID = "daemon_pid.fl"
"""Of ``grandrounds kit start``. FLARE's own start script reads it too, and does not start a kit a second time."""


@dataclass(frozen=True)
class Kit:
    """A kit's folder, its participant's kind and name, the project's name, and the server's host and port."""

    folder: Path
    kind: Kind
    name: str
    project: str
    host: str
    port: int

    @property
    def startup(self) -> Path:
        """Keys, certificates and start scripts, made by provisioning and never changed."""
        return self.folder / "startup"

    @property
    def local(self) -> Path:
        """The participant's own files: allowed classes, rights, privacy, data sets."""
        return self.folder / "local"

    def own_file(self, name: str) -> dict[str, Any]:
        """A JSON file of the participant's own; empty where there is none.

        Raises:
            ConfigurationError: if it is damaged.
        """
        path = self.local / name
        return read_json_object(path) if path.is_file() else {}

    @property
    def certificate(self) -> Path:
        """The participant's certificate."""
        return self.startup / CERTIFICATES[self.kind][0]

    @property
    def key(self) -> Path:
        """The participant's private key."""
        return self.startup / CERTIFICATES[self.kind][1]

    @property
    def authority(self) -> Path:
        """The certificate of the project's authority."""
        return self.startup / "rootCA.pem"


def read_kit(folder: Path) -> Kit:
    """Read a startup kit.

    Raises:
        ConfigurationError: if the folder is not a kit, or one of its files is missing, damaged or incomplete.
    """
    folder = folder.absolute()
    markers = [name for name in KIT_MARKERS if (folder / "startup" / name).is_file()]
    if not markers:
        raise ConfigurationError(
            f"{folder} is no startup kit: there is no {', '.join(KIT_MARKERS)} in its folder startup; name the folder that "
            "the operator of the server has given you"
        )
    path = folder / "startup" / markers[0]
    content = read_json_object(path)
    try:
        return _kit(folder, KIT_MARKERS[markers[0]], content)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{path}: {type(error).__name__} {error}; ask the operator for the kit again"
        ) from error


def require_owner(folder: Path) -> None:
    """Check that what is written in a kit will belong to the user as whom it runs.

    Raises:
        ConfigurationError: if the folder belongs to another user, who may not read or extend the new files.
    """
    owner = folder.stat().st_uid
    if owner != os.geteuid():
        try:
            name = pwd.getpwuid(owner).pw_name
        except KeyError:  # of a container
            name = f"#{owner}"
        raise ConfigurationError(f"{folder} belongs to the user {name}: run this command as that user (sudo -u {name})")


def running_processes(kit: Kit) -> list[int]:
    """Ids of the kit's FLARE processes, ascending, those of its jobs included.

    Without ``/proc`` only FLARE's pid files are read.
    """
    return processes_of(kit.folder) if PROCESSES.is_dir() else _from_pid_files(kit.folder)


def processes_of(folder: Path) -> list[int]:
    """Ids of all FLARE processes and start scripts whose arguments name a path in ``folder``, ascending."""
    wanted = folder.resolve()
    entries = [entry for entry in PROCESSES.iterdir() if entry.name.isdigit() and int(entry.name) != os.getpid()]
    return sorted(int(entry.name) for entry in entries if _is_flare_in(wanted, _arguments(entry)))


def supervisor(kit: Kit) -> list[int]:
    """The process that starts this kit's FLARE again: of ``grandrounds kit start``, or of FLARE's own start script."""
    try:
        number = int((kit.folder / OWN_PID).read_text())
        arguments = (PROCESSES / str(number) / "cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return []
    ours = b"kit" in arguments and b"start" in arguments
    return [number] if ours or number in processes_of(kit.folder) else []


def _is_flare_in(folder: Path, arguments: Sequence[str]) -> bool:
    flare = any("nvflare.private" in part or part.endswith("sub_start.sh") for part in arguments)
    return flare and any(_inside(part, folder) for part in arguments)


def _kit(folder: Path, kind: Kind, content: dict[str, Any]) -> Kit:
    if kind == "person":
        admin = content["admin"]
        return Kit(folder, kind, admin["username"], admin["project_name"], admin["host"], _port(admin["port"]))
    server = content["servers"][0]
    host, _, port = server["service"]["target"].rpartition(":")
    name = content["client"]["fqsn"] if kind == "site" else server.get("identity") or host
    return Kit(folder, kind, name, server["name"], host, _port(port))


def _port(value: Any) -> int:
    if not 0 < int(value) < 65536:
        raise ValueError(f"{value} is not a port")
    return int(value)


def _arguments(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # it has ended, or belongs to another user
        return []


def _inside(argument: str, folder: Path) -> bool:
    return argument.startswith("/") and Path(os.path.realpath(argument)).is_relative_to(folder)


def _from_pid_files(folder: Path) -> list[int]:
    processes = []
    for name in ("pid.fl", "daemon_pid.fl"):
        try:
            number = int((folder / name).read_text())
            os.kill(number, 0)
        except (OSError, ValueError):
            continue
        processes.append(number)
    return sorted(processes)
