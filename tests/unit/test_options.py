"""Options are checked against their annotations; a component's groups are filled by its base class."""

import math
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, ClassVar, Literal

import pytest

from grandrounds.errors import ConfigurationError
from grandrounds.option_keys import option_types
from grandrounds.options import (
    ABOVE_ZERO,
    FRACTION,
    Configurable,
    Min,
    OptionInfo,
    Options,
    Range,
    describe,
    groups_of,
    require_type,
)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (True, bool),
        (3, int),
        (3, float),
        (0.5, float),
        (math.inf, float),
        ("a", str),
        (None, None),
        (None, float | None),
        (2, float | None),
        ("batch", Literal["batch", "group"]),
        ({"a": 1}, dict[str, Any]),
        ([], list[str]),
        (["a"], tuple[str, ...]),
        (("a", "b"), list[str]),
        (object(), Any),
    ],
)
def test_a_value_of_its_type_passes(value, annotation):
    assert require_type(value, annotation, "executor.option") is None  # an error otherwise


@pytest.mark.parametrize(
    ("value", "annotation", "message"),
    [
        ("abc", int, "an integer, got 'abc'"),
        (2.0, int, "an integer, got 2.0"),
        (True, int, "an integer, got True"),
        (False, float, "a number, got False"),
        ("False", bool, "true or false, got 'False'"),
        (1, bool, "true or false, got 1"),
        (1, str, "text, got 1"),
        (0, None, "null, got 0"),
        (True, int | None, "an integer or null, got True"),
        ("none", Literal["batch", "group"] | None, "batch or group or null, got 'none'"),
        (1, Literal["batch", "group"], "batch or group, got 1"),
        (True, Literal[1, 2], "1 or 2, got True"),
        ([], dict[str, Any], "an object, got []"),
        ("ab", list[str], "a list of names, got 'ab'"),
        (["a", 1], tuple[str, ...], "a list of names, got ['a', 1]"),
        (["a"], list[int], "a list whose entries are an integer, got ['a']"),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_was_expected(value, annotation, message):
    with pytest.raises(ConfigurationError) as refused:
        require_type(value, annotation, "executor.option")
    assert str(refused.value) == f"executor.option must be {message}"


def test_an_annotation_that_options_cannot_have_is_a_mistake_of_the_program():
    with pytest.raises(TypeError, match="options cannot be of type"):
        require_type(1, complex, "executor.option")


@dataclass(frozen=True)
class Numbers(Options):
    steps: Annotated[int | None, "of a round", Min(2)] = None
    rate: Annotated[float, "the share", FRACTION] = 0.5
    scale: Annotated[float, "a factor", ABOVE_ZERO] = 1.0
    sizes: Annotated[tuple[int, ...], "of layers", Min(1)] = (1,)
    timeout: Annotated[float | None, "seconds, without bounds"] = None
    view: Literal["none", "weak"] = "none"

    def check(self):
        if self.view == "weak" and self.steps is None:
            raise ConfigurationError("view=weak needs steps")


def test_numbers_in_their_range_pass_to_its_ends():
    assert Numbers(steps=2, rate=1).rate == 1
    assert Numbers(rate=0.0, scale=1e-300, sizes=(1, 5), view="none").scale == 1e-300


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 1}, "steps must be at least 2, got 1"),
        ({"steps": 2.0}, "steps must be an integer or null, got 2.0"),
        ({"rate": -1.0}, "rate must be between 0 and 1, got -1.0"),
        ({"rate": math.inf}, "rate must be finite, got inf"),
        ({"rate": None}, "rate must be a number, got None"),
        ({"scale": 0.0}, "scale must be positive, got 0.0"),
        ({"scale": math.nan}, "scale must be finite, got nan"),
        ({"timeout": math.nan}, "timeout must be finite, got nan"),
        ({"steps": 10**400, "timeout": math.inf}, "timeout must be finite, got inf"),
        ({"sizes": (2, 0)}, "sizes must be at least 1, got (2, 0)"),
        ({"view": "some"}, "view must be none or weak, got 'some'"),
        ({"view": "weak"}, "view=weak needs steps"),
    ],
)
def test_a_value_out_of_range_is_named(options, message):
    with pytest.raises(ConfigurationError) as refused:
        Numbers(**options)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        (Min(2), "at least 2"),
        (ABOVE_ZERO, "positive"),
        (FRACTION, "between 0 and 1"),
        (Range(maximum=4), "at most 4"),
        (Range(0, 1, open_maximum=True), "at least 0 and below 1"),
        (Range(0, 1, open_minimum=True), "above 0 and at most 1"),
    ],
)
def test_a_range_reads_as_its_bounds(bounds, text):
    assert str(bounds) == text


@dataclass(frozen=True)
class Steps(Options):
    steps: Annotated[int, "local steps", Min(1)] = 26
    levels: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Peers(Options):
    peers: int
    vote: bool = False


@dataclass(frozen=True)
class Device(Options):
    identifies_run: ClassVar[bool] = False

    device: str = "auto"


class Trainer(Configurable):
    training: Steps
    compute: Device

    def __init__(self, **options: Any):
        self.take_groups(options)


class WithPeers(Trainer):
    choice: Peers

    def __init__(self, *, diary: str = "", **options: Any):
        super().__init__(**options)
        self.diary = diary


def test_options_go_to_the_groups_of_a_component_and_of_its_bases():
    made = WithPeers(peers=3, steps=4, levels=[1, 2], device="cpu", diary="a")
    assert (made.choice, made.training, made.compute) == (Peers(3), Steps(4, (1, 2)), Device("cpu"))
    assert made.diary == "a"
    assert list(groups_of(WithPeers)) == ["choice", "training", "compute"]


def test_a_saved_run_depends_on_the_groups_that_identify_it():
    assert WithPeers(peers=3).options() == {"peers": 3, "vote": False, "steps": 26, "levels": None}


def test_an_unknown_name_and_a_missing_one_are_refused():
    with pytest.raises(ConfigurationError, match="WithPeers has no option pears"):
        WithPeers(peers=3, pears=3)
    with pytest.raises(ConfigurationError, match="option peers is missing"):
        WithPeers()
    with pytest.raises(ConfigurationError, match=r"steps .*got 0"):
        WithPeers(peers=3, steps=0)


def test_the_options_of_a_component_are_those_of_its_groups_and_keywords():
    assert option_types(WithPeers) == {
        "peers": int,
        "vote": bool,
        "diary": str,
        "steps": int,
        "levels": tuple[int, ...] | None,
        "device": str,
    }


def test_a_group_describes_its_options():
    steps, levels = describe(Steps)
    assert steps == OptionInfo("steps", "an integer", "at least 1", 26, "local steps")
    assert (levels.type, levels.range, levels.meaning) == ("a list whose entries are an integer or null", "", "")
    assert describe(Peers)[0].default is MISSING
