"""A Python that imports libraries once and runs each command in a child of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

SERVER = """
import importlib, json, os, runpy, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(0), flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        break
    print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])), flush=True)
else:
    sys.exit()
command = json.loads(line)
os.chdir(command["folder"])
output = os.open(command["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for stream in (1, 2):
    os.dup2(output, stream)
sys.path[0] = command["folder"]
sys.argv = [command["module"], *command["words"]]
runpy.run_module(command["module"], run_name="__main__", alter_sys=True)
"""


class WarmPython:
    """Runs ``python -m MODULE WORDS`` as a new Python would that needs no time for its imports.

    Args:
        modules: what is imported before the first command; it must leave no thread behind.
        environment: of all commands.
        place: an existing folder, for what a command prints.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str], place: Path) -> None:
        self._output = place / "output"
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER, *modules],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._status()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.communicate()

    def run(self, module: str, words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a module with these words in a folder; ``stdout`` has both streams."""
        command = {"module": module, "words": [*words], "folder": str(folder), "output": str(self._output)}
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(command) + "\n")
        self._server.stdin.flush()
        return subprocess.CompletedProcess([module, *words], self._status(), self._output.read_text(errors="replace"))

    def _status(self) -> int:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        assert line, "the warm Python has ended"
        return int(json.loads(line))
