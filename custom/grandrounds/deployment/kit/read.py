"""A startup kit: the folder that FLARE's provisioning makes for a server, a site or a person.

Nothing here starts, stops or writes anything: a kit is only read, also while its processes run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grandrounds.errors import ConfigurationError
from grandrounds.files import read_json_object

Kind = Literal["server", "site", "person"]
MARKERS: dict[str, Kind] = {"fed_server.json": "server", "fed_client.json": "site", "fed_admin.json": "person"}
CERTIFICATES: dict[Kind, tuple[str, str]] = {
    "server": ("server.crt", "server.key"),
    "site": ("client.crt", "client.key"),
    "person": ("client.crt", "client.key"),
}
PROCESSES = Path("/proc")


@dataclass(frozen=True)
class Kit:
    """What a kit says about itself.

    Attributes:
        folder: the kit.
        kind: of the participant.
        name: of the participant; jobs and records call a site so.
        project: the consortium's name.
        host: where the server is reached.
        port: there.
    """

    folder: Path
    kind: Kind
    name: str
    project: str
    host: str
    port: int

    @property
    def startup(self) -> Path:
        """What provisioning made: keys, certificates, start scripts. Nobody changes it."""
        return self.folder / "startup"

    @property
    def local(self) -> Path:
        """What the participant decides: allowed classes, rights, privacy, data sets."""
        return self.folder / "local"

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
        ConfigurationError: if the folder is no kit, or a file of it is missing, damaged or incomplete; the file is named.
    """
    folder = folder.absolute()
    found = [name for name in MARKERS if (folder / "startup" / name).is_file()]
    if not found:
        raise ConfigurationError(
            f"{folder} is no startup kit: there is no {', '.join(MARKERS)} in its folder startup; name the folder that "
            "the operator of the server has given you"
        )
    path = folder / "startup" / found[0]
    content = read_json_object(path)
    try:
        return _kit(folder, MARKERS[found[0]], content)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{path}: {type(error).__name__} {error}; ask the operator for the kit again"
        ) from error


def running_processes(kit: Kit) -> list[int]:
    """Ids of the kit's FLARE processes, its jobs' included, ascending; they name the kit's folder as their workspace.

    On systems without ``/proc`` only FLARE's own pid file is looked at.
    """
    return processes_of(kit.folder) if PROCESSES.is_dir() else _noted(kit.folder)


def processes_of(folder: Path) -> list[int]:
    """Ids of all FLARE processes and start scripts whose arguments name a place in ``folder``, ascending."""
    wanted = folder.resolve()
    found = []
    for entry in PROCESSES.iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            arguments = _arguments(entry)
            flare = any("nvflare.private" in part or part.endswith("sub_start.sh") for part in arguments)
            if flare and any(_inside(part, wanted) for part in arguments):
                found.append(int(entry.name))
    return sorted(found)


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
        raise ValueError(f"{value} is no port")
    return int(value)


def _arguments(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # it has ended in the meantime, or is somebody else's
        return []


def _inside(argument: str, folder: Path) -> bool:
    return argument.startswith("/") and Path(os.path.realpath(argument)).is_relative_to(folder)


def _noted(folder: Path) -> list[int]:
    found = []
    for name in ("pid.fl", "daemon_pid.fl"):
        try:
            number = int((folder / name).read_text())
            os.kill(number, 0)
        except (OSError, ValueError):
            continue
        found.append(number)
    return sorted(found)
