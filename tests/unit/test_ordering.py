"""Sites are in natural order, whatever the order of the input."""

from itertools import permutations

import pytest

from grandrounds.ordering import natural_key, natural_sorted


def test_numbers_count_as_numbers():
    assert natural_sorted(["site-10", "site-9", "site-2", "site-1"]) == ["site-1", "site-2", "site-9", "site-10"]


@pytest.mark.parametrize("names", list(permutations(["a1", "a02", "b", "3", ""])))
def test_the_order_of_arrival_does_not_matter(names):
    assert natural_sorted(names) == ["", "3", "a1", "a02", "b"]


def test_names_that_begin_with_digits_and_names_that_do_not_can_be_compared():
    assert natural_sorted(["clinic", "2nd", "10th"]) == ["2nd", "10th", "clinic"]


def test_sort_keys_of_names_that_differ_in_text_are_different():
    assert natural_key("site-1") != natural_key("site1")


def test_names_that_differ_in_zeros_alone_have_an_order_too():
    assert natural_sorted(["site-01", "site-1"]) == natural_sorted(["site-1", "site-01"])
