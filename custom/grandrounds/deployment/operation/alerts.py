"""Alerts: what is wrong is told once when it begins and once when it has ended, to a command or to an address."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from grandrounds.data.fitness import Finding
from grandrounds.deployment.operation.status import Status
from grandrounds.errors import ConfigurationError

RAISED, CLEARED = "raised", "cleared"
HOOK_SECONDS = 30.0
STANDALONE = re.compile(r"(?<!\S)\d+(\.\d+)?(?!\S)")
"""A number of a message that changes while the finding is the same, such as seconds or bytes."""
Hook = Callable[[dict[str, Any]], None]


class Alerts:
    """Remembers what was told, and tells what has begun and what has ended since.

    Args:
        hooks: each gets an alert as plain values: state, time, participant, kind, level, check, message.
        report: called with a line where a hook fails; the alert is told again at the next look.
    """

    def __init__(self, hooks: Sequence[Hook], report: Callable[[str], None]) -> None:
        self._hooks, self._report = hooks, report
        self._told: dict[tuple[str, str, str], Finding] = {}

    def look(self, status: Status) -> None:
        """Compare a state with the one before."""
        now = {_identity(one): one for one in status.findings if one.level != "ok"}
        for key, finding in now.items():
            if key not in self._told and self._tell(RAISED, status, finding):
                self._told[key] = finding
        for key, finding in list(self._told.items()):
            if key not in now and self._tell(CLEARED, status, finding):
                del self._told[key]

    def _tell(self, state: str, status: Status, finding: Finding) -> bool:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        alert = {"state": state, "time": time, "participant": status.name, "kind": status.kind, **vars(finding)}
        try:
            for hook in self._hooks:
                hook(alert)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            self._report(f"the alert {finding.check} ({state}) could not be told: {error}")
            return False
        return True


def command_hook(command: Sequence[str]) -> Hook:
    """Runs a program of this machine, which gets the alert as JSON on its standard input."""

    def run(alert: dict[str, Any]) -> None:
        subprocess.run(command, input=json.dumps(alert) + "\n", text=True, check=True, timeout=HOOK_SECONDS)

    return run


def web_hook(address: str) -> Hook:
    """Posts the alert as JSON, without its message, which may name files.

    Raises:
        ConfigurationError: if the address is none of http or https.
    """
    if not re.match(r"https?://[^/]+", address):
        raise ConfigurationError(f"a webhook is http://... or https://..., got {address!r}")

    def post(alert: dict[str, Any]) -> None:
        content = json.dumps({name: value for name, value in alert.items() if name != "message"}).encode()
        request = urllib.request.Request(address, content, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=HOOK_SECONDS):
            pass

    return post


def _identity(finding: Finding) -> tuple[str, str, str]:
    return finding.level, finding.check, STANDALONE.sub("#", finding.message)
