import numpy as np
import pytest

from grandrounds.errors import ConfigurationError
from grandrounds.methods.mutual.options import ExchangeOptions
from grandrounds.methods.mutual.schedule import Exchanges


def exchanges(images=70, **options):
    return Exchanges(images, 5, ExchangeOptions(public_batch=16, **options))


def test_one_exchange_is_one_epoch_about_all_images():
    found = exchanges()
    assert (found.per_epoch, found.epochs(41), found.epoch(7), found.ends_epoch(7)) == (1, 40, 7, True)
    assert sorted(found.part(3)) == list(range(70))


def test_chunks_are_exchanges_of_their_own_that_share_an_epoch():
    found = exchanges(chunk=32)  # 32, 32, and 6 images which make no batch
    assert found.per_epoch == 2
    assert [found.epoch(number) for number in (1, 2, 3, 4)] == [1, 1, 2, 2]
    assert [found.ends_epoch(number) for number in (1, 2, 3, 4)] == [False, True, False, True]
    assert found.epochs(9) == 4
    first, second = found.part(3), found.part(4)
    assert not set(first) & set(second)
    assert len(first) == len(second) == 32


def test_each_epoch_has_an_order_of_its_own_and_every_site_the_same():
    assert not np.array_equal(exchanges().part(1), exchanges().part(2))
    assert np.array_equal(exchanges().part(2), exchanges().part(2))


@pytest.mark.parametrize("rounds", [1, 4])
def test_rounds_must_end_with_an_epoch(rounds):
    with pytest.raises(
        ConfigurationError, match=f"one more than a multiple of the 2 exchanges of an epoch, got {rounds}"
    ):
        exchanges(chunk=32).epochs(rounds)


def test_a_public_set_smaller_than_a_batch_is_refused():
    with pytest.raises(ConfigurationError, match="make no batch of 16"):
        exchanges(images=15)


def test_more_images_per_round_than_there_are_are_refused():
    with pytest.raises(ConfigurationError, match="per_round is 71, the public set has 70 images"):
        exchanges(per_round=71)
