import numpy as np
import pytest

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.privacy.secure_sums.numbers import FixedPointEncoding, add, subtract


def test_numbers_of_the_hand_check_have_its_words_and_sum():
    numbers = FixedPointEncoding(64, 4.0, 4)
    words, clipped = numbers.encode(np.array([0.5, -0.25, 1.0]))
    assert (numbers.scale, clipped) == (58, 0)
    assert words.tolist() == [2**57, 2**64 - 2**56, 2**58]
    total = words.sum(dtype=np.uint64, keepdims=True)
    assert int(total[0]) == 360287970189639680
    assert numbers.decode(total, 3).tolist() == [1.25]


def test_the_scale_and_error_of_the_second_hand_check():
    numbers = FixedPointEncoding(32, 1.0, 8)
    assert numbers.scale == 27
    assert numbers.error(8) == pytest.approx(2.98e-8, rel=1e-3)


@pytest.mark.parametrize(
    ("bits", "bound", "sites"), [(32, 0.37, 3), (32, 5e4, 100), (64, 256.0**2, 10), (64, 1e-6, 7), (32, 1e12, 3)]
)
def test_the_scale_is_the_largest_that_leaves_room(bits, bound, sites):
    scale = FixedPointEncoding(bits, bound, sites).scale
    assert sites * (bound * 2.0**scale + 0.5) < 2.0 ** (bits - 1) <= sites * (bound * 2.0 ** (scale + 1) + 0.5)


@pytest.mark.parametrize("bits", [32, 64])
def test_a_sum_at_the_bound_does_not_wrap_around(bits):
    numbers = FixedPointEncoding(bits, 3.0, 5)
    words = [numbers.encode(np.full(4, sign * 3.0))[0] for sign in (1, 1, 1, 1, 1)]
    assert numbers.decode(sum(words[1:], words[0]), 5) == pytest.approx(np.full(4, 15.0))
    words = [numbers.encode(np.full(4, -3.0))[0] for _ in range(5)]
    assert numbers.decode(sum(words[1:], words[0]), 5) == pytest.approx(np.full(4, -15.0))


@pytest.mark.parametrize("bits", [32, 64])
def test_the_error_of_a_sum_stays_below_its_limit(bits):
    numbers, generator = FixedPointEncoding(bits, 2.0, 6), np.random.default_rng(1)
    values = generator.uniform(-2, 2, (6, 1000)).astype(np.float32)
    words = [numbers.encode(row)[0] for row in values]
    forward, backward = sum(words[1:], words[0]), sum(words[-2::-1], words[-1])
    assert np.array_equal(forward, backward)
    assert np.abs(numbers.decode(forward, 6) - values.astype(np.float64).sum(0)).max() <= numbers.error(6) + 1e-15


def test_numbers_beyond_the_bound_are_clipped_and_counted():
    numbers = FixedPointEncoding(32, 1.0, 3)
    words, clipped = numbers.encode(np.array([[2.0, -7.0], [1.0, 0.0]], np.float32))
    assert clipped == 2
    assert numbers.decode(words, 1).tolist() == [[1, -1], [1, 0]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_refused(value):
    with pytest.raises(MessageError, match="finite"):
        FixedPointEncoding(32, 1.0, 3).encode(np.array([0.0, value]))


def test_a_sum_that_its_contributors_cannot_have_is_refused():
    numbers = FixedPointEncoding(32, 1.0, 8)
    words, _ = numbers.encode(np.array([1.0]))
    numbers.decode(words * np.uint32(3), 3)
    with pytest.raises(MessageError, match="3 contributors"):
        numbers.decode(words * np.uint32(4), 3)
    with pytest.raises(MessageError, match="3 contributors"):
        numbers.decode(np.uint32(0) - words * np.uint32(4), 3)


def test_a_sum_of_another_ring_or_of_too_many_is_refused():
    words, _ = FixedPointEncoding(32, 1.0, 8).encode(np.array([1.0]))
    with pytest.raises(MessageError, match="uint64"):
        FixedPointEncoding(64, 1.0, 8).decode(words, 1)
    for contributors in (0, 9):
        with pytest.raises(MessageError, match="1 to 8"):
            FixedPointEncoding(32, 1.0, 8).decode(words, contributors)


@pytest.mark.parametrize(
    ("bits", "bound", "sites", "field"),
    [
        (16, 1.0, 3, "bits"),
        (32, 0.0, 3, "bound"),
        (32, np.nan, 3, "bound"),
        (32, np.inf, 3, "bound"),
        (32, 1.0, 0, "contributors"),
        (32, 1.0, 2**40, "contributors"),
    ],
)
def test_an_encoding_that_cannot_be_is_refused(bits, bound, sites, field):
    with pytest.raises(ConfigurationError, match=field):
        FixedPointEncoding(bits, bound, sites)


@pytest.mark.parametrize("change", [add, subtract])
@pytest.mark.parametrize(
    "part",
    [{"b": np.zeros(2, np.uint32)}, {"a": np.zeros(3, np.uint32)}, {"a": np.zeros(2, np.uint64)}, {}],
)
def test_words_of_other_tensors_are_not_added(change, part):
    with pytest.raises(MessageError):
        change({"a": np.zeros(2, np.uint32)}, part)
