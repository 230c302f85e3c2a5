"""Python imports this at its start: a process then writes which modules of the package it loads, at each of them.

The folder is that of the variable ``HOUSE_MODULES``. Nothing waits for the end of a process, which may have no last word, or
may no longer write. A forked process writes once more, for what it has from its parent.
"""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

FOLDER = os.environ.get("HOUSE_MODULES")
PACKAGE = "grandrounds"
_asked: set[str] = set()


def _write() -> None:
    modules = {name for name in [*sys.modules, *_asked] if name.partition(".")[0] == PACKAGE}
    if not modules:
        return
    command = Path("/proc/self/cmdline").read_bytes().decode(errors="replace").split("\0")
    path = Path(str(FOLDER)) / f"{os.getpid()}.json"
    written = path.with_suffix(".part")
    with suppress(OSError):  # behind its walls a process writes nothing here
        written.write_text(json.dumps({"command": command, "modules": sorted(modules)}))
        written.replace(path)


def _hear(event: str, about: tuple[Any, ...]) -> None:
    if event == "import" and about[0].partition(".")[0] == PACKAGE:
        _asked.add(about[0])
        _write()


if FOLDER:
    os.register_at_fork(after_in_child=_write)
    sys.addaudithook(_hear)
