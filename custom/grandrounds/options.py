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
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from grandrounds.errors import ConfigurationError
from grandrounds.plugins import outermost_packages

DESCRIPTIONS: Mapping[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    dict: "an object",
    Path: "a path",
    type(None): "null",
}


class Range(NamedTuple):
    """Finite numbers that an option may be; None and words are not checked.

    Attributes:
        minimum: the smallest value.
        maximum: the largest value.
        open_minimum: whether the minimum itself is excluded.
        open_maximum: whether the maximum itself is excluded.
    """

    minimum: float = -math.inf
    maximum: float = math.inf
    open_minimum: bool = False
    open_maximum: bool = False

    def __contains__(self, value: object) -> bool:
        """Whether a number lies in the range."""
        if not isinstance(value, int | float):
            return False
        above = value > self.minimum if self.open_minimum else value >= self.minimum
        return above and (value < self.maximum if self.open_maximum else value <= self.maximum)

    def __str__(self) -> str:
        """The range in words, for errors and documentation."""
        low = f"{'above' if self.open_minimum else 'at least'} {self.minimum:g}"
        high = f"{'below' if self.open_maximum else 'at most'} {self.maximum:g}"
        if math.isinf(self.maximum):
            return "positive" if self == ABOVE_ZERO else low
        if math.isinf(self.minimum):
            return high
        if self.open_minimum or self.open_maximum:
            return f"{low} and {high}"
        return f"between {self.minimum:g} and {self.maximum:g}"


def Min(value: float) -> Range:  # noqa: N802 - reads as a type beside Annotated
    """The range from a value on, including it."""
    return Range(minimum=value)


class Tier(StrEnum):
    """Who needs to know an option; without one in its annotation it is for experts."""

    BASIC = "basic"
    METHOD = "method"
    EXPERT = "expert"


BASIC, METHOD = Tier.BASIC, Tier.METHOD
"""What everyone decides who runs a job; and what makes its method."""


class Was(NamedTuple):
    """Names that an option had before: a job or a record that states one of them is read as if it stated today's.

    Beside the type, as in ``Annotated[int, "T, the maximum number of peers", Min(0), Was(("peer_count",))]``. Records are
    read without the classes of their job, so the names stand in :data:`~grandrounds.option_keys.FORMER_NAMES`, too.
    """

    names: tuple[str, ...]


ABOVE_ZERO = Range(0, open_minimum=True)

FRACTION = Range(0, 1)


class OptionInfo(NamedTuple):
    """What is known of an option, for the reference documentation and the command line.

    Attributes:
        name: of the option.
        type: in words.
        range: its bounds in words; empty if there are none.
        default: as JSON would write it; ``MISSING`` if the option has none.
        meaning: its one-line description.
        tier: who needs to know it.
    """

    name: str
    type: str
    range: str
    default: Any
    meaning: str
    tier: Tier = Tier.EXPERT

    @property
    def allowed(self) -> str:
        """Type and range in words."""
        return f"{self.type}, {self.range}" if self.range else self.type


def require_type(value: Any, annotation: Any, name: str) -> None:
    """Check a value against the annotation of its argument.

    Args:
        value: as JSON gives it.
        annotation: bool, int, float (an integer is one, too), str, None, a Literal, a dict, a list or tuple of one type, or
            a union of these; Any takes everything.
        name: how the error calls it.

    Raises:
        ConfigurationError: if it does not fit; with what was expected and what came.
        TypeError: if the annotation is another type.

    Example:
        >>> require_type(3, float, "executor.learning_rate")
        >>> require_type("abc", int | None, "controller.sites_per_round")
        Traceback (most recent call last):
        grandrounds.errors.ConfigurationError: controller.sites_per_round must be an integer or null, got 'abc'
    """
    if not fits(value, annotation):
        named = callable(value) and fits("", annotation)
        hint = "; give a name: gr.register_backbone, gr.register_metric and gr.register_view give one to your own"
        raise ConfigurationError(
            f"{name} must be {_description(annotation)}, got {_shown(value)}{hint if named else ''}"
        )


class Annotation(NamedTuple):
    """What an option's annotation holds: type, bounds if it has some, meaning, who needs to know it, and former names."""

    type: Any
    bounds: Range | None
    meaning: str
    tier: Tier = Tier.EXPERT
    was: tuple[str, ...] = ()


def annotations_of(group: type) -> Mapping[str, Annotation]:
    """Type, bounds and meaning of the fields of a group."""
    return _annotations_of(group)


@cache
def _annotations_of(group: type) -> Mapping[str, Annotation]:
    hints = get_type_hints(group, include_extras=True)
    return {field.name: _annotation(hints[field.name]) for field in fields(group)}


def _annotation(hint: Any) -> Annotation:
    if get_origin(hint) is not Annotated:
        return Annotation(hint, None, "")
    annotation, *extras = get_args(hint)
    bounds = next((extra for extra in extras if isinstance(extra, Range)), None)
    tier = next((extra for extra in extras if isinstance(extra, Tier)), Tier.EXPERT)
    meaning = next((extra for extra in extras if isinstance(extra, str) and not isinstance(extra, Tier)), "")
    was = tuple(name for extra in extras if isinstance(extra, Was) for name in extra.names)
    return Annotation(annotation, bounds, meaning, tier, was)


def fits(value: Any, annotation: Any) -> bool:
    """Whether a value is of an annotation's type, as :func:`require_type` checks it."""
    origin = get_origin(annotation) or annotation
    if annotation is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, choice) for choice in get_args(annotation))
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(annotation))
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(fits(entry, get_args(annotation)[0]) for entry in value)
    if annotation is None:
        return value is None
    if origin not in DESCRIPTIONS:
        raise TypeError(f"options cannot be of type {annotation}")
    # A bool is an integer to Python, but not to a reader of the job.
    return isinstance(value, (int, float) if origin is float else origin) and (origin is bool) == isinstance(
        value, bool
    )


def _description(annotation: Any) -> str:
    origin = get_origin(annotation) or annotation
    if origin in (Union, types.UnionType):
        return _either([_description(choice) for choice in get_args(annotation)])
    if origin is Literal:
        return _either([str(choice) for choice in get_args(annotation)])
    if origin in (list, tuple):
        entry = get_args(annotation)[0]
        return "a list of names" if entry is str else f"a list whose entries are {_description(entry)}"
    return DESCRIPTIONS[type(None) if annotation is None else origin]


def _shown(value: Any) -> str:
    """A value in one line; of a table or a network its type."""
    text = repr(value)
    return type(value).__name__ if "\n" in text else text


def _either(choices: Sequence[str]) -> str:
    *others, last = choices
    return f"{', '.join(others)} or {last}" if others else last


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
        >>> from grandrounds.methods.ridge.options import ViewOptions
        >>> describe(ViewOptions)[0][:4]
        ('views', 'a list of names', '', ('none', 'half_turn'))
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
