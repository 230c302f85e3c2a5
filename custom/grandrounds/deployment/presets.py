"""Presets: named sets of options that a job offers, and a record of what a run has made of them.

A job folder may hold ``presets.json``: by name an object with the parts ``controller``, ``executor`` and ``problem`` and
the options that the preset sets there. ``paper`` is a publication's text, ``code`` its authors' released code and
``recommended`` what this project advises where they differ. Others are variants of a method, such as ``rhfl`` of the job
``mdhfl``; several are applied in order: ``paper,rhfl``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import Any

from grandrounds.deployment.jobs import PARTS, Job, load_job, with_options
from grandrounds.errors import ConfigurationError
from grandrounds.federation.own_methods import OWN_METHODS
from grandrounds.files import read_json_object

PRESETS_FILE = "presets.json"
RUN_NAME = ("controller", "run_name")


def presets_of(job: Job) -> dict[str, dict[str, dict[str, Any]]]:
    """The presets that a job offers, by name.

    Raises:
        ConfigurationError: if the file is not a JSON object, or a preset has another part than a job has.
    """
    own = None if job.source else OWN_METHODS.all().get(job.name)
    if own is not None:
        return {name: {part: dict(values) for part, values in parts.items()} for name, parts in own.presets.items()}
    path = job.source / PRESETS_FILE if job.source else None
    if path is None or not path.is_file():
        return {}
    presets = read_json_object(path)
    for name, parts in presets.items():
        if not isinstance(parts, dict) or not all(part in PARTS and isinstance(parts[part], dict) for part in parts):
            raise ConfigurationError(f"{path}: preset {name!r} must be an object with {', '.join(PARTS)}")
    return presets


def preset_lines(name: str | Path) -> list[str]:
    """A line for each preset of a job, with the options that it sets.

    Raises:
        ConfigurationError: if there is no such job.
    """
    lines = []
    for preset, parts in presets_of(load_job(name)).items():
        changes = (f"{part}.{key}={_text(value)}" for part, options in parts.items() for key, value in options.items())
        lines.append(f"--preset {preset}: {', '.join(changes)}")
    return lines or [f"job {name} has no presets"]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def with_preset(job: Job, preset: str | None, assignments: Sequence[str] = ()) -> Job:
    """A copy of the job with the options of presets, and others set after them; FLARE lists it as ``JOB-PRESET``.

    Args:
        job: stays as it is.
        preset: the name of a preset, or several separated by commas; later ones win. None leaves the job's options.
        assignments: ``part.option=value``; they win. Those that change an option of a preset are named in the record.

    Raises:
        ConfigurationError: if the job has no such preset (its presets are named), or an option does not exist.

    Example:
        >>> from grandrounds.deployment.jobs import load_job
        >>> job = with_preset(load_job("mdhfl"), "paper,rhfl", ["controller.rounds=3"])
        >>> job.name, job.options("controller")["weighting"], job.options("controller")["preset"]
        ('mdhfl-paper-rhfl', 'ccr', 'paper + rhfl, but controller.rounds')
    """
    if preset is None:
        return with_options(job, assignments)
    names = [name.strip() for name in preset.split(",")]
    presets = presets_of(job)
    chosen = {
        (part, option): value
        for name in names
        for part, options in _named(job, presets, name).items()
        for option, value in options.items()
    }
    set_first = [f"{part}.{option}={dumps(value)}" for (part, option), value in chosen.items()]
    changed = with_options(job, [*set_first, *assignments])
    changes = [
        f"{part}.{option}"
        for (part, option), value in chosen.items()
        if (part, option) != RUN_NAME and changed.options(part)[option] != value
    ]
    label = " + ".join(names)
    changed.options("controller")["preset"] = f"{label}, but {', '.join(sorted(changes))}" if changes else label
    return replace(changed, meta={**changed.meta, "name": "-".join([job.name, *names])})


def configured_job(name: str | Path, preset: str | None, assignments: Sequence[str], problem: Mapping[str, Any]) -> Job:
    """Load a job and set its options.

    Args:
        name: of a job, or its folder.
        preset: names of presets, see :func:`with_preset`.
        assignments: ``part.option=value``; they win.
        problem: options of the problem that follow from the data; presets and assignments win over these.

    Raises:
        ConfigurationError: if there is no such job, preset or option.
    """
    loaded = load_job(name)
    loaded.options("problem").update(problem)
    return with_preset(loaded, preset, assignments)


def _named(job: Job, presets: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    if name not in presets:
        near = difflib.get_close_matches(name, presets, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigurationError(
            f"job {job.name} has no preset {name!r}{hint} (presets: {', '.join(sorted(presets)) or 'none'})"
        )
    return dict(presets[name])
