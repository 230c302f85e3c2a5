"""An anonymised peer is the average of models, whatever their order."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.methods.fedperl.peer_selection import (
    anonymised_peer,
)
from grandrounds.seeding import torch_generator


def states(count, dtype=torch.float32):
    generator = torch_generator("states", count)
    scale = 10.0 ** torch.randint(-12, 12, (count, 6, 50), generator=generator)
    values = torch.randn(count, 6, 50, generator=generator) * scale
    return [{"w": values[k].to(dtype), "n": torch.tensor(k)} for k in range(count)]


def same_bits(first, second):
    return all(
        first[name].dtype == second[name].dtype
        and first[name].contiguous().reshape(-1).view(torch.uint8).tolist()
        == second[name].contiguous().reshape(-1).view(torch.uint8).tolist()
        for name in first.keys() | second.keys()
    )


def test_the_average_matches_the_hand_computed_entries():
    first = {"w": torch.tensor([1.0, 2.0]), "bn.running_var": torch.tensor([1.0]), "n": torch.tensor(7)}
    second = {"w": torch.tensor([3.0, 6.0]), "bn.running_var": torch.tensor([3.0]), "n": torch.tensor(4)}
    average = anonymised_peer([first, second])
    assert {name: value.tolist() for name, value in average.items()} == {
        "w": [2.0, 4.0],
        "bn.running_var": [2.0],
        "n": 7,
    }
    assert list(average) == list(first)
    assert first["w"].tolist() == [1.0, 2.0]
    assert second["w"].tolist() == [3.0, 6.0]


def test_the_average_model_is_not_the_average_of_the_models():
    # relu(w x) at x = 1 with w = 1 and w = -3.
    models = [{"w": torch.tensor([1.0])}, {"w": torch.tensor([-3.0])}]
    assert sum(torch.relu(model["w"]).item() for model in models) / 2 == 0.5
    assert torch.relu(anonymised_peer(models)["w"]).item() == 0.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_average_is_bit_for_bit_the_same_in_any_order(dtype):
    models = states(4, dtype)
    averages = [anonymised_peer(order) for order in itertools.permutations(models)]
    assert all(same_bits(averages[0], average) for average in averages)
    values = np.stack([model["w"].double().numpy() for model in models])
    errors = np.abs(averages[0]["w"].double().numpy() - values.mean(axis=0))
    # Large values of either sign cancel: their rounding stays, and depends on the values that this processor draws.
    assert (errors <= 4 * torch.finfo(dtype).eps * np.abs(values).mean(axis=0)).all()


@given(order=st.permutations([1e16, 1.0, -1e16, 1.0, 3.0]))
def test_cancellation_does_not_bring_the_order_back(order):
    # Added from left to right, in double precision, these give 0 to 5.
    forward = anonymised_peer([{"w": torch.tensor([value], dtype=torch.float64)} for value in order])
    backward = anonymised_peer([{"w": torch.tensor([value], dtype=torch.float64)} for value in sorted(order)])
    assert same_bits(forward, backward)


def test_one_state_gives_a_copy_with_the_same_bits():
    state = {"w": torch.tensor([-0.0, 1e-45, 3.4e38]), "h": torch.tensor([0.1], dtype=torch.bfloat16)}
    copy = anonymised_peer([state])
    assert same_bits(copy, state)
    copy["w"].zero_()
    copy["h"].zero_()
    assert state["w"][2] > 0
    assert state["h"][0] > 0


def test_one_state_gives_a_copy_of_its_counters_and_views_too():
    state = {"n": torch.tensor([3]), "mask": torch.tensor([True, False]), "w": torch.arange(6.0).reshape(2, 3).T}
    copy = anonymised_peer([state])
    assert same_bits(copy, state)
    copy["n"].zero_()
    copy["mask"].zero_()
    assert state["n"].item() == 3
    assert state["mask"].tolist() == [True, False]


def test_the_average_carries_no_gradient_to_the_peers():
    parameter = torch.nn.Parameter(torch.ones(2))
    assert not anonymised_peer([{"w": parameter}, {"w": parameter}])["w"].requires_grad
