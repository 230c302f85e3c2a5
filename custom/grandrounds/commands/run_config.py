"""A run in a file: the arguments of ``grandrounds simulate`` and the options of the job, as YAML."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from grandrounds.deployment.jobs import JOB_PARTS, Job, Values
from grandrounds.deployment.presets import values_in
from grandrounds.errors import ConfigurationError
from grandrounds.files import replacing

ARGUMENTS = (
    "job", "preset", "rounds", "image_size", "backbone", "seed", "sites_dir", "sites", "images", "patient_pattern",
    "label_map", "merge", "distinct", "root", "columns", "sheet", "layout", "skip_unusable",
    "workspace", "engine", "threads", "workers", "wire", "allow_overlap", "reference",
)  # fmt: skip
"""The arguments that a file may have, beside ``options``."""
OPTIONS = "options"


def use_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Take the arguments of a file where the command line has none; a callback of typer.

    Raises:
        ConfigurationError: if the file cannot be read or has an unknown entry.
    """
    if path is not None:
        content = read_config(path)
        known = {name: value for name, value in content.items() if name != OPTIONS}
        ctx.default_map = {**(ctx.default_map or {}), **known}
    return path


def read_config(path: Path) -> dict[str, Any]:
    """The content of a file.

    Raises:
        ConfigurationError: if it is no YAML object or has an unknown entry; the nearest one is named.
    """
    import yaml  # type: ignore[import-untyped]

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} must be a YAML object, for example with job: fedavg")
    for name in content:
        if name not in (*ARGUMENTS, OPTIONS):
            near = difflib.get_close_matches(str(name), (*ARGUMENTS, OPTIONS), n=1)
            hint = f"; did you mean {near[0]}?" if near else f" (entries: {', '.join((*ARGUMENTS, OPTIONS))})"
            raise ConfigurationError(f"{path}: there is no entry {name!r}{hint}")
    parts = content.get(OPTIONS) or {}
    if not isinstance(parts, dict) or not all(part in JOB_PARTS and isinstance(parts[part], dict) for part in parts):
        raise ConfigurationError(f"{path}: {OPTIONS} must be an object with {', '.join(JOB_PARTS)}, each an object")
    return content


def options_in(path: Path) -> Values:
    """The options of a file."""
    return values_in(read_config(path).get(OPTIONS) or {})


def write_config(path: Path, arguments: Mapping[str, Any], job: Job) -> None:
    """Write a file that gives this run again.

    Args:
        path: of the file.
        arguments: some of :data:`ARGUMENTS`; those that are None or False are left out, but a False of ``reference``. Paths
            become absolute, so that the file runs in any folder.
        job: with its final options, which are all written, but those that images of one's own will decide.
    """
    import yaml

    given = {
        name: str(value.absolute()) if isinstance(value, Path) else value
        for name, value in arguments.items()
        if value or (name, value) == ("reference", False)
    }
    of_data = ("dataset", "classes", "task") if arguments.get("images") else ()
    options = {
        part: {key: value for key, value in job.options(part).items() if key not in ("problem", *of_data)}
        for part in JOB_PARTS
    }
    with replacing(path) as stream:
        stream.write(yaml.safe_dump({**given, OPTIONS: options}, sort_keys=False, allow_unicode=True).encode())
