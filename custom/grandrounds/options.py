"""Options: each is written once, as a dataclass field whose annotation holds its type, bounds and meaning.

A group of options is a frozen dataclass derived from :class:`Options`::

    @dataclass(frozen=True)
    class PeerOptions(Options):
        peers: Annotated[int, "T, the maximum number of peers; 0 is SSFL", Min(0)] = 2
        gate: Annotated[float, "rho, the threshold of a gated policy", FRACTION] = 0.0

A component (controller or executor) derives from :class:`Configurable` and declares its groups as annotated attributes::

    class FedPerlController(FedAvgController):
        peer_options: PeerOptions

The base class fills them. The check of a job, the command line and the reference documentation are generated from these
annotations.
"""

from __future__ import annotations

import copy
import inspect
import math
import sys
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any, ClassVar, Self, TypeVar

from grandrounds.errors import ConfigurationError
from grandrounds.option_annotations import OptionInfo, Range, _description, annotations_of, require_type
from grandrounds.plugins import outermost_packages

Group = TypeVar("Group")


class Options:
    """A group of options, as a frozen dataclass; checks every value against its annotation.

    Attributes:
        identifies_run: whether a saved run can only be resumed with the same values.
        of_machine: whether the values may differ between the sites of a run, because their machines do.
        prefix: comes before an option's name in errors.
    """

    identifies_run: ClassVar[bool] = True
    of_machine: ClassVar[bool] = False
    prefix: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Check types, choices and bounds, then combinations.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        for name, known in annotations_of(type(self)).items():
            require_value(getattr(self, name), known.type, known.bounds, self.prefix + name)
        self.check()

    def check(self) -> None:
        """Refuse combinations of values that contradict each other, by a :class:`ConfigurationError`."""


class Configurable:
    """A component whose options are groups: attributes that are annotated with a class derived from :class:`Options`."""

    _given: dict[str, Any]

    def __new__(cls, **options: Any) -> Self:
        """Keep the arguments as they were given, for :meth:`add_to_fed_job`."""
        made = super().__new__(cls)
        made._given = options
        return made

    def take_groups(self, options: Mapping[str, Any]) -> None:
        """Build every group of the component and of its bases from keyword arguments.

        Raises:
            ConfigurationError: if a value does not fit, or an argument belongs to no group.
        """
        remaining = dict(options)
        for name, group in groups_of(type(self)).items():
            made, remaining = take_options(group, remaining)
            setattr(self, name, made)
        if remaining:
            raise ConfigurationError(f"{type(self).__name__} has no option {', '.join(sorted(remaining))}")

    def options(self) -> dict[str, Any]:
        """The options that must be the same when a saved run is resumed."""
        groups = [getattr(self, name) for name, group in groups_of(type(self)).items() if group.identifies_run]
        return {name: value for group in groups for name, value in asdict(group).items()}

    def add_to_fed_job(self, job: Any, ctx: Any, **arguments: Any) -> None:
        """FLARE's hook: a ``FedJob`` gets this component with all its options, and not the code of installed packages."""
        known = [option for group in groups_of(type(self)).values() for option in describe(group)]
        options = {option.name: option.default for option in known if option.default is not MISSING} | self._given
        job.set_app_packages(sorted({*job.job.app_packages, *outermost_packages()}))
        added: Any = super(Configurable, with_arguments(self, options))
        added.add_to_fed_job(job, ctx, **arguments)


def with_arguments(component: Any, arguments: Mapping[str, Any]) -> Any:
    """A copy of a component for which FLARE's job API writes exactly these arguments.

    By itself it writes an attribute for each name in the signature of ``__init__``, unless it equals the default: of a
    constructor that takes ``**options`` nothing, and of an attribute that was derived from an argument the derived value.
    """

    def __init__(self: Any, **options: Any) -> None: ...  # noqa: N807 - becomes a method

    names = (inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in arguments)
    __init__.__signature__ = inspect.Signature(list(names))  # type: ignore[attr-defined]
    kind, made = type(component), copy.copy(component)
    made.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__, "__init__": __init__})
    vars(made).update(arguments)
    return made


def groups_of(component: type) -> dict[str, type[Options]]:
    """The option groups of a component and of its bases, by attribute; those of the bases come last.

    Example:
        >>> from grandrounds.methods.supervised.executor import SupervisedExecutor
        >>> groups_of(SupervisedExecutor)["compute"].__name__
        'ComputeOptions'
    """
    groups: dict[str, type[Options]] = {}
    for base in component.__mro__:
        known = vars(sys.modules[base.__module__])
        for name, annotation in inspect.get_annotations(base).items():
            group = known.get(annotation) if isinstance(annotation, str) else annotation
            if isinstance(group, type) and issubclass(group, Options):
                groups.setdefault(name, group)
    return groups


def describe(group: type) -> list[OptionInfo]:
    """What is known of each option of a group.

    Example:
        >>> from grandrounds.methods.baselines.swarm.controller import SwarmOptions
        >>> describe(SwarmOptions)[2][:5]
        ('min_sites', 'an integer', 'at least 2', 2, 'minimum number of sites')
    """
    known = annotations_of(group)
    return [
        OptionInfo(field.name, _description(known[field.name].type), str(known[field.name].bounds or ""),
                   field.default if field.default_factory is MISSING else field.default_factory(),
                   known[field.name].meaning, known[field.name].tier)
        for field in fields(group)
    ]  # fmt: skip


def former_names(group: type) -> dict[str, str]:
    """Names that options of a group had before, with those of today."""
    return {former: name for name, known in annotations_of(group).items() for former in known.was}


def with_current_names(options: Mapping[str, Any], former: Mapping[str, str]) -> dict[str, Any]:
    """Options with the names of today; of an option that is stated under both, today's stays.

    Example:
        >>> with_current_names({"peer_count": 3, "steps": 26}, {"peer_count": "peers"})
        {'peers': 3, 'steps': 26}
    """
    return {former.get(name, name): value for name, value in options.items() if former.get(name) not in options}


def require_value(value: Any, annotation: Any, bounds: Range | None, name: str) -> None:
    """Check a value against an annotation, as :func:`require_type` does, and against bounds; numbers must be finite.

    Raises:
        ConfigurationError: naming the option, what was expected and what came.
    """
    require_type(value, annotation, name)
    for number in value if isinstance(value, list | tuple) else (value,):
        if isinstance(number, float) and not math.isfinite(number):
            raise ConfigurationError(f"{name} must be finite, got {value}")
        if bounds is not None and isinstance(number, int | float) and number not in bounds:
            raise ConfigurationError(f"{name} must be {bounds}, got {value}")


def take_options(group: type[Group], options: Mapping[str, Any]) -> tuple[Group, dict[str, Any]]:
    """Build a group of options from those arguments that belong to it.

    Args:
        group: a dataclass that checks its values.
        options: keyword arguments; a list becomes a tuple.

    Returns:
        The dataclass, and the arguments that are not its fields.

    Raises:
        ConfigurationError: if an option without a default is missing, or a value does not fit.

    Example:
        >>> from dataclasses import dataclass
        >>> from typing import Annotated
        >>> @dataclass(frozen=True)
        ... class Steps:
        ...     steps: int = 26
        >>> take_options(Steps, {"steps": 3, "device": "cpu"})
        (Steps(steps=3), {'device': 'cpu'})
    """
    known = fields(group)  # type: ignore[arg-type]
    names = {field.name for field in known}
    options = with_current_names(options, former_names(group))
    own = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items() if name in names}
    for field in known:
        if field.name not in own and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigurationError(f"option {field.name} is missing")
    return group(**own), {name: value for name, value in options.items() if name not in names}
