"""The seal of a kit's processes: each imports those modules of this package that its list has, and no others.

The lists are in ``processes.json`` beside this file, and ``docs/what-a-hospital-runs.md`` shows them. A job adds what its
signed configuration names: a method, a network, an option. So does a hospital by its own files: what it has reviewed as
plug-ins, and its data sets. A simulation has no seal.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

from grandrounds.errors import ConfigurationError
from grandrounds.files import read_json_object

SEAL_VARIABLE = "GRANDROUNDS_SEAL"
"""In the processes that a job's process starts: its name and modules, as JSON."""
LISTS = Path(__file__).with_name("processes.json")
PROCESSES = {
    "client_train": "client",
    "worker_process": "job",
    "server_train": "server",
    "runner_process": "server_job",
}
"""FLARE's modules that run a kit's processes, and the names of their lists."""
CHILDREN = ("training", "inventory", "drawing")
"""The lists of processes that a job's process starts, which have no FLARE."""
OWN_FILES = ("grandrounds.json", "grandrounds.lock.json")
"""A participant's own files in ``local`` that add modules."""


class Seal(MetaPathFinder):
    """Python asks it first for each module; it finds none, and refuses those of this package that are not on the list.

    Args:
        process: whose list it is, for errors.
        modules: that may be imported.
    """

    def __init__(self, process: str, modules: Collection[str]) -> None:
        self.process, self.modules = process, frozenset(modules)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> None:
        """Python's hook.

        Raises:
            ConfigurationError: if the module is this package's and not on the list; module and process are named.
        """
        if name.partition(".")[0] == __package__ and name not in self.modules:
            raise ConfigurationError(
                f"{name} is not on the list of what the process {self.process} of a kit may load ({LISTS.name}): the job's "
                "signed configuration must name what needs it; docs/what-a-hospital-runs.md says by which entry"
            )

    def close(self) -> None:
        """Take effect, also for what has been loaded already.

        Raises:
            ConfigurationError: as of :meth:`find_spec`.
        """
        for name in list(sys.modules):
            self.find_spec(name)
        sys.meta_path[:] = [self, *(finder for finder in sys.meta_path if not isinstance(finder, Seal))]


def seal_kit(kit: Path, arguments: Sequence[str]) -> None:
    """Seal this process, if it is one of a kit's; those that a job's process starts inherit its seal.

    Args:
        kit: the participant's folder.
        arguments: of the process, with the program first.

    Raises:
        ConfigurationError: if a module is loaded that is not on the list.
    """
    process = PROCESSES.get(Path(arguments[0]).stem)
    if process is None:
        return
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-n", dest="job")
    job = parser.parse_known_args(arguments[1:])[0].job
    files = [kit / "local" / name for name in OWN_FILES]
    files += sorted((kit / job).glob("*/config/*.json")) if job else []
    seal = Seal(process, allowed(process, [read_json_object(path) for path in files if path.is_file()]))
    seal.close()
    if job:
        lists = read_json_object(LISTS)["processes"]
        os.environ[SEAL_VARIABLE] = json.dumps([process, sorted(seal.modules.union(*map(lists.get, CHILDREN)))])


def inherit_seal() -> None:
    """Seal this process as the one that has started it."""
    Seal(*json.loads(os.environ[SEAL_VARIABLE])).close()


def allowed(process: str, documents: Collection[Any]) -> set[str]:
    """The modules that a process may load.

    Args:
        process: a name of ``processes.json``.
        documents: JSON values of the job and of the participant, which name what is added.
    """
    lists = read_json_object(LISTS)
    named = {entry for document in documents for entry in entries(document)}
    more = lists["additions"].get(process, {})
    return {*lists["processes"][process]}.union(
        *(modules for pattern, modules in more.items() if any(fnmatchcase(entry, pattern) for entry in named))
    )


def entries(document: Any) -> Iterator[str]:
    """What a JSON document states, as ``key=value`` each; of lists and objects ``key=...``, and nothing of empty values.

    Example:
        >>> list(entries({"args": {"inference": "onnx", "weights": None}, "plugins": ["own"]}))
        ['args=...', 'inference=onnx', 'plugins=...']
    """
    for key, value in document.items() if isinstance(document, dict) else ():
        if value not in (None, False, "", [], {}):
            yield f"{key}={'...' if isinstance(value, dict | list) else value}"
        yield from entries(value)
    for value in document if isinstance(document, list) else ():
        yield from entries(value)
