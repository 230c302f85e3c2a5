"""Job folders: reading, checking, changing from outside and writing them.

A job is configuration only, so that a hospital can read what will run. Its options are the arguments of the controller and
the executor; an unknown name or a wrong value is refused here, before FLARE would stop with a traceback at a site.
"""

from __future__ import annotations

import copy
import difflib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import grandrounds
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.own_methods import OWN_METHODS, OwnMethod
from grandrounds.files import read_json_object, write_json
from grandrounds.options import annotations_of, describe, groups_of, option_types, require_type
from grandrounds.protocol.problem import Problem

PACKAGE = Path(grandrounds.__file__).parent
# A checkout has the jobs beside the package's folder; a wheel installs them under the environment's prefix.
CHECKOUT_JOBS = PACKAGE.parents[1] / "jobs"
JOBS = CHECKOUT_JOBS if CHECKOUT_JOBS.is_dir() else Path(sys.prefix) / "share" / "grandrounds" / "jobs"
SERVER_CONFIG, CLIENT_CONFIG = "config_fed_server.json", "config_fed_client.json"
PARTS = ("controller", "executor", "problem")


@dataclass(frozen=True)
class Job:
    """A job's three files as plain values, and the folder they were read from."""

    meta: dict[str, Any]
    server: dict[str, Any]
    client: dict[str, Any]
    source: Path | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self.meta["name"])

    @property
    def run_name(self) -> str:
        """The name of its run: what is stored under this name is resumed."""
        return str(self.options("controller").get("run_name", "run"))

    @property
    def controller(self) -> dict[str, Any]:
        """The controller's entry, with ``path`` and ``args``."""
        return dict(self.server["workflows"][0])

    @property
    def executor(self) -> dict[str, Any]:
        """The executor's entry, with ``path`` and ``args``."""
        return dict(self.client["executors"][0]["executor"])

    def options(self, part: str) -> dict[str, Any]:
        """The options set in ``controller``, ``executor`` or ``problem``; changing the dictionary changes the job.

        Raises:
            ConfigurationError: if the controller's problem is missing or no object.
        """
        options: dict[str, Any] = (self.executor if part == "executor" else self.controller)["args"]
        if part == "problem":
            require_type(options.get("problem"), dict[str, Any], "controller.problem")
            options = options["problem"]
        return options


def job_names() -> list[str]:
    """Names of the jobs that come with the package, and of the methods of plug-ins."""
    return sorted({*_packaged(), *_own_methods()})


def _packaged() -> list[str]:
    return [path.parent.name for path in JOBS.glob("*/meta.json")]


def _own_methods() -> Mapping[str, OwnMethod]:
    return OWN_METHODS.all(_packaged())


def load_job(name_or_folder: str | Path) -> Job:
    """Read a job folder, or by its name one of the jobs that come with the package; a name has no path separator.

    Raises:
        ConfigurationError: if there is no such job, or one of its files is missing or wrong.
    """
    given = Path(name_or_folder)
    by_name = os.sep not in os.fspath(name_or_folder) and not (given / "meta.json").is_file()
    folder = JOBS / given if by_name else given
    if by_name and not folder.is_dir() and given.name in _own_methods():
        return _job_of(given.name, _own_methods()[given.name])
    if not (folder / "meta.json").is_file():
        near = difflib.get_close_matches(given.name, job_names(), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigurationError(f"{name_or_folder} is not a job{hint} (jobs: {', '.join(job_names())})")
    configuration = folder / "app" / "config"
    job = Job(
        read_json_object(folder / "meta.json"),
        read_json_object(configuration / SERVER_CONFIG),
        read_json_object(configuration / CLIENT_CONFIG),
        folder,
    )
    _require_parts(job, folder)
    return job


def _job_of(name: str, method: OwnMethod) -> Job:
    """The job of a plug-in's method: the options that it shares with ``fedavg`` are as there, others have their default."""
    pattern = load_job("fedavg")
    job = Job(
        {**pattern.meta, "name": name, "summary": method.summary, "paper": method.paper}, pattern.server, pattern.client
    )
    for entry, component in ((job.controller, method.controller), (job.executor, method.executor)):
        known = [option for group in groups_of(component).values() for option in describe(group)]
        entry["args"].update({option.name: entry["args"].get(option.name, option.default) for option in known})
        for surplus in entry["args"].keys() - {option.name for option in known}:
            del entry["args"][surplus]
    job.server["workflows"][0]["path"] = full_name(method.controller)
    job.client["executors"][0]["executor"]["path"] = full_name(method.executor)
    job.options("controller")["run_name"] = name
    return with_options(job, [f"{option}={json.dumps(value)}" for option, value in method.options.items()])


def full_name(component: type) -> str:
    """The name by which FLARE builds a class.

    Example:
        >>> full_name(Job)
        'grandrounds.deployment.jobs.Job'
    """
    return f"{component.__module__}.{component.__qualname__}"


def with_options(job: Job, assignments: Iterable[str]) -> Job:
    """A copy of the job with options set.

    Args:
        job: not changed.
        assignments: ``part.option=value`` with part ``controller``, ``executor`` or ``problem``; the value is JSON, or
            else text.

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
    """Build the controller and the executor as FLARE would, to find errors before anything starts.

    Raises:
        ConfigurationError: naming the option, or the job and the fault.
    """
    parts = (("controller", job.controller), ("executor", job.executor))
    for part, entry in parts:
        component = class_of(entry["path"])
        accepted = option_types(component)
        for option, value in entry["args"].items():
            if option not in accepted:
                raise ConfigurationError(f"job {job.name}: {component.__name__} has no option {option!r}")
            require_type(value, accepted[option], f"{part}.{option}")
    known = annotations_of(Problem)
    for option, value in job.options("problem").items():
        require_type(value, known[option].type if option in known else Any, f"problem.{option}")
    for _, entry in parts:
        component = class_of(entry["path"])
        if getattr(component, "needs_exclusive", True):
            Problem.from_dict(job.options("problem")).kind.require_exclusive(job.name)
        try:
            component(**copy.deepcopy(entry["args"]))
        except GrandRoundsError:
            raise
        # Whatever a constructor raises, the cause is this job's options.
        except Exception as error:
            raise ConfigurationError(f"job {job.name}: {component.__name__}: {error}") from error


def write_job(job: Job, folder: Path, byoc: bool = False) -> Path:
    """Write a job folder for ``nvflare simulator`` or a submission; an existing job folder is replaced.

    Args:
        job: the job.
        folder: becomes the job folder.
        byoc: copy this package into the job ("bring your own code"), for machines without it. Hospitals should install the
            reviewed wheel instead and refuse such jobs.

    Raises:
        ConfigurationError: if the folder exists and is not a job folder, is the job's source, or is one of those that come
            with the package.
    """
    target = folder.resolve()
    if target.is_relative_to(JOBS.resolve()) or (job.source and job.source.resolve().is_relative_to(target)):
        raise ConfigurationError(f"{folder} is a job's source and is not overwritten; choose another folder")
    if folder.exists():
        if not (folder / "meta.json").is_file():
            raise ConfigurationError(f"{folder} exists and is not a job folder; choose another folder")
        shutil.rmtree(folder)
    configuration = folder / "app" / "config"
    write_json(folder / "meta.json", {**job.meta, "min_clients": job.options("controller").get("min_sites", 1)})
    write_json(configuration / SERVER_CONFIG, job.server)
    write_json(configuration / CLIENT_CONFIG, job.client)
    if byoc:
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(PACKAGE, folder / "app" / "custom" / PACKAGE.name, ignore=ignored)
    return folder


def named_classes(content: Any) -> Iterator[str]:
    """Full names of all classes that FLARE builds for a part of a job.

    Example:
        >>> list(named_classes(load_job("fedperl").client))
        ['grandrounds.methods.fedperl.executor.FedPerlExecutor']
    """
    if isinstance(content, dict):
        yield from (content[key] for key in ("path", "class_path") if isinstance(content.get(key), str))
    parts = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    for part in parts:
        yield from named_classes(part)


def deployed_sites(job: Job) -> list[str]:
    """The sites that a job is deployed to; empty for all."""
    deployed = [str(site) for sites in job.meta["deploy_map"].values() for site in sites]
    return [site for site in deployed if site not in ("@ALL", "server")]


def class_of(path: str) -> type[Any]:
    """The class of a component by its full name.

    Raises:
        ConfigurationError: if it cannot be imported, or is not a class.
    """
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be imported: {error}") from error
    if not isinstance(found, type):
        raise ConfigurationError(f"{path} is not a class")
    return found


def _known_options(job: Job, part: str) -> list[str]:
    if part == "problem":
        return [field.name for field in fields(Problem)]
    return sorted(option_types(class_of((job.controller if part == "controller" else job.executor)["path"])))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _require_parts(job: Job, folder: Path) -> None:
    name = job.meta.get("name")
    if not isinstance(name, str) or name == ".." or not name or Path(name).name != name:
        raise ConfigurationError(f"{folder / 'meta.json'}: name must be the name of a folder, got {name!r}")
    for file, content, expected in (
        (SERVER_CONFIG, job.server, 'workflows: [{"path": ..., "args": {...}}]'),
        (CLIENT_CONFIG, job.client, 'executors: [{"executor": {"path": ..., "args": {...}}}]'),
    ):
        try:
            entry = content["workflows"][0] if file == SERVER_CONFIG else content["executors"][0]["executor"]
            found = isinstance(entry["path"], str) and isinstance(entry["args"], dict)
        except (KeyError, IndexError, TypeError):
            found = False
        if not found:
            raise ConfigurationError(f"{folder / 'app' / 'config' / file}: expected {expected}")
