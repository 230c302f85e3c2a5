"""What the checks of a kit share: a verdict, and a file as FLARE reads it."""

from __future__ import annotations

from typing import Any

from grandrounds.data.doctor import Finding
from grandrounds.deployment.kit.overlay import (
    DEFAULT,
)
from grandrounds.deployment.kit.read import Kit
from grandrounds.json_files import read_json_object

APPLY = "apply the overlay: grandrounds overlay"


def verdict(check: str, fault: str, good: str) -> Finding:
    """A failure if there is a fault, else what is good."""
    return Finding("failure", check, fault) if fault else Finding("ok", check, good)


def in_force(kit: Kit, name: str) -> dict[str, Any]:
    """A file of the kit as FLARE reads it: the participant's own, else the default."""
    own = kit.local / name
    return read_json_object(own if own.is_file() else kit.local / f"{name}{DEFAULT}")
