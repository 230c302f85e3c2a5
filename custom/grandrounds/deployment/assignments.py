"""Options as text, ``part.option=value``: what a command line takes and shows; everything behind it passes typed values."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from grandrounds.deployment.jobs import Job, Key, Values
from grandrounds.errors import ConfigurationError
from grandrounds.option_annotations import fits
from grandrounds.option_keys import option_types


def parsed(job: Job, assignments: Iterable[str]) -> Values:
    """The values of assignments, each read once with the annotation of its option; later ones win.

    Args:
        job: whose options are set.
        assignments: ``part.option=value`` with part ``controller``, ``executor`` or ``problem``; the value is JSON, or text
            where the option takes text.

    Raises:
        ConfigurationError: for a part or an option that does not exist (the nearest one is named).

    Example:
        >>> from grandrounds.deployment.jobs import load_job
        >>> parsed(load_job("fedperl"), ["controller.peers=3", "controller.run_name=2026"])
        {('controller', 'peers'): 3, ('controller', 'run_name'): '2026'}
    """
    values = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        part, dot, option = name.partition(".")
        if not equals or not dot:
            raise ConfigurationError(f"--set {assignment}: expected part.option=value")
        job.require_option(part, option)
        values[part, option] = _value(text, option_types(job.component(part))[option])
    return values


def with_options(job: Job, assignments: Iterable[str]) -> Job:
    """A copy of the job with options set from text; as :func:`parsed`."""
    return job.with_values(parsed(job, assignments))


def assignment(key: Key, value: Any) -> str:
    """An option as it is given on a command line.

    Example:
        >>> assignment(("problem", "backbone"), "compact"), assignment(("controller", "grace"), None)
        ('problem.backbone=compact', 'controller.grace=null')
    """
    return f"{'.'.join(key)}={shown(value)}"


def shown(value: Any) -> str:
    """A value as a command line takes it: JSON, but text without quotes where that is no other JSON value."""
    return value if isinstance(value, str) and _json(value) == value else json.dumps(value)


def _value(text: str, annotation: Any) -> Any:
    value = _json(text)
    return text if not fits(value, annotation) and fits(text, annotation) else value


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
