"""Job folders: reading, checking, changing from outside and writing them.

A job is configuration only, so that a hospital can read what will run. Its options are the arguments of the controller and
the executor; an unknown name or a wrong value is refused here, before FLARE would stop with a traceback at a site. The
reference of all options is generated from their annotations.
"""

from __future__ import annotations

import copy
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from grandrounds.checks import as_path, did_you_mean
from grandrounds.deployment.code_digest import PACKAGE
from grandrounds.errors import ConfigurationError, GrandRoundsError, UsageError
from grandrounds.federation.own_methods import OWN_METHODS, OwnMethod
from grandrounds.files import read_json_object, write_json
from grandrounds.folders import in_turn, put_in_place, temporary_sibling
from grandrounds.option_keys import by_key, former_option_names, option_defaults, option_types
from grandrounds.options import OptionInfo, Tier, describe, groups_of, require_type, with_current_names
from grandrounds.protocol.problem import Problem
from grandrounds.remedies import of_option

# A checkout has the jobs beside the package's folder; a wheel installs them under the environment's prefix.
CHECKOUT_JOBS = PACKAGE.parents[1] / "jobs"
JOBS = CHECKOUT_JOBS if CHECKOUT_JOBS.is_dir() else Path(sys.prefix) / "share" / "grandrounds" / "jobs"
SERVER_CONFIG, CLIENT_CONFIG = "config_fed_server.json", "config_fed_client.json"
JOB_PARTS = ("controller", "executor", "problem")
OPTIONS = Path(__file__).with_name("options.json")
"""What the options of the package's own classes are, by class; made by docs/generate.py."""


Key = tuple[str, str]
"""Part and name of an option: ``("executor", "steps")``."""
Values = Mapping[Key, Any]
"""Typed values of options."""
NO_VALUES: Values = MappingProxyType({})


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
        return str(self.value("controller", "run_name"))

    @property
    def min_sites(self) -> int:
        """The number of sites that every round needs; one where the controller has no such option."""
        stated = {**option_defaults(self.component("controller")), **self.options("controller")}
        return int(stated.get("min_sites", 1))

    @property
    def network(self) -> str:
        """The size of its images, its network and where this starts from, in words.

        Example:
            >>> load_job("fedperl").network
            '32 x 32 pixels; compact from random weights'
        """
        side, backbone, weights = (self.value("problem", name) for name in ("image_size", "backbone", "weights"))
        return f"{side} x {side} pixels; {backbone} from {weights or 'random'} weights"

    @property
    def sites(self) -> list[str]:
        """The sites that it is deployed to; empty for all."""
        deployed = [str(site) for sites in self.meta["deploy_map"].values() for site in sites]
        return [site for site in deployed if site not in ("@ALL", "server")]

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

    def component(self, part: str) -> type[Any]:
        """The class that takes the options of a part.

        Raises:
            ConfigurationError: if it cannot be imported.
        """
        if part == "problem":
            return Problem
        return class_of((self.executor if part == "executor" else self.controller)["path"])

    def value(self, part: str, option: str) -> Any:
        """An option's value; its default where the job states none.

        Example:
            >>> load_job("fedperl").value("controller", "peers")
            2
        """
        stated = self.options(part)
        return stated[option] if option in stated else option_defaults(self.component(part))[option]

    def in_full(self) -> Job:
        """A copy that states every option by its name of today: the job's values, and the defaults of its classes.

        Raises:
            ConfigurationError: if a class cannot be imported, or the controller's problem is missing or no object.

        Example:
            >>> "grace" in read_job("fedperl").options("controller"), "grace" in load_job("fedperl").options("controller")
            (False, True)
        """
        full = Job(self.meta, copy.deepcopy(self.server), copy.deepcopy(self.client), self.source)
        for part in reversed(JOB_PARTS):  # the problem first: it may be missing
            component, options = full.component(part), full.options(part)
            defaults = {name: list(value) if isinstance(value, tuple) else value
                        for name, value in option_defaults(component).items()}  # fmt: skip
            values = {**defaults, **with_current_names(options, former_option_names(component))}
            order = dict.fromkeys(["problem", *option_types(component), *values])
            options.clear()
            options.update({option: values[option] for option in order if option in values})
        return full

    def with_values(self, values: Values) -> Job:
        """A copy of the job with options set; their values are checked by :meth:`checked`.

        Raises:
            ConfigurationError: for a part or an option that does not exist (the nearest one is named).

        Example:
            >>> load_job("fedperl").with_values({("controller", "peers"): 3}).value("controller", "peers")
            3
        """
        changed = Job(self.meta, copy.deepcopy(self.server), copy.deepcopy(self.client), self.source)
        for (part, option), value in values.items():
            changed.require_option(part, option)
            changed.options(part)[option] = copy.deepcopy(value)
        return changed

    def require_option(self, part: str, option: str) -> None:
        """Refuse an option that a part of the job does not have, by a :class:`ConfigurationError`."""
        if part not in JOB_PARTS:
            hint = did_you_mean(part, JOB_PARTS, f"{{}}.{option}")
            raise UsageError(f"{part}.{option}: expected part.option with part {', '.join(JOB_PARTS)}{hint}")
        if option not in (known := option_types(self.component(part))):
            hint = of_option(option, known, self.name, f"{part}.{{}}")
            raise UsageError(f"{part}.{option}: the {part} of job {self.name} has no option {option!r}{hint}")

    def key_of(self, name: str) -> Key:
        """The part and the name of an option that is given by its name alone, or as ``part.option``.

        Raises:
            ConfigurationError: if no part has it (the nearest one is named), or several have.

        Example:
            >>> load_job("fedperl").key_of("peers")
            ('controller', 'peers')
        """
        part, dot, option = name.partition(".")
        if dot:
            self.require_option(part, option)
            return part, option
        known = [(part, option) for part in JOB_PARTS for option in option_types(self.component(part))]
        keys = [key for key in known if key[1] == name]
        if len(keys) > 1:
            raise UsageError(f"{name}: job {self.name} has {' and '.join(map('.'.join, keys))}; name one of these")
        if not keys:
            hint = of_option(name, [*(option for _, option in known), *map(".".join, known)], self.name)
            raise UsageError(f"{name}: job {self.name} has no option {name!r}{hint}")
        return keys[0]

    def checked(self) -> CheckedJob:
        """This job, once its controller and executor have been built as FLARE would build them.

        Raises:
            ConfigurationError: naming the option, or the job and the fault.
        """
        _require_types(self)
        for part in ("controller", "executor"):
            _require_buildable(self, part)
        return CheckedJob(self.meta, self.server, self.client, self.source)


class CheckedJob(Job):
    """A job whose options have been checked; made by :meth:`Job.checked` only."""

    def checked(self) -> Self:
        """The job itself."""
        return self


def job_names() -> list[str]:
    """Names of the jobs that come with the package, and of the methods of plug-ins."""
    return sorted({*_packaged(), *_own_methods()})


def _packaged() -> list[str]:
    return [path.parent.name for path in JOBS.glob("*/meta.json")]


def _own_methods() -> Mapping[str, OwnMethod]:
    return OWN_METHODS.all(_packaged())


def load_job(name_or_folder: str | Path) -> Job:
    """Read a job as :func:`read_job`, and let it state every option.

    Raises:
        ConfigurationError: as :func:`read_job`, or if a class of the job cannot be imported.
    """
    return read_job(name_or_folder).in_full()


def read_job(name_or_folder: str | Path) -> Job:
    """Read a job folder, or by its name one of the jobs that come with the package; a name has no path separator.

    Those of the package state only the options whose value is not the default.

    Raises:
        ConfigurationError: if there is no such job, or one of its files is missing or wrong.
    """
    given = as_path(name_or_folder, "a method", "name it, such as fedavg")
    by_name = os.sep not in os.fspath(name_or_folder) and not (given / "meta.json").is_file()
    folder = JOBS / given if by_name else given
    if by_name and not folder.is_dir() and given.name in _own_methods():
        return _job_of(given.name, _own_methods()[given.name])
    if not (folder / "meta.json").is_file():
        hint = did_you_mean(given.name, job_names())
        if given.exists():
            hint = f"; if it holds images: grandrounds simulate --images {shlex.quote(str(given))}"
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
    job = load_job("fedavg")
    job = replace(job, meta={**job.meta, "name": name, "summary": method.summary, "paper": method.paper}, source=None)
    for entry, component in ((job.controller, method.controller), (job.executor, method.executor)):
        for option in entry["args"].keys() - option_types(component).keys():
            del entry["args"][option]
    job.server["workflows"][0]["path"] = full_name(method.controller)
    job.client["executors"][0]["executor"]["path"] = full_name(method.executor)
    return job.in_full().with_values({("controller", "run_name"): name, **by_key(method.options)})


def full_name(component: type) -> str:
    """The name by which FLARE builds a class.

    Example:
        >>> full_name(Job)
        'grandrounds.deployment.jobs.Job'
    """
    return f"{component.__module__}.{component.__qualname__}"


def _require_types(job: Job) -> None:
    for part in JOB_PARTS:
        component = job.component(part)
        known = option_types(component)
        for option, value in job.options(part).items():
            if option not in known:
                raise ConfigurationError(f"job {job.name}: {component.__name__} has no option {option!r}")
            require_type(value, known[option], f"{part}.{option}")


def _require_buildable(job: Job, part: str) -> None:
    component, arguments = job.component(part), copy.deepcopy(job.options(part))
    kind = Problem.from_dict(job.options("problem")).kind
    if getattr(component, "needs_exclusive", True):
        kind.require_exclusive(job.name)
    try:
        made = component(**arguments)
        if part == "executor":
            made.require_kind(kind)
            made.inference.require_measured(*map(job.options("problem").get, ("backbone", "trainable")))
    except GrandRoundsError:
        raise
    # Whatever a constructor raises, the cause is this job's options.
    except Exception as error:
        raise ConfigurationError(f"job {job.name}: {component.__name__}: {error}") from error


def write_job(job: Job, folder: Path, byoc: bool = False, complete: Callable[[Path], object] | None = None) -> Path:
    """Write a job folder for ``nvflare simulator`` or a submission; an existing job folder is replaced.

    Args:
        job: the job.
        folder: becomes the job folder.
        byoc: copy this package into the job ("bring your own code"), for machines without it. Hospitals should install the
            reviewed wheel instead and refuse such jobs.
        complete: adds to the new folder before it takes its place.

    Raises:
        ConfigurationError: if the folder exists and is not a job folder, is the job's source, or is one of those that come
            with the package.
    """
    target = folder.resolve()
    if target.is_relative_to(JOBS.resolve()) or (job.source and job.source.resolve().is_relative_to(target)):
        raise ConfigurationError(f"{folder} is a job's source and is not overwritten; choose another folder")
    if folder.exists() and not (folder / "meta.json").is_file():
        raise ConfigurationError(f"{folder} exists and is not a job folder; choose another folder")
    with temporary_sibling(folder) as temporary:
        configuration = temporary / "app" / "config"
        write_json(temporary / "meta.json", {**job.meta, "min_clients": job.min_sites})
        write_json(configuration / SERVER_CONFIG, job.server)
        write_json(configuration / CLIENT_CONFIG, job.client)
        if byoc:
            # FLARE's own command reads every JSON file of a job as configuration, and finds none by a name of two dots.
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "*.schema.json")
            shutil.copytree(PACKAGE, temporary / "app" / "custom" / PACKAGE.name, ignore=ignored)
        if complete is not None:
            complete(temporary)
        with in_turn(folder.parent, folder):
            put_in_place(temporary, folder)
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


def class_of(path: str) -> type[Any]:
    """The class of a component by its full name.

    Raises:
        ConfigurationError: if it cannot be imported, or is not a class.
    """
    module, _, name = path.rpartition(".")
    try:
        kind = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be imported: {error}") from error
    if not isinstance(kind, type):
        raise ConfigurationError(f"{path} is not a class")
    return kind


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
            valid = isinstance(entry["path"], str) and isinstance(entry["args"], dict)
        except (KeyError, IndexError, TypeError):
            valid = False
        if not valid:
            raise ConfigurationError(f"{folder / 'app' / 'config' / file}: expected {expected}")


def listed_options(job: Job, part: str) -> list[OptionInfo]:
    """As :func:`options_of`, for a class of this package from a generated file: torch is not imported."""
    path = "problem" if part == "problem" else (job.executor if part == "executor" else job.controller)["path"]
    known = read_json_object(OPTIONS).get(path)
    if known is None:
        return options_of(job, part)
    order = {name: number for number, name in enumerate(job.options(part))}
    entries = [OptionInfo(*entry)._replace(tier=Tier(entry[-1])) for entry in known]
    return sorted(entries, key=lambda entry: order.get(entry.name, len(order)))


def options_of(job: Job, part: str) -> list[OptionInfo]:
    """All options of a part of a job, in the order of the job; the problem is a part of its own."""
    entries = {entry.name: entry for group in option_groups(job, part).values() for entry in describe(group)}
    entries.pop("problem", None)
    order = {name: number for number, name in enumerate(job.options(part))}
    return sorted(entries.values(), key=lambda entry: order.get(entry.name, len(order)))


def option_groups(job: Job, part: str) -> Mapping[str, type]:
    """The groups of options of a part of a job, by attribute; those of the bases come last."""
    if part == "problem":
        return {"problem": Problem}
    return groups_of(class_of((job.executor if part == "executor" else job.controller)["path"]))
