"""Batches, communications and rounds have the paper's numbers; sites that are too small are told what to do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.errors import DataError
from grandrounds.methods.fed_align_cl.schedule import (
    after_warm_up,
    communications,
    interval_of_round,
    site_batch_size,
)


@pytest.mark.parametrize(("images", "size", "unused"), [(1022, 8, 62), (287, 2, 47), (596, 4, 116)])
def test_batches_of_the_papers_hospitals(images, size, unused):
    assert site_batch_size(images, 120) == size
    assert images - 120 * size == unused


@pytest.mark.parametrize(
    ("images", "minimum", "message"),
    [
        (
            119,
            1,
            "site-2 has 119 training images, which make no batch of 1 for each of 120 iterations; .* at most 119$",
        ),
        (
            239,
            2,
            "site-2 has 239 training images, which make no batch of 2 for each of 120 iterations; .* at most 119$",
        ),
        (1, 2, "site-2 has 1 training images and needs 2 for a batch; leave it out of the job"),
        (0, 1, "site-2 has 0 training images and needs 1 for a batch"),
    ],
)
def test_too_few_images_are_refused_with_a_remedy(images, minimum, message):
    with pytest.raises(DataError, match=message):
        site_batch_size(images, 120, minimum, "site-2")


def test_the_remedy_works_and_group_norm_takes_single_images():
    assert site_batch_size(239, 119) == 2
    assert site_batch_size(120, 120, minimum=1) == 1


@pytest.mark.parametrize(
    ("pace", "expected"), [(40, (40, 80, 120)), (50, (50, 100, 120)), (120, (120,)), (500, (120,)), (60, (60, 120))]
)
def test_communications_of_an_epoch(pace, expected):
    assert communications(120, pace) == expected


@given(iterations=st.integers(1, 60), pace=st.integers(1, 70))
def test_rounds_cover_every_iteration_once(iterations, pace):
    rounds = len(communications(iterations, pace))
    intervals = [interval_of_round(number, iterations, pace) for number in range(1, 2 * rounds + 1)]
    covered = [(s.epoch, iteration) for s in intervals for iteration in range(s.first, s.last + 1)]
    assert covered == [(epoch, iteration) for epoch in (1, 2) for iteration in range(1, iterations + 1)]
    assert [s.ends_epoch for s in intervals] == 2 * ([False] * (rounds - 1) + [True])


def test_alignment_starts_after_the_warm_up():
    assert [epoch for epoch in range(1, 9) if after_warm_up(epoch, 5)] == [6, 7, 8]
    assert after_warm_up(1, 0)


@pytest.mark.parametrize(
    "call", [lambda: interval_of_round(0), lambda: communications(0, 1), lambda: communications(1, 0)]
)
def test_what_does_not_count_from_one_is_refused(call):
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        call()
