"""The tasks that there are: the package's own, and those of plug-ins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grandrounds.errors import ConfigurationError
from grandrounds.plugins import Registry
from grandrounds.protocol.task import Task
from grandrounds.protocol.task_multi import MultiLabel
from grandrounds.protocol.task_single import SingleLabel

SINGLE: Task = SingleLabel()
FINDINGS: Task = MultiLabel()
_OWN: Mapping[str, Task] = {task.name: task for task in (SINGLE, FINDINGS)}
_TASKS: Registry[Task] = Registry("task")


def register_task(task: Task) -> Task:
    """Register a task; a problem of a job names it as ``problem.task``.

    Raises:
        ConfigurationError: if the name is taken or has other characters than lower-case letters, digits and ``_``.

    Example::

        grades = register_task(Grades())
    """
    _TASKS.require_name(getattr(task, "name", task))
    _TASKS.add(task.name, task, type(task))
    return task


def task_named(name: str) -> Task:
    """The task of that name.

    Raises:
        ConfigurationError: if there is none; the names are listed.
    """
    known = {**_OWN, **_TASKS.all(_OWN)} if name not in _OWN else _OWN
    if name not in known:
        raise ConfigurationError(f"problem.task must be one of {', '.join(known)}, got {name!r}")
    return known[name]


def task_entry(task: Task) -> dict[str, str]:
    """The entry that :func:`task_of` reads; none where each image has one class."""
    return {} if task is SINGLE else {"task": task.name}


def task_of(content: Mapping[str, Any]) -> Task:
    """The task that a problem's or a partition's JSON object names; without its key each image has one class.

    Raises:
        ConfigurationError: if there is no such task.
    """
    return task_named(content.get("task", SINGLE.name))
