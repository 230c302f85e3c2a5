"""What a training child may read and write: its job's images, this machine's programs, the site's folder of the run."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.fl_context import FLContext

from grandrounds.data.site import CONFIG_NAME, DatasetLocation, site_datasets
from grandrounds.federation.site.features import VARIABLE
from grandrounds.protocol.messages import Payload
from grandrounds.protocol.paths import OWNER, PRIVACY_FOLDER, STATES, data_folders, in_kit, weights_folder

SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc", "/sys", "/nix/store")
OF_THE_MACHINE = (
    "cpuinfo",
    "devices",
    "driver",
    "filesystems",
    "loadavg",
    "meminfo",
    "modules",
    "stat",
    "sys",
    "version",
)
"""In /proc, whose other entries are of other processes."""
DEVICES = ("null", "zero", "full", "random", "urandom", "shm", "nvidia*", "nvidia-caps/*", "dri", "kfd")


def readable_paths(payload: Payload, fl_ctx: FLContext, folder: Path) -> list[str]:
    """Files and folders that the child of a job may read.

    Of the site's data sets these are the job's and those that the site calls public, whose files must be in the folder that
    the site names: a symbolic link out of it cannot be followed. A folder around the keys, the ledger, other runs or another
    data set is opened without them.

    Args:
        payload: of a task of the job.
        fl_ctx: FLARE's context of the site.
        folder: the site's of the run.
    """
    workspace, site = fl_ctx.get_engine().get_workspace(), fl_ctx.get_identity_name()
    root, local = Path(workspace.get_root_dir()), Path(workspace.get_site_config_dir())
    problem = payload.values["problem"]
    known = site_datasets(site, data_folders(fl_ctx))
    readable = {name: location for name, location in known.items() if name == problem["dataset"] or location.public}
    opened = [path for location in readable.values() for path in _of(location)]
    others = [path for location in known.values() for path in _of(location)]
    hidden = [path for path in others if not any(other.is_relative_to(path) for other in opened)]
    hidden += [path.resolve() for path in (root / "startup", local / PRIVACY_FOLDER, root / STATES)]
    named = [place / name for place in data_folders(fl_ctx) for name in (CONFIG_NAME, f"{site}/{CONFIG_NAME}")]
    job = fl_ctx.get_job_id()
    named += [Path(workspace.get_app_dir(job)), Path(workspace.get_job_meta_path(job))]
    named += [weights_folder(), Path(torch.hub.get_dir()) / "checkpoints"]
    named += [path for path in _files_in(problem) if not in_kit(fl_ctx) or path.is_relative_to(local.resolve())]
    libraries = [sys.prefix, sys.base_prefix, *sys.path, *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)]
    programs = [Path(path).absolute() for path in libraries if path and not root.is_relative_to(Path(path).absolute())]
    system = [Path(path) for path in (*SYSTEM, *(f"/proc/{name}" for name in OF_THE_MACHINE))]
    asked = (*system, *opened, *named, *programs)
    within = (inside for path in asked for inside in _without(path.resolve(), hidden))
    return list(dict.fromkeys((*map(str, within), str(folder.parent / OWNER))))


def writable_paths(folder: Path, cache: Path) -> list[str]:
    """Files and folders that the child may read and write: its own, and devices."""
    devices = [path for pattern in DEVICES for path in Path("/dev").glob(pattern)]
    kept = [os.environ[VARIABLE]] if os.environ.get(VARIABLE) else []
    return list(map(str, (folder, cache, *kept, "/proc/self", *devices)))


def _of(location: DatasetLocation) -> list[Path]:
    chosen = _files_in(location.model.changes) if location.model else []
    return [Path(location.manifest).resolve(), Path(location.root).resolve(), *chosen]


def _files_in(values: Any) -> list[Path]:
    """Paths of files among plain values, at any depth."""
    if isinstance(values, str) and os.sep in values and "\0" not in values:
        return [Path(values).resolve()]
    inner = values.values() if isinstance(values, dict) else values if isinstance(values, list | tuple) else ()
    return [path for value in inner for path in _files_in(value)]


def _without(path: Path, hidden: Collection[Path]) -> Iterator[Path]:
    """A folder, or where something hidden is in it, all else that is in it; nothing of what is hidden itself."""
    if any(path.is_relative_to(other) for other in hidden):
        return
    if not path.is_dir() or not any(other.is_relative_to(path) for other in hidden):
        yield path
        return
    for inside in path.iterdir():
        yield from _without(inside, hidden)
