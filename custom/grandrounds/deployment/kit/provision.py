"""Startup kits of a whole project, made at once.

For a trial, or if every hospital trusts the operator with its private key.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from grandrounds.deployment.kit.shipped import PROVISIONING
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.files import write_bytes

PROJECT = PROVISIONING / "project.yml"
PROVISION_SECONDS = 120
SITE = "client"


def read_project(path: Path) -> dict[str, Any]:
    """Read a project's description.

    Raises:
        ConfigurationError: if it is missing, no YAML, or has no participants.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not content.get("name") or not content.get("participants"):
        raise ConfigurationError(f"{path} is not a project: it needs a name and participants")
    return content


def hospitals(project: dict[str, Any]) -> list[str]:
    """The names of a project's hospitals."""
    return [str(entry["name"]) for entry in project["participants"] if entry["type"] == SITE]


def local_project(project: dict[str, Any], sites: Sequence[str], port: int) -> dict[str, Any]:
    """The project for this machine: these sites and this port, at the loopback address.

    Example:
        >>> project = {"name": "p", "participants": [{"name": "s", "type": "server"}, {"name": "a", "type": "client"}]}
        >>> [entry["name"] for entry in local_project(project, ["b", "c"], 18002)["participants"]]
        ['s', 'b', 'c']
    """
    others = [dict(entry) for entry in project["participants"] if entry["type"] != SITE]
    for entry in others:
        if entry["type"] == "server":
            entry |= {"fed_learn_port": port, "host_names": ["localhost", "127.0.0.1"], "default_host": "localhost"}
            entry.pop("admin_port", None)
    local_sites = [{"name": site, "type": SITE, "org": site.replace("-", "_")} for site in sites]
    return {**project, "participants": [*others, *local_sites]}


def write_project(project: dict[str, Any], path: Path) -> None:
    """Write a project's description as YAML, atomically."""
    write_bytes(path, yaml.safe_dump(project, sort_keys=False).encode())


def provision(project: Path, out: Path) -> Path:
    """Make all kits of a project by FLARE's ``provision``.

    Args:
        project: its description.
        out: folder for the kits and the authority's state; a second call adds a generation of kits.

    Returns:
        The folder with one kit for each participant.

    Raises:
        ConfigurationError: if the description is wrong.
        GrandRoundsError: if FLARE refuses it; with its last lines.
    """
    name = str(read_project(project)["name"])
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "nvflare.cli", "provision"]
    ended = subprocess.run(
        [*command, "-p", str(project.absolute()), "-w", str(out.absolute()), "--force"],
        # FLARE's command line keeps its settings in the home folder; it gets one of its own here.
        env={**os.environ, "HOME": str(out.absolute())},
        cwd=out,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROVISION_SECONDS,
        check=False,
    )
    generations: list[Path] = sorted((out / name).glob("prod_*"))
    if ended.returncode != 0 or not generations:
        lines = f"{ended.stdout}\n{ended.stderr}".strip().splitlines()[-3:]
        raise GrandRoundsError(f"nvflare provision refuses {project}: {' '.join(lines)}")
    return generations[-1]
