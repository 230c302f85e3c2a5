"""Units of protection, and the cost of a release."""

import math
from itertools import product

import pytest

from grandrounds.errors import ConfigurationError
from grandrounds.protocol.spending import GaussianSteps, Mechanism, Spending, Unit, distance, update_sensitivity


def test_a_detour_is_never_shorter():
    for first, middle, last in product(Unit, repeat=3):
        assert distance(first, last) <= distance(first, middle) * distance(middle, last)


@pytest.mark.parametrize("unit", Unit)
def test_a_guarantee_for_one_record_hides_no_site(unit):
    assert distance(Unit.RECORD, unit) == (1.0 if unit is Unit.RECORD else math.inf)


def test_two_clipped_updates_may_be_opposite():
    for unit in (Unit.SITE, Unit.RECORD):
        assert update_sensitivity(1.0, unit) == abs(1.0 - -1.0)


def test_every_unit_has_words():
    assert len({unit.described() for unit in Unit}) == len(Unit)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0,), "noise_multiplier must be a positive number, got 0"),
        ((1.0, 0.0), "sampling_rate must be above 0 and at most 1, got 0"),
        ((1.0, 1.5), "sampling_rate must be above 0 and at most 1, got 1.5"),
        ((1.0, 1.0, 0), "steps must be at least 1, got 0"),
    ],
)
def test_steps_outside_their_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        GaussianSteps(*arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sigma": 0.0}, "sigma must be a positive number, got 0.0: a release without noise has no epsilon"),
        ({"sigma": -1.0}, "sigma must be a positive number, got -1.0"),
        ({"sensitivity": math.inf}, "sensitivity must be .* got inf: noise without clipping has no epsilon"),
        ({"sensitivity": 0.0}, "sensitivity must be a positive number, got 0.0"),
        ({"sampling_rate": 0.5}, "sampling_rate 0.5 is for the units record and patient, not site: the server knows"),
        ({"unit": Unit.RECORD, "sampling_rate": 2.0}, "sampling_rate must be above 0 and at most 1, got 2"),
    ],
)
def test_a_spending_without_a_guarantee_is_not_called_one(changes, message):
    values = {"mechanism": Mechanism.GAUSSIAN, "unit": Unit.SITE, "sensitivity": 1.0, "sigma": 1.0} | changes
    with pytest.raises(ConfigurationError, match=message):
        Spending(**values)
