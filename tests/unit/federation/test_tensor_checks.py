"""Values that are not finite are found wherever they are, and large ones are not taken for them."""

import pytest
import torch

from grandrounds.errors import MessageError
from grandrounds.protocol.tensors import require_finite_tensors

INFINITY = float("inf")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_finite_values_whose_sum_is_too_large_are_let_through(dtype):
    largest = torch.finfo(dtype).max
    assert not torch.isfinite(torch.full((64,), largest, dtype=dtype).sum())
    require_finite_tensors({"w": torch.full((64,), largest, dtype=dtype), "n": torch.tensor([3])}, "update")


@pytest.mark.parametrize(
    "values", [[float("nan"), 1.0], [INFINITY, 1.0], [1.0, -INFINITY], [INFINITY, -INFINITY], [3e38, 3e38, -INFINITY]]
)
def test_a_tensor_with_a_value_that_is_not_finite_is_named(values):
    with pytest.raises(MessageError, match=r"update\['b'\]"):
        require_finite_tensors({"a": torch.ones(2), "b": torch.tensor(values)}, "update")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_floating_point_type_that_cannot_be_added_up_is_named(dtype):
    with pytest.raises(
        MessageError, match=r"update\['b'\] must be of half, single or double precision, got torch.float8"
    ):
        require_finite_tensors({"a": torch.ones(2), "b": torch.ones(2).to(dtype)}, "update")
