"""Folders of finished jobs in a kit, which FLARE never removes."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from grandrounds.deployment.kit.read import PROCESSES, Kit, running_processes
from grandrounds.federation.channels import is_job_id

DAY = 86400.0


@dataclass(frozen=True)
class OldJob:
    """FLARE's folder of a job: its size in bytes, and the days since a file in it was changed."""

    folder: Path
    size: int
    days: float


def old_jobs(kit: Kit, days: float) -> list[OldJob]:
    """The jobs in a kit that have no process and have changed nothing for some days, oldest first.

    Models, states, the ledger, the audit trail and the server's stored results are in other folders.
    """
    running = _arguments_of(kit)
    jobs = [_described(folder) for folder in job_folders(kit)]
    old = [job for job in jobs if job.days >= days and job.folder.name not in running]
    return sorted(old, key=lambda job: -job.days)


def job_folders(kit: Kit) -> list[Path]:
    """FLARE's folders of jobs in a kit, also of running ones."""
    return [folder for folder in kit.folder.iterdir() if folder.is_dir() and is_job_id(folder.name)]


def remove(jobs: list[OldJob]) -> None:
    """Remove the folders of these jobs."""
    for job in jobs:
        shutil.rmtree(job.folder)


def _described(folder: Path) -> OldJob:
    stats = [path.lstat() for path in (folder, *folder.rglob("*"))]
    size = sum(stat.st_blocks * 512 for stat in stats)
    return OldJob(folder, size, (time.time() - max(stat.st_mtime for stat in stats)) / DAY)


def _arguments_of(kit: Kit) -> str:
    """The command lines of the kit's processes: those of jobs name the job."""
    texts = []
    for number in running_processes(kit):
        try:
            texts.append((PROCESSES / str(number) / "cmdline").read_text(errors="replace"))
        except OSError:  # it has ended
            continue
    return "\n".join(texts)
