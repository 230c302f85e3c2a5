"""Distances between data sets obey the triangle that they are made of."""

import math
from itertools import product

import pytest

from grandrounds.protocol.spending import Unit, distance, update_sensitivity


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
    assert len({unit.described() for unit in Unit}) == 3
