import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from grandrounds.errors import ConfigurationError
from grandrounds.options import (
    option_types,
    require_fractions,
    require_min,
    require_positive,
    require_type,
    require_words,
    take_options,
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
    require_type(value, annotation, "executor.option")


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
class Numbers:
    steps: int | None = None
    rate: float = 0.5
    view: Literal["none", "weak"] = "none"


def test_numbers_in_their_range_pass_to_its_ends():
    numbers = Numbers(steps=2, rate=1)
    require_min(numbers, 2, "steps")
    require_fractions(numbers, "rate")
    require_fractions(Numbers(rate=0.0), "rate")
    require_positive(Numbers(rate=1e-300), "rate", "steps")
    require_words(numbers, "view")


@pytest.mark.parametrize(
    ("check", "options", "message"),
    [
        (lambda n: require_min(n, 2, "steps"), {"steps": 1}, "steps must be at least 2, got 1"),
        (lambda n: require_min(n, 2, "steps"), {"steps": 2.0}, "steps must be an integer or null, got 2.0"),
        (lambda n: require_min(n, 0, "steps", "rate"), {"rate": -1.0}, "rate must be at least 0, got -1.0"),
        (lambda n: require_min(n, 0, "rate"), {"rate": math.inf}, "rate must be finite, got inf"),
        (lambda n: require_min(n, 0, "rate"), {"rate": None}, "rate must be a number, got None"),
        (lambda n: require_positive(n, "rate"), {"rate": 0.0}, "rate must be positive, got 0.0"),
        (lambda n: require_positive(n, "rate"), {"rate": math.nan}, "rate must be finite, got nan"),
        (lambda n: require_fractions(n, "rate"), {"rate": 1.5}, "rate must be between 0 and 1, got 1.5"),
        (lambda n: require_words(n, "view"), {"view": "some"}, "view must be one of none, weak, got 'some'"),
    ],
)
def test_a_number_or_word_out_of_range_is_named(check, options, message):
    with pytest.raises(ConfigurationError) as refused:
        check(Numbers(**options))
    assert str(refused.value) == message


@dataclass(frozen=True)
class Steps:
    steps: int = 26
    levels: tuple[int, int] | None = None

    def __post_init__(self):
        if self.steps < 1:
            raise ConfigurationError("steps")


@dataclass(frozen=True)
class Peers:
    peers: int = 2


class Base:
    def __init__(self, *, device: str = "auto"):
        self.device = device


class Trainer(Base):
    option_groups: ClassVar[tuple[type, ...]] = (Steps,)

    def __init__(self, **options: Any):
        self.training, others = take_options(Steps, options)
        super().__init__(**others)


class WithPeers(Trainer):
    option_groups: ClassVar[tuple[type, ...]] = (Peers,)

    def __init__(self, *, vote: bool = False, **options: Any):
        self.peers, others = take_options(Peers, options)
        super().__init__(**others)


def test_options_go_to_their_groups_and_the_rest_to_the_base():
    made = WithPeers(peers=3, steps=4, levels=[1, 2], device="cpu", vote=True)
    assert (made.peers, made.training, made.device) == (Peers(3), Steps(4, (1, 2)), "cpu")
    assert (WithPeers().peers, WithPeers().training) == (Peers(), Steps())


def test_a_name_that_nobody_knows_is_refused_by_the_base():
    with pytest.raises(TypeError, match="unexpected keyword argument 'pears'"):
        WithPeers(pears=3)


def test_a_group_checks_its_values():
    with pytest.raises(ConfigurationError, match="steps"):
        WithPeers(steps=0)


def test_the_options_of_a_component_are_those_of_its_groups_and_bases():
    assert option_types(WithPeers) == {
        "peers": int,
        "vote": bool,
        "steps": int,
        "levels": tuple[int, int] | None,
        "device": str,
    }
