"""Random answers, among them objects that answer differently when they are read again: nothing leaves that must not."""

import os

import pytest
from fuzzing import quiet, run
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

ANSWERS = "GRANDROUNDS_FUZZED_ANSWERS"
"""Number of answers of the long run."""


@pytest.fixture(autouse=True)
def without_files(monkeypatch):
    quiet(monkeypatch)


def require_nothing(count, seed):
    faults, left = run(count, seed)
    assert faults == [], f"{len(faults)} of {count} answers of seed {seed}"
    return left


def test_of_two_thousand_random_answers_nothing_leaks():
    assert require_nothing(2000, seed=1) > 300, "good answers leave"


@settings(
    max_examples=40,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32 - 1))
def test_of_answers_of_any_seed_nothing_leaks(seed):
    require_nothing(20, seed)


@pytest.mark.fuzz
def test_of_many_random_answers_nothing_leaks():
    """Minutes; ``GRANDROUNDS_FUZZED_ANSWERS`` changes the number."""
    require_nothing(int(os.environ.get(ANSWERS, "100000")), seed=7)
