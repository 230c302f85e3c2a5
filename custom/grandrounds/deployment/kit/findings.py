"""What the checks of a kit share: a verdict, and a file as FLARE reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from grandrounds.data.fitness import Finding
from grandrounds.deployment.kit.overlay import DEFAULT
from grandrounds.deployment.kit.read import Kit
from grandrounds.errors import GrandRoundsError
from grandrounds.files import read_json_object

APPLY = "apply the overlay: grandrounds overlay"
Check = Callable[[Kit], Iterator[Finding]]


def verdict(check: str, fault: str, good: str, warning: str = "") -> Finding:
    """A failure if there is a fault, else a warning if there is one, else what is good."""
    if fault:
        return Finding("failure", check, fault)
    return Finding("warning", check, warning) if warning else Finding("ok", check, good)


def error_text(error: Exception, hint: str = "") -> str:
    """The message of an error; of an unexpected one, such as of a file that was edited by hand, its class and a hint."""
    return str(error) if isinstance(error, GrandRoundsError | OSError) else f"{type(error).__name__}: {error}{hint}"


def guarded(check: Check, kit: Kit, hint: str = "") -> list[Finding]:
    """The findings of a check; one that fails with an error is itself a finding, and the others go on."""
    try:
        return list(check(kit))
    except Exception as error:
        return [Finding("failure", check.__name__.strip("_").replace("_", " "), error_text(error, hint))]


def in_force(kit: Kit, name: str) -> dict[str, Any]:
    """A file of the kit as FLARE reads it: the participant's own, else the default."""
    own = kit.local / name
    return read_json_object(own if own.is_file() else kit.local / f"{name}{DEFAULT}")
