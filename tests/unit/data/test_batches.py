"""Passes are permutations, the number of steps is exact, and no batch of one is left over."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.data.batches import eval_batches, index_batches
from grandrounds.seeding import numpy_generator

ROWS = np.arange(100, 110)


def batches_of(rows, batch_size, steps, *purpose):
    return list(index_batches(rows, batch_size, steps, numpy_generator("batches", *purpose)))


def test_a_pass_has_every_row_once_and_the_last_batch_may_be_small():
    batches = batches_of(ROWS, 4, 3)
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert sorted(np.concatenate(batches)) == list(ROWS)


def test_a_second_pass_is_shuffled_anew():
    batches = batches_of(ROWS, 4, 6)
    first, second = np.concatenate(batches[:3]), np.concatenate(batches[3:])
    assert sorted(second) == list(ROWS)
    assert list(first) != list(second)
    assert list(first) != list(ROWS)


def test_a_single_row_left_over_joins_the_batch_before():
    assert [len(batch) for batch in batches_of(ROWS, 3, 6)] == [3, 3, 4, 3, 3, 4]


def test_a_single_row_without_a_batch_before_it_is_its_own_batch():
    assert [list(batch) for batch in batches_of(ROWS[:1], 3, 2)] == [[100], [100]]


def test_batches_of_one_that_were_asked_for_are_not_merged():
    assert [len(batch) for batch in batches_of(ROWS[:3], 1, 4)] == [1, 1, 1, 1]


def test_the_same_generator_gives_the_same_batches_and_another_one_others():
    once, again, other = (np.concatenate(batches_of(ROWS, 4, 3, purpose)) for purpose in (1, 1, 2))
    np.testing.assert_array_equal(once, again)
    assert (once != other).any()


@given(count=st.integers(1, 40), batch_size=st.integers(1, 12), steps=st.integers(0, 15))
def test_the_number_of_steps_is_exact_and_no_row_comes_a_second_time_before_all_came_once(count, batch_size, steps):
    batches = batches_of(np.arange(count), batch_size, steps)
    assert len(batches) == steps
    drawn = np.concatenate([*batches, np.array([], dtype=int)])
    times = np.bincount(drawn, minlength=count)
    assert times.max() - times.min() <= 1
    assert all(1 <= len(batch) <= batch_size + 1 for batch in batches)
    if count > 1 and batch_size > 1:
        assert all(len(batch) > 1 for batch in batches)


def test_refuses_no_rows_before_the_first_batch_is_asked_for():
    with pytest.raises(ValueError, match="there are no rows"):
        index_batches(np.array([], dtype=int), 4, 1, numpy_generator("refused"))
    with pytest.raises(ValueError, match=r"batch_size .*got 0"):
        index_batches(ROWS, 0, 1, numpy_generator("refused"))
    with pytest.raises(ValueError, match=r"steps .*got -1"):
        index_batches(ROWS, 4, -1, numpy_generator("refused"))


def test_evaluation_batches_keep_order_and_lose_nothing():
    assert [list(batch) for batch in eval_batches(ROWS[:7], 3)] == [[100, 101, 102], [103, 104, 105], [106]]
    assert list(eval_batches(ROWS[:0], 3)) == []
    with pytest.raises(ValueError, match=r"batch_size .*got 0"):
        eval_batches(ROWS, 0)
