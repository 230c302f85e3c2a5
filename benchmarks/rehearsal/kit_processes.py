"""The processes of a kit and their children."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

from grandrounds.deployment.kit.read import processes_of

Found = TypeVar("Found")


def children_of(process: int, recursive: bool = False) -> list[int]:
    """Ids of the running children of a process, ascending."""
    return sorted(told_of(process, lambda parent: [child.pid for child in parent.children(recursive)], []))


def running_module(kit: Path, module: str) -> list[int]:
    """Ids of a kit's processes that run a certain module of FLARE, ascending."""
    return [process for process in processes_of(kit) if module in _command(process)]


def training_child(job: int) -> int | None:
    """The process in which a site's job trains, which is a fork of its keeper; None while there is none.

    What the process has started is left to the keeper at its end, and has another command.
    """
    trainers = (child for keeper in _training(job) for child in _training(keeper))
    return next(trainers, None)


def _training(parent: int) -> list[int]:
    return [child for child in children_of(parent) if "training_child" in _command(child)]


def living_in(home: Path) -> list[int]:
    """Ids of all processes whose home folder this is, ascending: those of a federation and all that they have started."""
    return sorted(
        process
        for process in psutil.pids()
        if told_of(process, lambda found: found.environ().get("HOME"), "") == str(home)
    )


def told_of(process: int, read: Callable[[psutil.Process], Found], ended: Found) -> Found:
    """What is read of a process, or ``ended`` if it has ended or is another user's."""
    try:
        return read(psutil.Process(process))
    except psutil.Error:
        return ended


def _command(process: int) -> str:
    return told_of(process, lambda found: " ".join(found.cmdline()), "")
