"""Python imports this at its start: a process then writes which modules of the package it has loaded, again and again.

The folder is that of the variable ``HOUSE_MODULES``; FLARE's processes end without a last word, so a thread looks.
"""

import atexit
import json
import os
import sys
import threading
import time
from pathlib import Path

FOLDER = os.environ.get("HOUSE_MODULES")
SECONDS = 0.5


def _write() -> None:
    modules = sorted(name for name in list(sys.modules) if name.partition(".")[0] == "grandrounds")
    if not modules:
        return
    command = Path("/proc/self/cmdline").read_bytes().decode(errors="replace").split("\0")
    path = Path(str(FOLDER)) / f"{os.getpid()}.json"
    written = path.with_suffix(".part")
    written.write_text(json.dumps({"command": command, "modules": modules}))
    written.replace(path)


def _watch() -> None:
    known = 0
    while True:
        if known != len(sys.modules):
            known = len(sys.modules)
            _write()
        time.sleep(SECONDS)


def _start() -> None:
    threading.Thread(target=_watch, name="house", daemon=True).start()


if FOLDER:
    atexit.register(_write)
    os.register_at_fork(after_in_child=_start)
    _start()
