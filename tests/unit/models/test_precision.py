"""Losses are computed in single precision at least."""

import pytest
import torch

from grandrounds.models.precision import at_least_single


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_half_precision_is_widened_and_nothing_is_narrowed(given, expected):
    values = torch.tensor([0.1, -3.0]).to(given)
    wide = at_least_single(values)
    assert wide.dtype == expected
    assert torch.equal(wide.double(), values.double())
