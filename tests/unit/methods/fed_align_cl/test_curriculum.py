"""Scores, probabilities and orders of the curriculum against computed and enumerated numbers."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.errors import CheckpointError
from grandrounds.methods.fed_align_cl.curriculum import (
    Memory,
    curriculum_order,
    curriculum_probabilities,
    curriculum_scores,
    epoch_batches,
    forgotten,
    order_with_replacement,
)
from grandrounds.seeding import numpy_generator

DRAWS = 40_000


def flags(text: str) -> np.ndarray:
    return np.array([letter == "1" for letter in text])


def test_only_what_was_right_and_became_wrong_counts_double():
    # (own, deployed): (1,0), (1,1), (0,0), (0,1)
    scores = curriculum_scores(forgotten(flags("1100"), flags("0101")))
    assert scores.tolist() == [2, 1, 1, 1]
    assert curriculum_probabilities(scores).tolist() == [0.4, 0.2, 0.2, 0.2]


def test_everything_forgotten_is_a_uniform_order():
    scores = curriculum_scores(forgotten(flags("1111"), flags("0000")))
    assert scores.tolist() == [2] * 4
    assert curriculum_probabilities(scores).tolist() == [0.25] * 4


def positions(scores, which: int = 0) -> np.ndarray:
    generator = numpy_generator("orders")
    orders = [curriculum_order(np.array(scores, float), generator) for _ in range(DRAWS)]
    return np.array([int(np.flatnonzero(order == which)[0]) + 1 for order in orders])


def test_a_forgotten_image_among_four_comes_first_and_last_as_often_as_computed():
    found = positions([2, 1, 1, 1])
    # Last: 3/5 * 2/4 * 1/3 = 0.1; expected position: 1 + 3 * 1/(1 + 2) = 2.
    assert (found == 1).mean() == pytest.approx(0.4, abs=0.01)
    assert (found == 4).mean() == pytest.approx(0.1, abs=0.01)
    assert found.mean() == pytest.approx(2.0, abs=0.02)


def test_without_a_curriculum_the_order_is_uniform():
    found = positions([1, 1, 1, 1])
    assert [(found == place).mean() for place in (1, 4)] == pytest.approx([0.25, 0.25], abs=0.01)
    assert found.mean() == pytest.approx(2.5, abs=0.03)


def test_of_two_images_the_forgotten_one_comes_first_in_two_of_three_orders():
    assert (positions([2, 1]) == 1).mean() == pytest.approx(2 / 3, abs=0.01)


def test_orders_have_the_probabilities_of_drawing_one_after_the_other():
    scores, generator = np.array([3.0, 1.0, 2.0]), numpy_generator("orders")
    found = [tuple(curriculum_order(scores, generator)) for _ in range(DRAWS)]
    for order in permutations(range(3)):
        expected = scores[order[0]] / 6 * scores[order[1]] / (6 - scores[order[0]])
        assert found.count(order) / DRAWS == pytest.approx(expected, abs=0.012)


@given(scores=st.lists(st.sampled_from([1.0, 2.0]), min_size=1, max_size=30), seed=st.integers(0, 99))
def test_an_order_is_a_permutation_and_its_seed_repeats_it(scores, seed):
    order = curriculum_order(np.array(scores), numpy_generator(seed))
    assert sorted(order) == list(range(len(scores)))
    assert np.array_equal(order, curriculum_order(np.array(scores), numpy_generator(seed)))


def test_draws_with_replacement_miss_images():
    seen = len(np.unique(order_with_replacement(np.ones(287), numpy_generator("code"))[:240])) / 287
    # 1 - exp(-240/287) = 0.57, where a permutation visits 240/287 = 0.84.
    assert seen == pytest.approx(0.567, abs=0.06)
    drawn = order_with_replacement(np.array([1e-9, 1.0]), numpy_generator("code"))
    assert drawn.tolist() == [1, 1]


def test_surplus_images_are_left_out():
    assert epoch_batches(np.arange(287), 2, 120).shape == (120, 2)
    assert epoch_batches(np.arange(287), 2, 120).max() == 239


def epoch(memory: Memory, *communications: tuple[str, str]) -> str:
    for number, (own, deployed) in enumerate(communications, start=1):
        ends_epoch = number == len(communications)
        memory.before(flags(own), ends_epoch)
        memory.after(flags(deployed), ends_epoch)
    return "".join(str(int(flag)) for flag in memory.forgotten())


FIRST = (("1100", "0111"), ("1110", "1010"))
SECOND = (("1111", "1111"), ("0011", "0001"))


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [("around_last_comm", ["0100", "0010"]), ("every_comm", ["1100", "0010"]), ("epoch_to_epoch", ["0000", "1010"])],
)
def test_each_comparison_counts_its_kind_of_forgetting(comparison, expected):
    memory = Memory(comparison, 4)
    assert [epoch(memory, *FIRST), epoch(memory, *SECOND)] == expected


@pytest.mark.parametrize(("comparison", "passes"), [("around_last_comm", 2), ("epoch_to_epoch", 1), ("every_comm", 6)])
def test_no_prediction_is_asked_for_that_is_not_used(comparison, passes):
    memory = Memory(comparison, 4)
    closing = [False, False, True]
    assert sum(memory.wants_before(ends_epoch) + memory.wants_after(ends_epoch) for ends_epoch in closing) == passes


@pytest.mark.parametrize("comparison", ["around_last_comm", "epoch_to_epoch", "every_comm"])
def test_a_memory_survives_its_process_in_the_middle_of_an_epoch(comparison):
    whole, first = Memory(comparison, 4), Memory(comparison, 4)
    for memory in (whole, first):
        epoch(memory, *FIRST)
        memory.before(flags("1100"), ends_epoch=False)
        memory.after(flags("0100"), ends_epoch=False)
    second = Memory(comparison, 4)
    second.load_state_dict(first.state_dict())
    for memory in (whole, second):
        memory.before(flags("1111"), ends_epoch=True)
        memory.after(flags("0110"), ends_epoch=True)
    assert second.forgotten().tolist() == whole.forgotten().tolist()
    assert whole.forgotten().any()


def test_a_memory_of_other_images_is_refused():
    memory = Memory("every_comm", 4)
    with pytest.raises(CheckpointError, match=r"'epoch' is of \(3,\) images, but the site has 4"):
        memory.load_state_dict(Memory("every_comm", 3).state_dict())
