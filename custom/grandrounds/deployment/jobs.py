"""Job folders: reading, checking, changing from outside and writing them.

A job is configuration only, so that a hospital can read what will run. Its options are the arguments of the controller and
the executor; a name that neither has is refused here, before FLARE would stop with a traceback at some site.
"""

from __future__ import annotations

import copy
import difflib
import inspect
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import grandrounds
from grandrounds.errors import ConfigurationError
from grandrounds.federation.problem import Problem
from grandrounds.files import write_json

PACKAGE = Path(grandrounds.__file__).parent
JOBS = PACKAGE.parents[1] / "jobs"
SERVER_CONFIG, CLIENT_CONFIG = "config_fed_server.json", "config_fed_client.json"
PARTS = ("controller", "executor", "problem")


@dataclass(frozen=True)
class Job:
    """A job's three files, as plain values."""

    meta: dict[str, Any]
    server: dict[str, Any]
    client: dict[str, Any]

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self.meta["name"])

    @property
    def controller(self) -> dict[str, Any]:
        """The controller's entry, with ``path`` and ``args``."""
        return dict(self.server["workflows"][0])

    @property
    def executor(self) -> dict[str, Any]:
        """The executor's entry, with ``path`` and ``args``."""
        return dict(self.client["executors"][0]["executor"])

    def options(self, part: str) -> dict[str, Any]:
        """The options set in ``controller``, ``executor`` or ``problem``; changing the dictionary changes the job."""
        options: dict[str, Any] = (self.executor if part == "executor" else self.controller)["args"]
        if part == "problem":
            options = options["problem"]
        return options


def job_names() -> list[str]:
    """Names of the jobs that come with the package's source."""
    return sorted(path.parent.name for path in JOBS.glob("*/meta.json"))


def load_job(name_or_folder: str | Path) -> Job:
    """Read a job folder, or one of the jobs that come with the source by its name.

    Raises:
        ConfigurationError: if there is no such job, or a file of it is missing or no JSON.
    """
    given = Path(name_or_folder)
    folder = given if (given / "meta.json").is_file() else JOBS / given.name
    if not (folder / "meta.json").is_file():
        near = difflib.get_close_matches(given.name, job_names(), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigurationError(f"{name_or_folder} is no job{hint} (jobs: {', '.join(job_names())})")
    configuration = folder / "app" / "config"
    return Job(_read(folder / "meta.json"), _read(configuration / SERVER_CONFIG), _read(configuration / CLIENT_CONFIG))


def with_options(job: Job, assignments: Iterable[str]) -> Job:
    """A copy of the job with options set.

    Args:
        job: stays as it is.
        assignments: ``part.option=value`` with part ``controller``, ``executor`` or ``problem``; the value is JSON, or else
            taken as text.

    Raises:
        ConfigurationError: for a part or an option that does not exist (the nearest one is named).

    Example:
        >>> with_options(load_job("fedperl"), ["controller.peers=3"]).options("controller")["peers"]
        3
    """
    changed = copy.deepcopy(job)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        part, dot, option = key.partition(".")
        if not equals or not dot or part not in PARTS:
            raise ConfigurationError(f"--set {assignment}: expected part.option=value with part {', '.join(PARTS)}")
        known = _known_options(changed, part)
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1)
            hint = f"; did you mean {part}.{near[0]}?" if near else ""
            raise ConfigurationError(f"--set {key}: the {part} of job {job.name} has no option {option!r}{hint}")
        changed.options(part)[option] = _value(text)
    return changed


def check_job(job: Job) -> None:
    """Build the controller and the executor as FLARE would, to find what is wrong before anything starts.

    Raises:
        ConfigurationError: naming the job and what does not fit.
    """
    for entry in (job.controller, job.executor):
        component = _component(entry["path"])
        known = accepted_options(component)
        for option in entry["args"]:
            if option not in known:
                raise ConfigurationError(f"job {job.name}: {component.__name__} has no option {option!r}")
        try:
            component(**copy.deepcopy(entry["args"]))
        except TypeError as error:
            raise ConfigurationError(f"job {job.name}: {component.__name__}: {error}") from error


def write_job(job: Job, folder: Path, byoc: bool = False) -> Path:
    """Write a job folder that ``nvflare simulator`` or a submission takes; an older one of the same name is replaced.

    Args:
        job: what to write.
        folder: becomes the job folder.
        byoc: copy this package into the job, for machines that do not have it installed ("bring your own code"). Hospitals
            should have the reviewed wheel instead and refuse such jobs.

    Raises:
        ConfigurationError: if the folder exists and is no job folder.
    """
    if folder.exists():
        if not (folder / "meta.json").is_file():
            raise ConfigurationError(f"{folder} exists and is no job folder; choose another place")
        shutil.rmtree(folder)
    configuration = folder / "app" / "config"
    write_json(folder / "meta.json", {**job.meta, "min_clients": job.options("controller").get("min_sites", 1)})
    write_json(configuration / SERVER_CONFIG, job.server)
    write_json(configuration / CLIENT_CONFIG, job.client)
    if byoc:
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(PACKAGE, folder / "app" / "custom" / PACKAGE.name, ignore=ignored)
    return folder


def accepted_options(component: type) -> set[str]:
    """Names of the arguments that a class takes, those it passes on to its bases included.

    Example:
        >>> from grandrounds.methods.fedperl.controller import FedPerlController
        >>> {"peers", "weighting", "rounds"} <= accepted_options(FedPerlController)
        True
    """
    names: set[str] = set()
    for base in component.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        names |= {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    return names


def _known_options(job: Job, part: str) -> list[str]:
    if part == "problem":
        return [field.name for field in fields(Problem)]
    return sorted(accepted_options(_component((job.controller if part == "controller" else job.executor)["path"])))


def _component(path: str) -> type[Any]:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be imported: {error}") from error
    if not isinstance(found, type):
        raise ConfigurationError(f"{path} is no class")
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _read(path: Path) -> dict[str, Any]:
    try:
        content: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path} is missing") from error
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{path}: line {error.lineno} is no valid JSON: {error.msg}") from error
    return dict(content)
