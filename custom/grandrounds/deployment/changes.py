"""What a job changes of its options' defaults: the file that a person edits, and the job that states every value."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grandrounds.deployment.jobs import CLIENT_CONFIG, JOB_PARTS, JOBS, SERVER_CONFIG, Job, load_job
from grandrounds.json_files import read_json_object
from grandrounds.option_keys import option_defaults, option_types

CHANGES_FILE = "changes.json"
"""By part the options whose values differ from their defaults, or that have none."""
Changes = Mapping[str, Mapping[str, Any]]


def changes_of(job: Job) -> dict[str, dict[str, Any]]:
    """The options of a job, by part, that differ from their defaults or have none.

    Example:
        >>> changes_of(load_job("fedperl"))["executor"]["steps"]
        12
    """
    return {part: _changed(job.options(part), option_defaults(job.component(part))) for part in JOB_PARTS}


def with_all_values(job: Job, changes: Changes) -> Job:
    """A copy of the job that states every option: the changes, and defaults for all others."""
    stated = Job(job.meta, copy.deepcopy(job.server), copy.deepcopy(job.client), job.source)
    problem = _all_values(job, "problem", changes)
    for part in ("controller", "executor"):
        values = _all_values(job, part, changes)
        options = stated.options(part)
        options.clear()
        options.update({"problem": problem, **values} if part == "controller" else values)
    return stated


def generated(name: str) -> dict[Path, str]:
    """The configuration files of one of the package's jobs, by path, as its ``changes.json`` and the defaults give them."""
    folder = JOBS / name
    job = with_all_values(load_job(folder), read_json_object(folder / CHANGES_FILE))
    files = {SERVER_CONFIG: job.server, CLIENT_CONFIG: job.client}
    return {folder / "app" / "config" / file: json.dumps(content, indent=2) + "\n" for file, content in files.items()}


def _changed(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    stated = {option: value for option, value in values.items() if option != "problem"}
    plain = json.loads(json.dumps(defaults))
    return {option: value for option, value in stated.items() if option not in plain or plain[option] != value}


def _all_values(job: Job, part: str, changes: Changes) -> dict[str, Any]:
    component = job.component(part)
    found = {**option_defaults(component), **changes.get(part, {})}
    return {option: found[option] for option in option_types(component) if option in found}
