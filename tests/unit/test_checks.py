"""Argument checks let pass what is right, and say what is wrong."""

import numpy as np
import pytest
import torch

from grandrounds.checks import require_at_least, require_fraction, require_probabilities

NAN = float("nan")


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_a_fraction_is_returned(value):
    assert require_fraction(value, "share") == value


@pytest.mark.parametrize("value", [-0.001, 1.001, NAN, float("inf")])
def test_an_invalid_fraction_is_refused(value):
    with pytest.raises(ValueError, match=rf"share must be between 0 and 1, got {value}"):
        require_fraction(value, "share")


def test_the_least_value_itself_is_allowed():
    require_at_least(2, 2, "steps")


@pytest.mark.parametrize("value", [1.9, NAN])
def test_less_than_the_least_is_refused(value):
    with pytest.raises(ValueError, match=rf"steps must be at least 2, got {value}"):
        require_at_least(value, 2, "steps")


def test_distributions_pass():
    require_probabilities(torch.tensor([[0.25, 0.75], [1.0, 0.0], [0.50004, 0.5]]), "p")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([0.5, 0.5], r"p must have shape \(samples, classes\), got \(2,\)"),
        ([[0.5, 0.5], [-0.1, 1.1]], "row 1 of p has a negative or non-finite entry"),
        ([[NAN, 0.5]], "row 0 of p has a negative or non-finite entry"),
        ([[0.5, 0.5], [0.5, 0.5], [0.5, 0.4]], "row 2 of p sums to 0.9, expected 1"),
    ],
)
@pytest.mark.parametrize("make", [torch.tensor, np.array])
def test_rows_that_are_no_distribution_are_named(make, rows, message):
    with pytest.raises(ValueError, match=message):
        require_probabilities(make(rows), "p")
