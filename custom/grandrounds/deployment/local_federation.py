"""A federation on one machine, with real kits, certificates and processes, inside one folder."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from grandrounds.deployment.code_digest import PACKAGE
from grandrounds.deployment.job_watch import admin_session, connected_sites
from grandrounds.deployment.kit.machine import port_fault
from grandrounds.deployment.kit.overlay import Settings, apply_overlay
from grandrounds.deployment.kit.provision import PROJECT, local_project, provision, read_project, write_project
from grandrounds.deployment.kit.read import Kit, processes_of, read_kit
from grandrounds.deployment.kit.service import OUTCOME_SECONDS, OUTCOME_WAIT
from grandrounds.deployment.kit.shipped import policy_name
from grandrounds.deployment.processes import await_end, signal_processes, start_program
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.proxy import PROXY_VARIABLE
from grandrounds.files import read_json_object, write_json

DESCRIPTION = "federation.json"
HOME, TEMPORARY_FILES = "home", "temporary"
PARTS = (HOME, TEMPORARY_FILES, "logs")
"""The folders into which participants write beside their kits."""
START_SECONDS = 300.0
STOP_SECONDS = 40.0
PROBE_SECONDS = 0.5
OUTSIDE_VARIABLES = ("GRANDROUNDS_", "NVFL", "XDG_", "MPLCONFIGDIR", "TORCH_HOME")
"""Prefixes of variables that would let a participant write outside its folder."""


@dataclass(frozen=True)
class Federation:
    """The kits of a federation on this machine: its folders, and the names of the kits in them.

    ``proxies`` are addresses of HTTP proxies through which sites reach the server, by site.
    """

    folder: Path
    kits: Path
    server: str
    sites: tuple[str, ...]
    operator: str
    researcher: str
    proxies: dict[str, str] = field(default_factory=dict)

    def kit(self, name: str) -> Kit:
        """The kit of a participant."""
        return read_kit(self.kits / name)


def prepare(
    folder: Path,
    sites: Sequence[str],
    port: int,
    settings: Mapping[str, Settings] | None = None,
    project: Path = PROJECT,
) -> Federation:
    """Make the kits of a federation on this machine and apply our overlay to them.

    Args:
        folder: new or empty.
        sites: names of the hospitals.
        port: of the server, free.
        settings: of the overlays of server and sites, by name.
        project: the description from which people, server and builders are taken.

    Raises:
        ConfigurationError: if the folder is in use, the port is taken, the project has no operator or researcher, or a
            policy does not fit the number of sites.
    """
    folder = folder.absolute()
    if folder.exists() and any(folder.iterdir()):
        raise ConfigurationError(f"{folder} is not empty; choose another folder, or take the federation in it down")
    require_free_port(port)
    description = local_project(read_project(project), sites, port)
    roles = {entry.get("role", entry["type"]): str(entry["name"]) for entry in description["participants"]}
    missing = [role for role in ("server", "project_admin", "lead") if role not in roles]
    if missing:
        raise ConfigurationError(f"{project}: there is no participant with the role {', '.join(missing)}")
    for part in PARTS:
        (folder / part).mkdir(parents=True)
    write_project(description, folder / "project.yml")
    kits = provision(folder / "project.yml", folder / "kits")
    for name in (roles["server"], *sites):
        given = (settings or {}).get(name) or Settings()
        if name in sites and given.privacy is None:
            given = replace(given, policy=policy_name(given.policy, len(sites)))
        apply_overlay(read_kit(kits / name), given)
    federation = Federation(folder, kits, roles["server"], tuple(sites), roles["project_admin"], roles["lead"])
    write_json(folder / DESCRIPTION, asdict(federation), default=str)
    return federation


def load(folder: Path) -> Federation:
    """The federation in a folder.

    Raises:
        ConfigurationError: if there is none.
    """
    path = folder.absolute() / DESCRIPTION
    if not path.is_file():
        raise ConfigurationError(f"{folder} has no federation; start one with grandrounds poc up {folder}")
    content = read_json_object(path)
    paths = {"folder": folder.absolute(), "kits": Path(content["kits"]), "sites": tuple(content["sites"])}
    return Federation(**{**content, **paths})


def start(federation: Federation, seconds: float = START_SECONDS) -> None:
    """Start the server and all sites, and wait until the server sees all of them.

    Raises:
        ConfigurationError: if the server's port is taken.
        GrandRoundsError: if they are not there in time; everything is stopped again, and the logs are named.
    """
    require_free_port(federation.kit(federation.server).port)
    for name in (federation.server, *federation.sites):
        start_participant(federation, name)
    try:
        await_clients(federation, federation.sites, seconds)
    except BaseException:
        stop_federation(federation)
        raise


def start_participant(federation: Federation, name: str) -> int:
    """Start one participant's FLARE as its administrator would; FLARE's script restarts it when it dies.

    Returns:
        The script's process id.
    """
    log = federation.folder / "logs" / f"{name}.txt"
    with log.open("ab") as stream:
        kit = federation.kits / name
        command = ["bash", str(kit / "startup" / "sub_start.sh")]
        return start_program(command, stream, kit, _environment(federation, name)).pid


def await_clients(federation: Federation, sites: Sequence[str], seconds: float = START_SECONDS) -> None:
    """Wait until the server sees these sites.

    Raises:
        GrandRoundsError: if it does not in time; the sites that are missing and the logs are named.
    """
    deadline = time.monotonic() + seconds
    missing, reason = list(sites), "the server does not answer"
    while missing and time.monotonic() < deadline:
        time.sleep(PROBE_SECONDS)
        try:
            with admin_session(federation.kit(federation.operator)) as session:
                while missing and time.monotonic() < deadline:
                    missing = [site for site in sites if site not in connected_sites(session)]
                    reason = f"the server does not see {', '.join(missing)}"
                    time.sleep(PROBE_SECONDS if missing else 0)
        except GrandRoundsError as error:
            reason = str(error)
    if missing:
        raise GrandRoundsError(f"{reason} within {seconds:g} s; see {federation.folder / 'logs'} and the kits' log.txt")


def stop_federation(federation: Federation, seconds: float = STOP_SECONDS) -> list[int]:
    """Stop every process of the federation by FLARE's own command, and the remaining ones by signals.

    Returns:
        Ids of the processes that had to be killed.
    """
    if not processes_of(federation.kits):
        return []
    try:
        with admin_session(federation.kit(federation.operator)) as session:
            # FLARE's server does not shut down under a job that runs.
            for running in session.get_system_info().job_info:
                session.abort_job(running.job_id)
            session.shutdown("all", wait=False)
        await_end(lambda: bool(processes_of(federation.kits)), seconds, PROBE_SECONDS)
    except GrandRoundsError:
        pass  # without a server the command reaches no site
    _signal_all(federation, signal.SIGTERM)
    await_end(lambda: bool(processes_of(federation.kits)), 5.0, PROBE_SECONDS)
    return _signal_all(federation, signal.SIGKILL)


def require_free_port(port: int) -> None:
    """Raise ``ConfigurationError`` if a server cannot listen on the port, for example because another program does."""
    if fault := port_fault(port):
        raise ConfigurationError(
            f"port {port} cannot be used ({fault}); stop the program that uses it, or choose another by --port, in a new "
            "folder"
        )


def _signal_all(federation: Federation, number: signal.Signals) -> list[int]:
    remaining = processes_of(federation.kits)
    signal_processes(remaining, number)
    return remaining


def _environment(federation: Federation, name: str) -> dict[str, str]:
    """Environment of a participant's processes: this Python, and paths inside the folder for all that they write."""
    folder = federation.folder
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OUTSIDE_VARIABLES)}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    paths = {"HOME": str(folder / HOME), "TMPDIR": str(folder / TEMPORARY_FILES), "PATH": path}
    # This also works in a checkout that is not installed.
    modules = os.pathsep.join([str(PACKAGE.parent), *filter(None, [kept.get("PYTHONPATH")])])
    waits = {OUTCOME_WAIT: OUTCOME_SECONDS}
    proxy = {PROXY_VARIABLE: federation.proxies[name]} if name in federation.proxies else {}
    return {**kept, **paths, **waits, **proxy, "PYTHONPATH": modules, "PYTHONDONTWRITEBYTECODE": "1"}
