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

import inspect
import math
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from grandrounds.errors import ConfigurationError

Group = TypeVar("Group")
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


class Options:
    """A group of options, as a frozen dataclass; checks every value against its annotation.

    Attributes:
        identifies_run: whether a saved run can only be resumed with the same values.
        prefix: comes before an option's name in errors.
    """

    identifies_run: ClassVar[bool] = True
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


def groups_of(component: type) -> dict[str, type[Options]]:
    """The option groups of a component and of its bases, by attribute; those of the bases come last.

    Example:
        >>> from grandrounds.methods.supervised.executor import SupervisedExecutor
        >>> groups_of(SupervisedExecutor)["compute"].__name__
        'ComputeOptions'
    """
    found: dict[str, type[Options]] = {}
    for base in component.__mro__:
        known = vars(sys.modules[base.__module__])
        for name, annotation in inspect.get_annotations(base).items():
            group = known.get(annotation) if isinstance(annotation, str) else annotation
            if isinstance(group, type) and issubclass(group, Options):
                found.setdefault(name, group)
    return found


def describe(group: type) -> list[OptionInfo]:
    """What is known of each option of a group.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Steps(Options):
        ...     steps: Annotated[int, "local steps in a round", Min(1)] = 26
        >>> describe(Steps)[0][:5]
        ('steps', 'an integer', 'at least 1', 26, 'local steps in a round')
    """
    known = annotations_of(group)
    return [
        OptionInfo(field.name, _description(known[field.name].type), str(known[field.name].bounds or ""),
                   field.default if field.default_factory is MISSING else field.default_factory(),
                   known[field.name].meaning, known[field.name].tier)
        for field in fields(group)
    ]  # fmt: skip


def require_value(value: Any, annotation: Any, bounds: Range | None, name: str) -> None:
    """Check a value against an annotation, as :func:`require_type` does, and against bounds.

    Raises:
        ConfigurationError: naming the option, what was expected and what came.
    """
    require_type(value, annotation, name)
    if bounds is None or value is None or isinstance(value, str):
        return
    for number in value if isinstance(value, list | tuple) else (value,):
        if not math.isfinite(number) or number not in bounds:
            expected = bounds if math.isfinite(number) else "finite"
            raise ConfigurationError(f"{name} must be {expected}, got {value}")


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
        raise ConfigurationError(f"{name} must be {_description(annotation)}, got {value!r}")


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
        >>> @dataclass(frozen=True)
        ... class Steps:
        ...     steps: int = 26
        >>> take_options(Steps, {"steps": 3, "device": "cpu"})
        (Steps(steps=3), {'device': 'cpu'})
    """
    known = fields(group)  # type: ignore[arg-type]
    names = {field.name for field in known}
    own = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items() if name in names}
    for field in known:
        if field.name not in own and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigurationError(f"option {field.name} is missing")
    return group(**own), {name: value for name, value in options.items() if name not in names}


def by_key(options: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """Values of options by part and name.

    Raises:
        ConfigurationError: if an option has no part.

    Example:
        >>> by_key({"executor.steps": 3})
        {('executor', 'steps'): 3}
    """
    values = {}
    for name, value in options.items():
        part, dot, option = name.partition(".")
        if not dot:
            raise ConfigurationError(f"{name}: expected part.option, such as executor.{name}")
        values[part, option] = value
    return values


def option_types(component: type) -> dict[str, Any]:
    """Annotations of all options that a component, or a group, takes: of its groups and keyword arguments, bases included.

    Example:
        >>> class Trainer:
        ...     def __init__(self, *, device: str = "cpu") -> None: ...
        >>> option_types(Trainer)
        {'device': <class 'str'>}
    """
    groups = _all_groups(component)
    found = {name: known.type for group in groups for name, known in annotations_of(group).items()}
    return {**{name: hint for name, (_, hint) in _keywords(component).items()}, **found}


def option_defaults(component: type) -> dict[str, Any]:
    """Defaults of those of :func:`option_types` that have one.

    Example:
        >>> class Trainer:
        ...     def __init__(self, *, device: str = "cpu", steps: int) -> None: ...
        >>> option_defaults(Trainer)
        {'device': 'cpu'}
    """
    found = {name: parameter.default for name, (parameter, _) in _keywords(component).items()}
    found |= {option.name: option.default for group in _all_groups(component) for option in describe(group)}
    return {name: value for name, value in found.items() if value not in (MISSING, inspect.Parameter.empty)}


def _all_groups(component: type) -> list[type[Options]]:
    return [component] if issubclass(component, Options) else list(groups_of(component).values())


def _keywords(component: type) -> dict[str, tuple[inspect.Parameter, Any]]:
    """The keyword arguments of a constructor and of those of the bases that it passes others on to, with annotations."""
    found: dict[str, tuple[inspect.Parameter, Any]] = {}
    for base in component.__mro__:
        if "__init__" not in vars(base):
            continue
        constructor = vars(base)["__init__"]
        parameters = inspect.signature(constructor).parameters.values()
        hints = get_type_hints(constructor)
        own = {p.name: (p, hints.get(p.name, Any)) for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
        found = {**own, **found}
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    return found


class Annotation(NamedTuple):
    """What the annotation of an option holds: its type, its bounds if it has some, its meaning, and who needs to know it."""

    type: Any
    bounds: Range | None
    meaning: str
    tier: Tier = Tier.EXPERT


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
    return Annotation(annotation, bounds, meaning, tier)


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


def _either(choices: Sequence[str]) -> str:
    *others, last = choices
    return f"{', '.join(others)} or {last}" if others else last
