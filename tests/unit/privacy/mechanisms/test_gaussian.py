"""Clipping is exact over the whole update; clipping and noise are one step."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.errors import ConfigurationError
from grandrounds.privacy.mechanisms.gaussian import GaussianMechanism, clip_rows, clipping_factor, l2_norm
from grandrounds.protocol.spending import Unit
from grandrounds.seeding import numpy_generator, torch_generator

COUNT = 200_000
WIDE = 7.0


def update() -> dict[str, torch.Tensor]:
    return {"w": torch.full((COUNT,), 3.0), "b": torch.full((4,), -2.0), "steps": torch.tensor(9)}


def test_the_release_is_the_clipped_update_with_noise_on_every_entry():
    released = GaussianMechanism(clip=2.0, sigma=0.5).release(update())
    norm = math.sqrt(COUNT * 9 + 16)
    noise = (released["w"].double() - 3.0 * 2.0 / norm).numpy()
    assert abs(noise.std() / 0.5 - 1) < WIDE / math.sqrt(2 * COUNT)
    assert abs(noise.mean()) < WIDE * 0.5 / math.sqrt(COUNT)
    assert (released["b"] != -2.0 * 2.0 / norm).all()


def test_with_next_to_no_noise_the_norm_is_the_clip_to_a_millionth():
    released = GaussianMechanism(clip=2.0, sigma=1e-12).release(update())
    flat = np.concatenate([released[name].double().numpy() for name in ("w", "b")])
    assert np.linalg.norm(flat) == pytest.approx(2.0, rel=1e-6)


def zeros() -> dict[str, torch.Tensor]:
    return {"w": torch.zeros(COUNT, dtype=torch.float64), "v": torch.zeros(COUNT, dtype=torch.float64)}


def test_the_noise_of_two_releases_and_of_two_entries_is_independent():
    mechanism = GaussianMechanism(clip=1.0, sigma=0.5)
    first, second = mechanism.release(zeros()), mechanism.release(zeros())
    draws = [entry.numpy() for released in (first, second) for entry in released.values()]
    for one, other in itertools.combinations(draws, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < WIDE / math.sqrt(COUNT)
        assert abs(np.corrcoef(one**2, other**2)[0, 1]) < WIDE / math.sqrt(COUNT)


@pytest.mark.parametrize(
    ("factor", "expected"), [(0.5, 1.0), (1 - 1e-9, 1.0), (1.0, 1.0), (1 + 1e-9, 1 / (1 + 1e-9)), (2.0, 0.5)]
)
def test_an_update_is_scaled_above_the_bound_alone(factor, expected):
    # 3-4-12 over two entries: the norm is 13.
    bound = 13.0
    sent = {"a": torch.tensor([3.0, 4.0]).double() * factor, "b": torch.tensor([[12.0]]).double() * factor}
    released = GaussianMechanism(clip=bound, sigma=1e-13).release(sent)
    for name, value in sent.items():
        torch.testing.assert_close(released[name], value * expected, rtol=1e-11, atol=0)
    assert l2_norm(released) == pytest.approx(min(factor, 1.0) * bound, rel=1e-11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floating_entries_keep_their_dtype_and_shape(dtype):
    released = GaussianMechanism(clip=1.0, sigma=1.0).release({"w": torch.ones(40, 50, dtype=dtype)})["w"]
    assert (released.dtype, released.shape) == (dtype, (40, 50))
    assert bool(torch.isfinite(released).all())
    assert float(released.double().std()) == pytest.approx(1, abs=WIDE / math.sqrt(2 * 2000))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integer_entries_are_copied_without_clipping_and_noise(dtype):
    counter = torch.tensor([0, 1, 100]).to(dtype)
    sent = {"w": torch.full((3,), 50.0), "counter": counter}
    released = GaussianMechanism(clip=1.0, sigma=5.0).release(sent)["counter"]
    assert released.dtype == dtype
    assert torch.equal(released, counter)
    assert released.data_ptr() != counter.data_ptr()


@pytest.mark.parametrize(("unit", "sensitivity"), [(Unit.PRESENCE, 1.5), (Unit.SITE, 3.0), (Unit.RECORD, 3.0)])
def test_what_is_booked_follows_from_clip_and_unit(unit, sensitivity):
    spending = GaussianMechanism(clip=1.5, sigma=6.0, unit=unit).spending()
    assert (spending.unit, spending.sensitivity, spending.sigma) == (unit, sensitivity, 6.0)


@pytest.mark.parametrize("sigma", [0.0, -0.1, math.nan, math.inf])
def test_no_noise_is_refused(sigma):
    with pytest.raises(ConfigurationError, match=r"sigma must be a positive number, got"):
        GaussianMechanism(clip=1.0, sigma=sigma)


def small_update(scale: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch_generator("clipping")
    return {
        "conv.weight": scale * torch.randn(8, 3, 3, 3, generator=generator),
        "fc.bias": scale * torch.randn(5, generator=generator),
        "bn.num_batches_tracked": torch.tensor(1000),
    }


def numpy_norm(state: dict[str, torch.Tensor]) -> float:
    return float(
        np.linalg.norm(np.concatenate([v.double().numpy().ravel() for v in state.values() if v.is_floating_point()]))
    )


@given(clip=st.floats(1e-4, 1e4), scale=st.floats(1e-3, 1e3))
def test_the_factor_brings_the_norm_over_all_entries_to_the_clip_or_leaves_it(clip, scale):
    before = small_update(scale)
    expected = min(clip, numpy_norm(before))
    assert clipping_factor(l2_norm(before), clip) * numpy_norm(before) == pytest.approx(expected, rel=1e-12)


def test_a_short_update_is_multiplied_by_one_to_the_bit():
    assert clipping_factor(l2_norm(small_update()), 1e3) == 1.0


def test_integers_are_not_in_the_norm():
    assert l2_norm(small_update()) == pytest.approx(numpy_norm(small_update()), rel=1e-12)


def test_the_norm_of_half_precision_is_that_of_its_values_in_double():
    entries = {"half": torch.full((10,), 3e4, dtype=torch.float16), "double": torch.ones(2, dtype=torch.float64)}
    assert l2_norm(entries) == pytest.approx(math.sqrt(10 * 3e4**2 + 2), rel=1e-4)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (torch.tensor([1.0, math.nan]), "'w' has a value that is NaN or infinite"),
        (torch.tensor([-math.inf]), "'w' has a value that is NaN or infinite"),
        (torch.tensor([1j]), "'w' is of torch.complex64: complex entries"),
        (torch.tensor([1]), "no floating-point entry: there is nothing to clip"),
    ],
)
def test_an_update_without_a_norm_is_refused(entry, message):
    with pytest.raises(ValueError, match=message):
        l2_norm({"w": entry})


@pytest.mark.parametrize("clip", [0.0, -1.0, math.inf, math.nan])
def test_a_clip_that_is_no_bound_is_refused(clip):
    for use in (lambda: clipping_factor(1.0, clip), lambda: clip_rows(torch.ones(1, 1), clip)):
        with pytest.raises(ConfigurationError, match=r"clip must be a positive number, got"):
            use()


def test_rows_are_clipped_one_by_one():
    rows = numpy_generator("rows").normal(size=(20, 16))
    clipped = clip_rows(torch.from_numpy(rows), 3.5).numpy()
    norms = np.linalg.norm(rows, axis=1)
    assert (norms > 3.5).any()
    assert (norms < 3.5).any()
    np.testing.assert_allclose(np.linalg.norm(clipped, axis=1), np.minimum(norms, 3.5), rtol=1e-12)
    np.testing.assert_allclose(clipped[norms < 3.5], rows[norms < 3.5])
    assert torch.equal(clip_rows(torch.zeros(2, 3), 1.0), torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.ones(3), r"\(samples, features\), got torch.float32 of shape \(3,\)"),
        (torch.ones(3, 2, dtype=torch.int64), "got torch.int64"),
        (torch.tensor([[1.0], [math.nan]]), "row 1 has a value that is NaN"),
    ],
)
def test_rows_that_cannot_be_clipped_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        clip_rows(rows, 1.0)
