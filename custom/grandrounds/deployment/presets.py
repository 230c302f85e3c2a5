"""Presets: named sets of options that a job offers, and a record of what a run has made of them.

A job folder may hold ``presets.json``: by name an object with the parts ``controller``, ``executor`` and ``problem`` and
the options that the preset sets there. ``paper`` is a publication's text, ``code`` its authors' released code,
``recommended`` what this project advises where they differ.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from grandrounds.deployment.jobs import PARTS, Job, with_options
from grandrounds.errors import ConfigurationError
from grandrounds.files import read_json_object

PRESETS_FILE = "presets.json"


def presets_of(job: Job) -> dict[str, dict[str, dict[str, Any]]]:
    """The presets that a job offers, by name.

    Raises:
        ConfigurationError: if the file is no JSON object, or a preset has another part than a job has.
    """
    path = job.source / PRESETS_FILE if job.source else None
    if path is None or not path.is_file():
        return {}
    presets = read_json_object(path)
    for name, parts in presets.items():
        if not isinstance(parts, dict) or not all(part in PARTS and isinstance(parts[part], dict) for part in parts):
            raise ConfigurationError(f"{path}: preset {name!r} must be an object with {', '.join(PARTS)}")
    return presets


def with_preset(job: Job, preset: str | None, assignments: Sequence[str] = ()) -> Job:
    """A copy of the job with a preset's options, and others set after them.

    Args:
        job: stays as it is.
        preset: a preset's name; None for the options as they are in the job's files.
        assignments: ``part.option=value``; they win. Those that change an option of the preset are named in the record.

    Raises:
        ConfigurationError: if the job has no such preset (its presets are named), or an option does not exist.
    """
    if preset is None:
        return with_options(job, assignments)
    presets = presets_of(job)
    if preset not in presets:
        near = difflib.get_close_matches(preset, presets, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigurationError(
            f"job {job.name} has no preset {preset!r}{hint} (presets: {', '.join(sorted(presets)) or 'none'})"
        )
    changed = with_options(job, [*_assignments(presets[preset]), *assignments])
    touched = [
        f"{part}.{option}"
        for part, options in presets[preset].items()
        for option, value in options.items()
        if changed.options(part)[option] != value
    ]
    label = f"{preset}, but {', '.join(sorted(touched))}" if touched else preset
    changed.options("controller")["preset"] = label
    return changed


def _assignments(preset: dict[str, dict[str, Any]]) -> Iterable[str]:
    return [
        f"{part}.{option}={json.dumps(value)}" for part, options in preset.items() for option, value in options.items()
    ]
