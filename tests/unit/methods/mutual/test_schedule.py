"""All sites learn from the same public images in the same order; the number of private batches is what is asked for."""

import numpy as np
import pytest

from grandrounds.errors import ConfigurationError
from grandrounds.methods.mutual.options import ExchangeOptions
from grandrounds.methods.mutual.schedule import (
    Exchanges,
    exchange_chunks,
    label_trust,
    local_batch_count,
    public_order,
    whole_batches,
)


def test_the_order_is_a_permutation_that_depends_on_seed_and_round_alone():
    order = public_order(100, seed=1, round_number=2)
    assert sorted(order) == list(range(100))
    assert np.array_equal(order, public_order(100, seed=1, round_number=2))
    assert not np.array_equal(order, public_order(100, seed=1, round_number=3))
    assert not np.array_equal(order, public_order(100, seed=2, round_number=2))


def test_a_round_may_be_about_some_images_drawn_anew_each_time():
    some = public_order(100, 1, 2, per_round=30)
    assert len(set(some.tolist())) == 30
    assert set(some.tolist()) != set(public_order(100, 1, 3, per_round=30).tolist())


def test_an_epoch_is_one_exchange_or_one_for_each_batch():
    order = np.arange(26379)
    (whole,) = exchange_chunks(order, batch_size=16)
    assert np.array_equal(whole, order)
    assert len(whole_batches(whole, 16)) == 1648
    chunks = exchange_chunks(order, batch_size=16, chunk=16)
    assert len(chunks) * 40 == 65_920
    assert all(np.array_equal(a, b) for a, b in zip(chunks, whole_batches(order, 16), strict=True))


def test_a_last_chunk_without_a_whole_batch_is_left_out():
    assert [len(part) for part in exchange_chunks(np.arange(50), 16, chunk=20)] == [20, 20]
    assert [len(part) for part in exchange_chunks(np.arange(56), 16, chunk=20)] == [20, 20, 16]


@pytest.mark.parametrize(("images", "chunk", "given"), [(15, None, 15), (15, 16, 15), (100, 8, 8)])
def test_a_public_set_smaller_than_a_batch_is_refused(images, chunk, given):
    with pytest.raises(ConfigurationError, match=f"gives {given} images per exchange, which make no batch of 16"):
        exchange_chunks(np.arange(images), 16, chunk)


def test_batches_are_whole_and_keep_the_order():
    batches = whole_batches(np.array([5, 3, 1, 4, 2]), 2)
    assert [batch.tolist() for batch in batches] == [[5, 3], [1, 4]]
    assert whole_batches(np.arange(1), 2) == []


@pytest.mark.parametrize(("epochs", "batches"), [(1, 229), (3670 / 26379, 32), (7, 1603), (0.001, 1), (1.5, 344)])
def test_the_readings_of_the_local_epochs_give_their_numbers_of_batches(epochs, batches):
    assert local_batch_count(3670, 16, epochs) == batches


def test_fewer_images_than_a_batch_are_refused():
    with pytest.raises(ConfigurationError, match="15 training images make no batch of 16; lower the batch size"):
        local_batch_count(15, 16, 1)


def test_trust_grows_from_nothing():
    assert label_trust(0, 40) == 0
    assert label_trust(20, 40) == pytest.approx(20 / 420)
    assert label_trust(20, 40, ratio=1) == pytest.approx(1 / 3)


def exchanges(images=70, **options):
    return Exchanges(images, 5, ExchangeOptions(public_batch=16, **options))


def test_one_exchange_is_one_epoch_about_all_images():
    found = exchanges()
    assert (found.per_epoch, found.epochs(41), found.epoch(7), found.ends_epoch(7)) == (1, 40, 7, True)
    assert sorted(found.part(3)) == list(range(70))


def test_chunks_are_separate_exchanges_of_one_epoch():
    found = exchanges(chunk=32)  # 32, 32, and 6 images which make no batch
    assert found.per_epoch == 2
    assert [found.epoch(number) for number in (1, 2, 3, 4)] == [1, 1, 2, 2]
    assert [found.ends_epoch(number) for number in (1, 2, 3, 4)] == [False, True, False, True]
    assert found.epochs(9) == 4
    first, second = found.part(3), found.part(4)
    assert not set(first) & set(second)
    assert len(first) == len(second) == 32


def test_each_epoch_has_its_own_order_which_is_the_same_at_every_site():
    assert not np.array_equal(exchanges().part(1), exchanges().part(2))
    assert np.array_equal(exchanges().part(2), exchanges().part(2))


@pytest.mark.parametrize("rounds", [1, 4])
def test_rounds_must_end_with_an_epoch(rounds):
    with pytest.raises(
        ConfigurationError, match=f"one more than a multiple of the 2 exchanges of an epoch, got {rounds}"
    ):
        exchanges(chunk=32).epochs(rounds)


def test_a_public_set_without_a_batch_is_refused():
    with pytest.raises(ConfigurationError, match="make no batch of 16"):
        exchanges(images=15)


def test_more_images_per_round_than_there_are_are_refused():
    with pytest.raises(ConfigurationError, match=r"per_round is 71.*has 70"):
        exchanges(per_round=71)
