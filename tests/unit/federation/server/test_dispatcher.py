"""The server refuses numbers that no images can have."""

import pytest

from grandrounds.errors import MessageError
from grandrounds.federation.server.dispatcher import require_possible_numbers


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("validation.n", -1.0, r"^validation\.n must be at least 0, got -1$"),
        ("common.n", -0.5, r"^common\.n must be at least 0, got -0\.5$"),
        ("validation.unit", 9.0, r"^validation\.unit must be in \[0, 2\], got 9$"),
        ("own.unit", 0.5, r"^own\.unit must be in \[0, 2\], got 0\.5$"),
        ("own.unit", -1.0, r"^own\.unit must be in \[0, 2\], got -1$"),
    ],
)
def test_an_impossible_number_is_refused_with_the_metrics_name(name, value, message):
    with pytest.raises(MessageError, match=message):
        require_possible_numbers({"validation.accuracy": 0.5, name: value})


def test_possible_numbers_and_other_negative_metrics_pass():
    assert require_possible_numbers({"a.n": 0.0, "a.unit": 2.0, "a.log_likelihood": -3.0}) is None
